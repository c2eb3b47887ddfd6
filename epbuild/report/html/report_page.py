"""Report as a single HTML page that works without a network.

The page is a template with styles, the report as JSON, and a script that esbuild bundles from `web/`. The script inserts
the JSON's data as text. Tables show the data to readers without JavaScript. The page's content
security policy allows only its own script and styles, by their digests, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from string import Template
from typing import Any

from epbuild.commands.reporting.values import Report
from epbuild.core.units import format_count
from epbuild.report.formatting import Table, format_size
from epbuild.report.json.documents import build_report_document
from epbuild.verify.figures import describe_place, format_figures

_FOLDER = Path(__file__).with_name("page")
_STYLES = ("theme.css", "page.css", "charts.css", "small.css")
_MAX_ROWS = 500
_MAX_LOGS = 20
_INTERRUPTED = 130
_VERDICTS = {
    "passed": "passed",
    "failed": "failed",
    "interrupted": "interrupted",
    "out of date": "allowed",
    "not built": "not-built",
}
"""Verdicts on a build, with the CSS class of their colors."""


def report_page(report: Report) -> str:
    """Return the HTML page of a report, with the report's JSON in `<script type="application/json" id="report">`."""
    return render_page(build_report_document(report))


def render_page(document: Mapping[str, Any]) -> str:
    """Return the HTML page for a report's JSON."""
    style = "".join(map(_read, _STYLES))
    script = _read("report.js")
    recipe, verdict = document["recipe"], _find_verdict(document)
    sources = f"script-src {_hash_source(script)}; style-src {_hash_source(style)}; img-src data:"
    return Template(_read("page.html")).substitute(
        policy=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        title=html.escape(recipe["name"]),
        description=html.escape(recipe["description"]),
        kind=_VERDICTS[verdict],
        verdict=verdict.capitalize(),
        counts=html.escape(_format_counts(document)),
        about=html.escape(_format_summary(document)),
        epbuild=html.escape(document["epbuild"]),
        style=style,
        static=render_static_tables(document),
        licenses=html.escape(_read("LICENSES.txt")),
        # No text of the recipe or of an EP may end the script element or begin a comment in it.
        report=json.dumps(document, separators=(",", ":")).replace("<", "\\u003c"),
        script=script,
    )


def _find_verdict(document: Mapping[str, Any]) -> str:
    """Return the verdict on the last build, a key of `_VERDICTS`. Allowed failures and the steps that they skip do not count."""
    build, steps = document["build"], document["steps"]
    exit_code = build["exit_code"] if build is not None else 0
    if any(not failure["allowed"] for failure in document["failures"]):
        return "failed"
    if exit_code == _INTERRUPTED:
        return "interrupted"
    # A failed step without an entry in `failures` has other inputs now.
    if exit_code and not any(step["outcome"] == "failed" for step in steps):
        return "failed"
    if all(step["state"] == "current" or step["errors"] or (step["outcome"] == "skipped" and not exit_code) for step in steps):
        return "passed"
    return "out of date" if build is not None else "not built"


def _format_counts(document: Mapping[str, Any]) -> str:
    """Return the numbers of failed steps, of steps to run, and of models by coverage."""
    steps, failures = document["steps"], document["failures"]
    counts = [f"{len(steps):,} steps" if len(steps) != 1 else "1 step"]
    for allowed, words in ((False, "failed"), (True, "allowed to fail")):
        reasons = [failure for failure in failures if failure["allowed"] is allowed]
        failed = {step for failure in reasons for step in failure["steps"]}
        if failed:
            counts.append(f"{len(failed):,} {words} for {format_count(len(reasons), 'reason')}")
    waiting = sum(step["state"] != "current" and not step["errors"] for step in steps)
    counts += [f"{waiting:,} not current"] if waiting else []
    coverage = Counter(row["outcome"] for row in document["coverage"])
    models = ", ".join(f"{number:,} {outcome}" for outcome, number in coverage.items())
    return ", ".join(counts) + (f"; models: {models}" if models else "")


def _format_summary(document: Mapping[str, Any]) -> str:
    """Return a line about the recipe and its last build."""
    build = document["build"]
    last = "no recorded build"
    if build:
        last = f"last build {_format_moment(build['began'])} on {build['machine']}, exit code {build['exit_code']}"
    return (
        f"{document['recipe']['path']}: {len(document['steps']):,} steps; {last}; report of {_format_moment(document['made_at'])}"
    )


def _format_moment(text: str) -> str:
    """Format an RFC 3339 time in UTC without its seconds."""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:[\d.]+)?(Z|\+00:00)$", r"\1 \2 UTC", text)


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def render_static_tables(document: Mapping[str, Any]) -> str:
    """Return HTML tables of coverage, failures, sizes, savings by sharing, measurements and digests of models, and the logs of failures."""
    coverage = (
        (
            row["model"],
            row["target"],
            row["outcome"],
            _format_optional_size(row["size"]),
            _format_reasons(row),
        )
        for row in document["coverage"]
    )
    failures = (
        (step["id"], f"{error['message']} [{error['code']}]", error["hint"] or "")
        for step in document["steps"]
        for error in step["errors"]
    )
    outputs = ((one["path"], ", ".join(one["targets"]), _format_optional_size(one["size"])) for one in document["outputs"])
    sharing = (
        (
            one["group"],
            one["target"],
            format_size(one["made"]),
            *(format_size(one[key]) if one["measured"] else "not measured" for key in ("alone", "saved")),
        )
        for one in document["sharing"]
    )
    measurements = (
        (
            f"{one['group']}/{one['member']}",
            one["target"],
            describe_place(one["on"], one["device"]),
            format_figures(one["figures"], one["limits"]),
        )
        for one in document["measurements"]
    )
    models = ((one["name"], one["source"], one["sha256"] or "") for one in document["models"])
    tables = (
        Table("Coverage", ("Model", "Target", "Coverage", "Size", "Fallback nodes"), tuple(coverage)),
        Table("Failures", ("Step", "Error", "What to do"), tuple(failures)),
        Table("Outputs", ("Output", "Targets", "Size"), tuple(outputs)),
        Table("Sharing", ("Group", "Target", "Size", "Each model alone", "Saved"), tuple(sharing)),
        Table("Measurements", ("Model", "Target", "Measured", "Figures"), tuple(measurements)),
        Table("Models", ("Model", "Source", "SHA-256"), tuple(models)),
    )
    logs = (
        f"<h2>End of the log of {html.escape(step['id'])}</h2>\n<pre>{html.escape(step['log'])}</pre>"
        for step in document["steps"]
        if step["log"]
    )
    return "\n".join((*(table.html(_MAX_ROWS) for table in tables), *islice(logs, _MAX_LOGS)))


def _format_reasons(row: Mapping[str, Any]) -> str:
    reasons = [f"{one['count']} {one['operator']}{': ' + one['reason'] if one['reason'] else ''}" for one in row["outside"]]
    return "; ".join([*([row["reason"]] if row["reason"] else []), *reasons])


def _format_optional_size(size: int | None) -> str:
    return "" if size is None else format_size(size)
