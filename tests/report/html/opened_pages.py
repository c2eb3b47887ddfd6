"""Pages of reports in a browser: a page that logs an error or asks for anything fails its test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from epbuild.report.html.report_page import page_of


@contextmanager
def opened(browser: Browser, folder: Path, document: dict[str, Any], **options: Any) -> Iterator[Page]:
    """The page of a report, all of it drawn; `options` are those of a browser's context."""
    file = folder / "report.html"
    file.write_text(page_of(document), encoding="utf-8")
    context = browser.new_context(**options)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-drawn=all]")
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def panel(page: Page) -> str:
    """What the panel shows."""
    return page.locator("#panel[open]").inner_text()


def show_all(page: Page, section: str) -> None:
    """Show every row of the section's tables."""
    while (more := page.locator(f"#{section} .more button, #{section} .list button:text-matches('^and [0-9,]+ more$')")).count():
        more.first.click()
