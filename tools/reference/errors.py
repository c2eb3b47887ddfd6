"""Table of error codes in docs/errors.md."""

from __future__ import annotations

from epbuild.report.ci.sarif import error_codes

_HEADINGS = "| code | what it means | what to do |\n|---|---|---|\n"


def errors_page(page: str) -> str:
    """Return the page with the table of `epbuild/error_codes.toml` in the place of its own."""
    introduction = page.partition(_HEADINGS)[0]
    rows = (f"| {code} | {found.meaning} | {found.action} |\n" for code, found in error_codes().items())
    return f"{introduction}{_HEADINGS}{''.join(rows)}"
