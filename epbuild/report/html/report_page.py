"""Reports as one HTML page that needs no network.

The page is made of the files in `page/`: a template, styles, the report as JSON, two libraries, and scripts of our own, one after
the other in one scope. What the report has gets into the page as that JSON and as the tables for readers without JavaScript, and
nowhere else; the scripts put it into the document as text. The page's policy allows what stands in it, by its digests, and no
request at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from epbuild.commands.reporting.values import Report
from epbuild.report.html.tables import static_tables
from epbuild.report.json.documents import report_document

_FOLDER = Path(__file__).with_name("page")
_STYLES = ("theme.css", "page.css", "charts.css", "small.css")
_SCRIPTS = (
    "elements.js",
    "amounts.js",
    "report.js",
    "tables.js",
    "panel.js",
    "details.js",
    "overview.js",
    "coverage.js",
    "clusters.js",
    "layout.js",
    "graph.js",
    "timeline.js",
    "sizes.js",
    "accuracy.js",
    "differences.js",
    "provenance.js",
    "theme.js",
    "search.js",
    "main.js",
)
_SECTIONS = {
    "overview": "Overview",
    "coverage": "Coverage",
    "graph": "Steps",
    "timeline": "Timeline",
    "sizes": "Sizes",
    "accuracy": "Accuracy",
    "differences": "Differences",
    "provenance": "Provenance",
    "lock": "Lock",
}
_SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=\S*\s*$")


def report_page(report: Report) -> str:
    """The page, with the report's JSON in it: `<script type="application/json" id="report">`."""
    return page_of(report_document(report))


def page_of(document: Mapping[str, Any]) -> str:
    """The page of a report's JSON."""
    style = "".join(map(_part, _STYLES))
    libraries = [_SOURCE_MAP.sub("\n", _part(f"libraries/{library['file']}")) for library in pinned_libraries()]
    own = "".join(map(_part, _SCRIPTS))
    scripts = [*libraries, f'(() => {{\n"use strict";\n{own}}})();\n']
    allowed = " ".join(map(_digest, scripts))
    recipe = document["recipe"]
    return Template(_part("page.html")).substitute(
        policy=f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; img-src data:; base-uri 'none'; form-action 'none'",
        title=html.escape(recipe["name"]),
        description=html.escape(recipe["description"]),
        about=html.escape(_about(document)),
        epbuild=html.escape(document["epbuild"]),
        style=style,
        links="".join(f'<a href="#{place}">{title}</a>' for place, title in _SECTIONS.items()),
        sections="\n".join(
            f'<section id="{place}" aria-labelledby="{place}-title"><h2 id="{place}-title">{title}</h2></section>'
            for place, title in _SECTIONS.items()
        ),
        static=static_tables(document),
        licences="".join(map(_licence, pinned_libraries())),
        # No text of the recipe's or an EP's may end the element, or begin a comment in it.
        report=json.dumps(document, separators=(",", ":")).replace("<", "\\u003c"),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def pinned_libraries() -> list[dict[str, str]]:
    """The libraries in the page, as `python -m tools.page_libraries` fetches them."""
    libraries: list[dict[str, str]] = json.loads(_part("libraries/pinned.json"))
    return libraries


def _about(document: Mapping[str, Any]) -> str:
    """What the report is of, in a line."""
    build = document["build"]
    last = "no build is remembered"
    if build:
        last = f"last build {_moment(build['began'])} on {build['machine']}, exit code {build['exit_code']}"
    return f"{document['recipe']['path']}: {len(document['steps']):,} steps; {last}; report of {_moment(document['made_at'])}"


def _moment(text: str) -> str:
    """A time in UTC as RFC 3339 has it, to the minute."""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:[\d.]+)?(Z|\+00:00)$", r"\1 \2 UTC", text)


def _licence(library: Mapping[str, str]) -> str:
    text = html.escape(_part(f"libraries/{library['licence']}"))
    return f"<h3>{html.escape(library['name'])} {html.escape(library['version'])}</h3>\n<pre>{text}</pre>\n"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
