"""`python -m tests.report.html.page_screenshots FOLDER [PAGE.html]`: screenshots of a report's page.

They show each section and the panel at three widths in both themes, and each section on paper. Without a page, they show a
sample report.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import Page

from epbuild.report.html.report_page import render_page
from tests.support.browser import opened_browser
from tests.support.sample_reports import zoo_report

_WIDTHS = (360, 800, 1400)
_THEMES = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--widths", type=int, nargs="*", default=_WIDTHS)
    parser.add_argument("--themes", nargs="*", default=_THEMES)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    page = arguments.page
    if page is None:
        page = arguments.folder / "zoo.html"
        page.write_text(render_page(zoo_report()), encoding="utf-8")
    with opened_browser() as browser:
        for theme in arguments.themes:
            for width in arguments.widths:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
                shown = context.new_page()
                shown.goto(page.resolve().as_uri())
                shown.wait_for_selector("html[data-drawn=all]")
                _pictures(shown, arguments.folder, f"{theme}-{width}")
                context.close()
        shown = browser.new_page(viewport={"width": 720, "height": 1000})
        shown.goto(page.resolve().as_uri())
        shown.wait_for_selector("html[data-drawn=all]")
        shown.emulate_media(media="print")
        for section in shown.query_selector_all("main > section"):
            section.screenshot(path=arguments.folder / f"paper-{section.get_attribute('id')}.png")


def _pictures(shown: Page, folder: Path, name: str) -> None:
    shown.screenshot(path=folder / f"{name}-top.png")
    shown.evaluate(
        "document.querySelector('#bar').style.position = 'static'"
    )  # it would cover contents that are longer than a screen
    for section in shown.query_selector_all("main > section"):
        section.screenshot(path=folder / f"{name}-{section.get_attribute('id')}.png")
    for kind, place in (("cell", "#coverage a.cell.partial"), ("step", "#timeline tbody th a")):
        button = shown.query_selector(place)
        if button is not None:
            button.click()
            shown.screenshot(path=folder / f"{name}-panel-{kind}.png")
            shown.keyboard.press("Escape")


if __name__ == "__main__":
    main()
