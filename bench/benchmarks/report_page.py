"""Benchmark of a report of 10,000 steps: writing its page, and opening it in a browser."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from results import Result
from rounds import Contender, interleave
from workshop import CHECKOUT, Workshop

LIMIT = 2.0
_OPENED = """() => new Promise(found => {
  const look = () => document.documentElement.dataset.drawn ? found(performance.now()) : setTimeout(look, 5);
  look();
})"""


def measure(workshop: Workshop, rounds: int) -> Result:
    """Measure the processor time of a page of `tests/support/sample_reports.py` in the browser."""
    sys.path.append(str(CHECKOUT))
    from playwright.sync_api import Browser

    from epbuild.report.html.report_page import render_page
    from tests.support.browser import opened_browser
    from tests.support.sample_reports import large_report

    document = large_report()
    file = workshop.folder / "report.html"

    def write() -> float:
        begin = time.perf_counter()
        file.write_text(render_page(document), encoding="utf-8")
        return time.perf_counter() - begin

    def opened(browser: Browser, what: str) -> float:
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(Path(file).as_uri())
        seconds: float = page.evaluate(_OPENED) / 1000
        if what == "work":
            metrics = session.send("Performance.getMetrics")["metrics"]
            seconds = next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")
        page.close()
        return seconds

    write()
    with opened_browser() as browser:
        written, work, drawn = interleave(
            [
                Contender("epbuild writes the page", write),
                Contender("the browser draws the page, processor time", partial(opened, browser, "work")),
                Contender("the browser draws the page", partial(opened, browser, "drawn")),
            ],
            rounds,
        )
    return Result(
        "How long does it take to write and draw the page of a report with 10,000 steps?",
        (written, replace(work, limit=LIMIT), drawn),
        f"{len(document['steps']):,} steps; {file.stat().st_size / 1e6:.1f} MB. Headless Chromium. The browser draws the "
        "overview first, so users can read it while the rest is drawn.",
    )
