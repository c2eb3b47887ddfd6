"""Reference page of error codes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from epbuild.report.ci.sarif import ErrorCode, read_error_codes
from tools.reference.markdown import format_paragraph, format_table

_INTRODUCTION = """\
Every error, warning and note of epbuild ends with a code. The first digit identifies the part of epbuild that reports
the problem, and determines the exit code of most commands.

With `--json`, an error is an object with these [keys](json.md#problem). In SARIF, each code is a rule.
"""
_GROUPS = {
    "EPB1": ("the recipe's text", "2"),
    "EPB2": ("the plan: models, targets, groups and outputs", "2; 1 for EPB265"),
    "EPB3": ("toolchains and packages", "3; 1 for EPB311"),
    "EPB4": ("failed steps", "1; 3 if this machine is the reason, such as a full disk"),
    "EPB5": (
        "the store, the workspace, remote caches and clusters",
        "3; 1 for EPB534; 2 for EPB536, for EPB538, and for EPB525 if a model is missing",
    ),
    "EPB6": (
        "artifacts",
        "1; 2 for EPB620 to EPB628, EPB630, EPB668, and EPB600 of `verify` and `diff`; 3 for EPB638 and EPB667",
    ),
}
_TOPICS = {
    "Recipe": "100-111",
    "Models": "201-208 249 259 266 268",
    "EPs, options and devices": "210-219",
    "Outputs": "220-229 237 239 267",
    "Groups": "230-235 238 250",
    "Steps": "240 278-279",
    "Lock": "241-248 297",
    "Targets, toolchains and custom operators": "251-258",
    "Input sizes": "260-265",
    "Preparations in a recipe": "270-273 280-281",
    "Remote cache settings": "275-277",
    "Inputs of verification": "290-291",
    "Import": "292",
    "Limits": "298-299",
    "Files in wheels": "295-296",
    "Provisioning": "301-312",
    "Packages of models": "320-322",
    "Compiling": "401-418 440-441 444",
    "Emitting": "419-429 435-437 460",
    "Logs and rebuilds": "430-432",
    "Reports and graphs": "442-443 445-446",
    "Running preparations and measurements": "450-459 461",
    "Store, workspace and settings": "501-509 513-517 519",
    "Fetching": "510-512 525",
    "Writing the lock": "518",
    "Remote cache": "520-524",
    "Cluster": "530-542",
    "Results and artifacts": "600-619 655-657",
    "Relinking, merging and wrapping": "620-629 668",
    "Comparing and unpacking": "630-631 637-638",
    "Loading with `epbuild.runtime`": "632-636 654 658",
    "Loading and running models": "640-645 669",
    "Numbers": "646-649 665-667 670-671",
    "Comparing with `--rebuild-and-compare`": "650-653",
}
"""Numbers of the codes of each topic."""
_LINK = re.compile(r"\]\((?!https?:)")


def build_errors_page() -> Iterator[str]:
    """Yield the parts of the page, after its title."""
    yield from map(format_paragraph, _INTRODUCTION.split("\n\n"))
    codes = read_error_codes()
    groups = {prefix: [code for code in codes if code.startswith(prefix)] for prefix in _GROUPS}
    yield format_table(
        ("codes", "about", "exit code"),
        [(f"[{prefix}xx](#{prefix.lower()}xx)", about, exits) for prefix, (about, exits) in _GROUPS.items()],
    )
    yield "\n".join(_build_contents(codes))
    for prefix, members in groups.items():
        yield f"## {prefix}xx"
        yield f"Codes about {_GROUPS[prefix][0]}."
        for code in members:
            yield from _build_entry(code, codes[code])


def _build_contents(codes: Iterable[str]) -> Iterator[str]:
    """Yield a list item with links for each topic. Raises ValueError if a code has no topic."""
    left = list(codes)
    for topic, numbers in _TOPICS.items():
        bounds = [(part.partition("-")[0], part.rpartition("-")[2]) for part in numbers.split()]
        members = [code for code in left if any(first <= code[3:] <= last for first, last in bounds)]
        left = [code for code in left if code not in members]
        links = ", ".join(f"[{code}](#{code.lower()})" for code in members)
        yield textwrap.fill(f"- {topic}: {links}", 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    if left:
        raise ValueError(f"without a topic: {left}")


def _build_entry(code: str, found: ErrorCode) -> Iterator[str]:
    yield f"### {code}"
    yield format_paragraph(_relocate_links(found.meaning))
    yield f"```text\n{found.example.strip()}\n```"
    yield format_paragraph(f"**Fix**: {_relocate_links(found.action)}").replace("\\*\\*", "**")


def _relocate_links(text: str) -> str:
    """Return a text whose links lead from docs/reference/ instead of docs/."""
    return _LINK.sub("](../", text).replace("](../reference/", "](")
