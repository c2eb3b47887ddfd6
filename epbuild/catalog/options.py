"""Options of EPs, and session keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from msgspec import Struct, field

from epbuild.catalog.rows import read_row

OptionType = Literal["text", "choice", "boolean", "integer", "number", "size", "name", "list", "pattern", "file", "folder"]
Effect = Literal["measured", "documented", "unknown", "none"]
"""Whether an option changes what a compile writes, and how that is known. What is unknown counts as a change."""


class Option(Struct, frozen=True):
    """One option of an EP, or one session key: what values it takes and whether they change what a compile writes."""

    name: str
    type: OptionType
    output: Effect
    meaning: str
    origin: str
    """Where this row comes from: `measured`, `doc <where>`, or `string in <library> <version>`."""
    values: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What users write for one of the values, in lower case, and the value that a message then suggests."""
    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    example: str | None = None
    default: str | None = None
    since: str | None = None
    """The first release that knows it: of the EP's own distributions, or of ONNX Runtime for a session key. None: not known, or all."""
    until: str | None = None
    """The last release that knows it, with all of its patch releases: `1.22` holds 1.22.1. None: it is still known."""
    runtime: bool = False
    """Only a session that runs the model reads it, so that it has no place in a compile."""
    inline: str | None = None
    """For a `file`: values of this form are the content itself, or a name that the EP looks up, and no path."""
    files_pattern: str | None = None
    """For a value that holds paths among other things: each match's first group is one."""
    case: Literal["upper", "lower"] | None = None
    compile_only: str | None = None
    """A regular expression for canonical values that only a compile takes: a session that runs what was compiled is not given them."""

    @property
    def changes_output(self) -> bool:
        """Whether the option's value belongs in an action key."""
        return self.output != "none"

    def only_compiling(self, value: str) -> bool:
        """Whether the canonical `value` is for the compile alone: dumps and their places, or what a session refuses that runs the model."""
        if self.compile_only is not None and re.search(self.compile_only, value):
            return True
        return not self.changes_output and not self.runtime

    def files(self, value: str) -> tuple[str, ...]:
        """The paths of the files that `value` names, whose content a compile depends on."""
        if self.files_pattern is not None:
            return tuple(match[1] for match in re.finditer(self.files_pattern, value))
        if self.type != "file" or not value or (self.inline is not None and re.search(self.inline, value)):
            return ()
        return (value,)

    def with_files(self, value: str, names: Sequence[str]) -> str:
        """`value` with other names for its files, in the order of `files`."""
        if not names:
            return value
        if self.files_pattern is None:
            return names[0]
        following = iter(names)

        def renamed(match: re.Match[str]) -> str:
            start, end = match.start(1) - match.start(), match.end(1) - match.start()
            return match[0][:start] + next(following) + match[0][end:]

        return re.sub(self.files_pattern, renamed, value)

    def known_in(self, version: str) -> bool:
        """Whether a release knows this option, as far as the catalog knows; True for a version that cannot be read."""
        asked, first, last = release_numbers(version), release_numbers(self.since or ""), release_numbers(self.until or "")
        if not asked:
            return True
        from_first = asked + (0,) * (len(first) - len(asked)) >= first  # 1.24 is 1.24.0
        return from_first and (not last or asked[: len(last)] <= last)

    @property
    def releases(self) -> str:
        """Which releases know this option, for a sentence: `since 1.21`, or `since 1.21 and until 1.30`; empty where all do."""
        bounds = {"since": self.since, "until": self.until}
        return " and ".join(f"{word} {version}" for word, version in bounds.items() if version is not None)


def read_options(table: Mapping[str, Any], origin: str) -> dict[str, Option]:
    """Read the options of a table; `origin` is that of rows which have none."""
    return {name: read_row(Option, row, origin, name=name) for name, row in table.items()}


@cache
def release_numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; none of one that cannot be read. For `packaging` every plan would have to import it."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
