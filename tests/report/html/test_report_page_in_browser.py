"""Page of a report as users see it, in a headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from epbuild.report.formatting import format_size
from epbuild.report.html.report_page import render_page
from tests.support.axe import find_problems
from tests.support.browser import opened_browser
from tests.support.sample_reports import (
    HOSTILE,
    SOCS,
    Document,
    changes,
    hostile_report,
    large_report,
    made_report,
    small_report,
    zoo_report,
)

pytestmark = pytest.mark.gate

CELLS = {"whole": "W", "failed": "F", "not built": "N"}


@contextmanager
def opened(browser: Browser, folder: Path, document: dict[str, Any], **options: Any) -> Iterator[Page]:
    """Open the page of a report and wait until it is drawn. A logged error or a request fails the test."""
    file = folder / "report.html"
    file.write_text(render_page(document), encoding="utf-8")
    context = browser.new_context(**options)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url.partition("#")[0] != file.as_uri() else None)
    page.goto(file.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-drawn=all]")
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def panel(page: Page) -> str:
    """Return the text of the panel."""
    return page.locator("#panel[open]").inner_text()


def show_all(page: Page, section: str) -> None:
    """Unfold the section, and show every row of its tables."""
    page.eval_on_selector_all(f"#{section} details", "all => all.forEach(folded => folded.open = true)")
    while (more := page.locator(f"#{section} .more button, #{section} .list button:text-matches('^and [0-9,]+ more$')")).count():
        more.first.click()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as found:
        yield found


@pytest.fixture(scope="module")
def zoo() -> Document:
    return zoo_report()


@pytest.fixture
def page(browser: Browser, tmp_path: Path, zoo: Document) -> Iterator[Page]:
    with opened(browser, tmp_path, zoo) as found:
        yield found


def values(page: Page, selector: str) -> list[float]:
    found: list[float] = page.eval_on_selector_all(selector, "elements => elements.map(element => Number(element.value))")
    return found


def test_every_number_on_the_page_matches_the_report(page: Page, zoo: Document) -> None:
    for section in ("timeline", "sizes", "accuracy", "measurements", "differences", "provenance"):
        show_all(page, section)
    outputs, sharing = zoo["outputs"], zoo["sharing"]
    measured, others = ([row for row in sharing if row["measured"] is wanted] for wanted in (True, False))
    sums = {sum(row[key] for row in measured) for key in ("saved", "alone")} | {sum(row["made"] for row in others)}
    known = sums | {sum(one["size"] for one in outputs), most_memory(zoo)} | set(numbers(zoo))
    assert set(values(page, "data.bytes")) <= known
    changes = {row["after"] - row["before"] for row in changed(zoo) if None not in (row["before"], row["after"])}
    assert set(values(page, "data.change")) == changes
    assert set(values(page, "#accuracy data.figure")) == set(
        numbers([[row["figures"], row["limits"]] for row in zoo["accuracy"]])
    )
    assert set(values(page, "#measurements data.figure")) == {250.5, 4.25, 6.5, 5, 6}
    times = [step["work"] for step in zoo["steps"] if step["work"] is not None]
    times += [span["ended"] - span["started"] for span in zoo["build"]["spans"] if span["kind"] == "toolchain"]
    assert values(page, "#timeline td:nth-child(3) data") == pytest.approx(sorted(times, reverse=True))
    assert sum(values(page, "#sizes .tabled:last-child td:nth-child(4) data")) == sum(one["size"] for one in outputs)


def most_memory(document: Document) -> int:
    """Return the highest peak memory of all actions with a known peak."""
    ran = [(step["started"], step["ended"], step["memory"]) for step in document["steps"] if step["memory"] is not None]
    return max(sum(int(memory) for start, end, memory in ran if start <= moment < end) for moment, _, _ in ran)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def changed(document: Document) -> Iterator[Any]:
    """Yield each entry that has a size before and after."""
    for row in document["against"]["models"]:
        yield {when: (row[when] or {}).get("size") for when in ("before", "after")}
    for row in document["build"]["published"] + document["against"]["outputs"]:
        yield row
        for file in row["files"]:
            sides = (file[side] for side in ("before", "after"))
            yield dict(zip(("before", "after"), (one["size"] if isinstance(one, dict) else one for one in sides), strict=True))


def test_every_cell_of_the_matrix_shows_its_letter_or_number(page: Page, zoo: Document) -> None:
    shown = page.eval_on_selector_all(
        "#coverage .matrix td a", "cells => cells.map(cell => [cell.title.split(':')[0], cell.innerText])"
    )
    expected = {
        f"{row['model']} for {row['target']}": CELLS.get(row["outcome"], str(row["fallback_nodes"])) for row in zoo["coverage"]
    }
    assert dict(shown) == expected


def test_the_page_formats_sizes_as_epbuild_does(browser: Browser, tmp_path: Path) -> None:
    document = small_report()
    sizes = [0, 1, 2, 999, 1000, 1049, 1050, 1250, 1350, 99_950, 999_999, 1_000_000, 123_456_789, 5 * 10**9, 2 * 10**12]
    document["models"] = [{**document["models"][0], "name": f"m{size}", "size": size} for size in sizes]
    with opened(browser, tmp_path, document) as page:
        show_all(page, "provenance")
        shown = page.locator("#provenance .tabled").first.locator("data.bytes").all_inner_texts()
    assert shown == [format_size(size) for size in sizes]


@pytest.mark.parametrize("width", [360, 900, 1600])
def test_a_page_fits_the_width_of_the_screen(browser: Browser, tmp_path: Path, zoo: Document, width: int) -> None:
    with opened(browser, tmp_path, zoo, viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#coverage a.cell.partial").first.click()
        assert page.evaluate(
            "document.querySelector('#panel-body').scrollWidth <= document.querySelector('#panel-body').clientWidth"
        )


def test_the_contents_of_a_report_run_no_script(browser: Browser, tmp_path: Path) -> None:
    document = hostile_report()
    with opened(browser, tmp_path, document) as page:
        for button in page.locator("main .opener, a.cell").all()[:40]:
            if button.is_visible():
                button.click()
                page.locator("#panel[open]").wait_for()
                page.keyboard.press("Escape")
        page.locator("#search").fill("script")
        assert page.evaluate("window.harmed") is None
        assert (
            page.locator("h1").inner_text() == HOSTILE.replace("\u2028", " ") + "zoo"
            or HOSTILE[:20] in page.locator("h1").inner_text()
        )
        assert page.locator("img, iframe").count() == 0


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    first = page.locator("#coverage .matrix thead a").first
    first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    label = page.evaluate("document.activeElement.ariaLabel")
    page.keyboard.press("Enter")
    assert panel(page).startswith(label.split(":")[0])
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.ariaLabel") == label
    assert page.locator("#coverage .matrix a[tabindex='0']").count() == 1
    node = page.locator("#graph .node[tabindex='0']")
    node.focus()
    before = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") != before
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


def test_every_control_has_an_accessible_name(page: Page) -> None:
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, a, input, select, [role=button], [role=img]')]"
        ".filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length) && e.offsetParent).map(e => e.outerHTML)"
    )
    assert unnamed == []


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_axe_finds_no_serious_problem(browser: Browser, tmp_path: Path, theme: str) -> None:
    document = made_report(("yolo",), SOCS[:1], shared=("decoder",), fails=3)
    with opened(browser, tmp_path, {**document, "against": changes(document)}, color_scheme=theme) as page:
        assert find_problems(page) == []
        page.locator("#coverage a.cell.failed").first.click()
        assert find_problems(page) == []


CONTRAST = """kinds => kinds.map(kind => {
  const probe = document.createElement('span'); probe.className = 'badge ' + kind; document.body.append(probe);
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const shade = color => { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data]
      .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const style = getComputedStyle(probe), [a, b] = [shade(style.color), shade(style.backgroundColor)]; probe.remove();
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); })"""


def test_light_and_dark_themes_are_readable(browser: Browser, tmp_path: Path, zoo: Document) -> None:
    shades = set()
    for system in ("light", "dark"):
        with opened(browser, tmp_path, zoo, color_scheme=system) as page:
            for chosen in ("", "light", "dark"):
                page.locator("#theme").select_option(chosen)
                shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
                shades.add((chosen or system, shade))
                ratios = page.evaluate(
                    CONTRAST,
                    ["whole", "partial", "failed-verify", "failed", "not-built", "built", "emitted", "restored", "current"],
                )
                assert min(ratios) > 4.5
    assert len(shades) == 2


def test_the_printed_page_is_complete(browser: Browser, tmp_path: Path, zoo: Document) -> None:
    with opened(browser, tmp_path, zoo, color_scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert not page.locator("#bar").is_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.pdf()[:5] == b"%PDF-"
        assert page.locator("main details[open]").count() == 0
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        digests = {file["sha256"] for output in zoo["outputs"] for file in output["files"]}
        digests |= {digest for toolchain in zoo["toolchains"] for one in toolchain["packages"] for digest in one["sha256"]}
        shown = page.eval_on_selector_all(".full", "all => all.filter(one => one.checkVisibility()).map(one => one.textContent)")
        assert digests - {*shown} == set()


def test_without_scripts_the_page_shows_tables(browser: Browser, tmp_path: Path, zoo: Document) -> None:
    with opened(browser, tmp_path, zoo, java_script_enabled=False) as page:
        rows = page.locator("noscript table").first.locator("tr")
        assert rows.count() == 1 + len(zoo["coverage"])
        text = page.locator("noscript").inner_text()
        assert all(step["id"] in text for step in zoo["steps"] if step["errors"])


def test_common_questions_are_answered_within_two_clicks(page: Page, zoo: Document) -> None:
    """Check five questions: models whole on SM8750, the reason if not, the longest step, the savings, the changes."""
    page.locator("#overview th a", has_text="phone-SM8750").click()
    whole = [row["model"] for row in zoo["coverage"] if row["target"] == "phone-SM8750" and row["outcome"] == "whole"]
    assert f"Whole ({len(whole)})" in panel(page)
    assert all(model in panel(page) for model in whole)
    partial = next(row for row in zoo["coverage"] if row["target"] == "phone-SM8750" and row["outcome"] == "partial")
    page.locator("#panel a", has_text=partial["model"]).first.click()
    assert partial["outside"][0]["operator"] in panel(page)
    assert partial["outside"][0]["reason"].replace("`", "") in panel(page)
    page.keyboard.press("Escape")
    longest = max((step for step in zoo["steps"] if step["work"] is not None), key=lambda step: float(step["work"]))
    assert longest["id"] in page.locator("#overview .tile", has_text="Time").inner_text()
    page.locator("#overview .tile a", has_text="Sharing").click()
    assert format_size(max(row["saved"] for row in zoo["sharing"] if row["measured"])) in page.locator("#sizes").inner_text()
    page.locator("#overview .tile a", has_text="Changes").click()
    against = zoo["against"]
    rows = [len(against[kind]) for kind in ("models", "outputs", "sources", "versions")] + [len(zoo["build"]["published"])]
    assert [table.locator("tbody tr").count() for table in page.locator("#differences table").all()] == rows


def test_details_have_an_address_that_can_be_sent(browser: Browser, tmp_path: Path) -> None:
    document = made_report(("yolo",), SOCS[:1], shared=("decoder",), fails=3)
    failed = next(step for step in document["steps"] if step["errors"])
    with opened(browser, tmp_path, document, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.locator("#overview .failures a.opener").first.click()
        assert panel(page).startswith(failed["id"])
        assert failed["log"] in panel(page)
        page.locator("#panel-copy").click()
        address = page.evaluate("navigator.clipboard.readText()")
        assert address == f"{page.url.partition('#')[0]}#step={failed['id']}"
        page.locator("#panel a", has_text=failed["target"]).first.click()
        assert page.url.endswith(f"#target={failed['target']}")
        page.keyboard.press("Escape")
        page.wait_for_url(lambda url: "#" not in url)
        for sent, title in (
            (address, failed["id"]),
            (f"{page.url}#model=yolo&target=phone-SM8650", "yolo for phone-SM8650"),
            (f"{page.url}#step=gone", "gone"),
        ):
            page.goto("about:blank")
            page.goto(sent)
            assert panel(page).startswith(title)


def test_the_overview_shows_lines_of_the_last_builds(page: Page, zoo: Document) -> None:
    labels = page.eval_on_selector_all("#overview .trend svg", "lines => lines.map(line => line.getAttribute('aria-label'))")
    assert [label.partition(", oldest first: ")[0] for label in labels] == [
        "Whole models in the last 5 builds",
        "Size in the last 5 builds",
        "Time in the last 6 builds",
        "Lowest cosine in the last 5 builds",
        "Lowest snr_db in the last 5 builds",
        "accuracy of yolo / yolo for phone-SM8650, any device in the last 5 builds",
        *(
            f"{figure}, {place} builds"
            for figure in ("Slowest p50 in ms", "Slowest load in ms", "Largest peak memory")
            for place in ("emulator: cpu from Example in the last 2", "device: SM-S918B in the last 3")
        ),
    ]
    texts = page.locator("#overview .trend .note").all_text_contents()
    assert "Slowest p50 in ms, device: SM-S918B: 4.2 to 4.6 in 3 builds, +0.2 in the last" in texts
    sizes = [format_size(build["totals"]["size"]) for build in zoo["history"] if build["totals"]]
    assert labels[1].endswith(f": {', '.join(sizes)}")


def test_figures_of_a_model_have_lines_of_its_device_only(page: Page) -> None:
    page.locator("#measurements table").wait_for()
    labels = page.eval_on_selector_all("#measurements .trend svg", "lines => lines.map(line => line.getAttribute('aria-label'))")
    assert {label.partition(" in the last")[0] for label in labels} == {
        f"{figure}, device: SM-S918B" for figure in ("Load, ms", "p50, ms", "Peak memory")
    }
    assert labels


def test_models_with_the_worst_coverage_come_first(page: Page) -> None:
    rows = page.eval_on_selector_all(
        "#coverage .matrix tbody tr", "rows => rows.map(row => [...row.querySelectorAll('td a')].map(cell => cell.className))"
    )
    kinds = ["cell failed", "cell failed-verify", "cell not-built", "cell partial", "cell on-the-CPU", "cell whole"]
    worst = [min(map(kinds.index, row)) for row in rows]
    assert worst == sorted(worst)
    assert len(set(worst)) > 1


def test_a_step_is_found_by_parts_of_its_name_and_shown_in_the_graph(page: Page) -> None:
    page.locator("#search").fill("vad SM8750 compile")
    page.keyboard.press("Enter")
    assert panel(page).startswith("compile:vad/phone-SM8750/vad")
    assert "never built" in panel(page)
    page.locator("#panel button", has_text="Show in the graph").click()
    assert page.locator("#graph .node.chosen title").text_content().startswith("compile:vad/phone-SM8750/vad")  # type: ignore[union-attr]


def test_a_cluster_of_the_graph_opens(page: Page, zoo: Document) -> None:
    groups = {step["group"] for step in zoo["steps"]}
    assert page.locator("#graph .node").count() == len(groups)
    page.locator("#graph .node", has=page.locator("title", has_text=re.compile("^vad:"))).click()
    assert page.locator("#graph .node").count() == sum(step["group"] == "vad" for step in zoo["steps"])
    page.locator("#graph .trail button").click()
    assert page.locator("#graph .node").count() == len(groups)


def test_an_area_opens_into_outputs_and_files(page: Page, zoo: Document) -> None:
    outputs = [output for output in zoo["outputs"] if output["targets"] == ["phone-SM8750"] and output["size"]]
    area = page.locator(f"#sizes .tile-of[title='phone-SM8750: {format_size(sum(one['size'] for one in outputs))}']")
    saved = page.locator("#sizes .tile-of.saved").count()
    assert saved == sum(row["measured"] for row in zoo["sharing"])
    area.click(position={"x": 5, "y": 5})
    shown = page.eval_on_selector_all("#sizes .tile-of.group", "tiles => tiles.map(tile => tile.title.split(':')[0])")
    assert sorted(shown) == sorted(output["path"].removeprefix("dist/zoo/") for output in outputs)
    page.locator("#sizes .tile-of.group").first.click(position={"x": 5, "y": 5})
    assert page.locator("#sizes .tile-of.leaf").count() + int(page.locator("#sizes .treemap .note").inner_text().split()[0]) == 2
    page.locator("#sizes .tile-of.leaf").first.click()
    assert panel(page).startswith("emit:")


def test_the_zoomed_timeline_has_a_bar_for_every_step(page: Page, zoo: Document) -> None:
    ran = sum(step["started"] is not None for step in zoo["steps"])
    spans = len(zoo["build"]["spans"])
    bars = "[...document.querySelectorAll('#timeline .event title')].map(title => title.textContent)"
    together = page.evaluate(bars)
    assert len(together) <= ran + spans
    page.locator("#timeline button[aria-label='Zoom in']").click()
    page.locator("#timeline button[aria-label='Later']").click()
    assert page.evaluate(bars) != together
    page.locator("#timeline button[aria-label='Show all of the build']").click()
    assert page.evaluate(bars) == together


def test_ten_thousand_steps_are_rendered_in_parts(browser: Browser, tmp_path: Path) -> None:
    document = large_report()
    with opened(browser, tmp_path, document) as page:
        assert page.evaluate("document.querySelectorAll('*').length") < 15_000
        assert 1 < page.locator("#graph .node").count() <= 50
        page.locator("#graph .node").first.click()
        assert page.locator("#graph .node").count() > 1
        assert page.locator("#coverage .matrix tbody tr").count() == 100


def test_an_empty_report_says_so(browser: Browser, tmp_path: Path) -> None:
    document = small_report()
    for name in ("steps", "coverage", "outputs", "sharing", "accuracy", "measurements", "models", "targets", "toolchains"):
        document[name] = []
    document["build"] = None
    with opened(browser, tmp_path, document) as page:
        assert "No build with any work has been recorded." in page.locator("#timeline").inner_text()
        assert "no build has measured models yet" in page.locator("#measurements").inner_text()
        assert "No output has been emitted yet" in page.locator("#sizes").inner_text()
