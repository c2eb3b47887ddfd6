"""Reports as one HTML page that needs no network."""

from __future__ import annotations

import html
import json

from epbuild.commands.report_values import Report
from epbuild.report.report_text import report_document


def report_page(report: Report) -> str:
    """The page, with the report's JSON in it: `<script type="application/json" id="report">`."""
    # No text of the recipe's or an EP's may end the element.
    data = json.dumps(report_document(report)).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{html.escape(report.recipe.name)}</title></head>\n'
        f'<body>\n<script type="application/json" id="report">{data}</script>\n</body>\n</html>\n'
    )
