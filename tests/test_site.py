"""Documentation site: all documents with the same text as on GitHub, and no dependency on another site."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import cmarkgfm
import pytest
import yaml
from cmarkgfm.cmark import Options
from playwright.sync_api import Error

from epbuild.commands.schema import SCHEMAS, build_editor_schema
from tests.support.axe import find_problems
from tests.support.browser import opened_browser
from tests.support.http_servers import Quiet, answering
from tools.site import document

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
COUNTED = {"h1", "h2", "h3", "h4", "li", "ol", "pre", "table", "td", "th", "ul"}
"""Elements that differ between the two dialects of Markdown unless a document is written for both."""

FIRST_FOUND = {
    "install": "getting-started/installation/",
    "dynamic shape": "guides/input-sizes/",
    "environment variable": "reference/environment/",
    "init": "getting-started/tutorial/",
    "quantize": "guides/preparations/",
    "cache": "guides/remote-cache/",
    "Windows": "guides/windows/",
}
"""Pages that the search must list first."""
IS_FIRST = "page => document.querySelector('a.md-search-result__link')?.href.split('?')[0] == page"


class Settings(yaml.SafeLoader):
    """Loader of mkdocs.yml that ignores the names of Python functions."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[str]:
    def pages(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            for child in node.values() if isinstance(node, Mapping) else node:
                yield from pages(child)

    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Settings)
    return list(pages(settings["nav"]))


def test_every_document_is_in_the_navigation() -> None:
    assert sorted(navigation()) == DOCUMENTS


@pytest.mark.parametrize(
    ("folder", "text", "expected"),
    [
        ("docs", "![a](flow.svg) [`b`](../recipes)", "![a](flow.svg) [`b`](https://github.com/epbuild/epbuild/tree/main/recipes)"),
        ("docs/guides", "[a](../reference)", "[a](../reference/README.md)"),
        ("docs", "[a](../LICENSE) [b](ci/x.yml)", "[a](https://github.com/epbuild/epbuild/blob/main/LICENSE) [b](ci/x.yml)"),
        ("docs/guides", "[a](../../recipes/llm.yaml)", "[a](https://github.com/epbuild/epbuild/blob/main/recipes/llm.yaml)"),
        ("docs/internals", "[a](../facts.md#archives) [b](#here)", "[a](../facts.md#archives) [b](#here)"),
        ("docs", "<!-- run in empty -->\n```console\n$ a <!-- [b](../c) -->\n```\n", "```console\n$ a <!-- [b](../c) -->\n```\n"),
        ("docs", "[a](https://example.com/../x)", "[a](https://example.com/../x)"),
    ],
)  # fmt: skip
def test_links_lead_to_the_site_or_to_github(folder: str, text: str, expected: str) -> None:
    assert document(text, folder) == expected


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in strict mode, which fails for broken links and anchors. There is no network."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """Content of a page: the elements inside its article, or the whole page without one, and the loaded files."""

    def __init__(self, html: str, within: str | None) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.loads: list[str] = []
        self._within, self._inside = within, within is None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in {"script", "img", "iframe"} and values.get("src"):
            self.loads.append(str(values["src"]))
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}:
            self.loads.append(str(values.get("href")))
        self._inside |= tag == self._within
        if self._inside:
            self.elements[tag] += tag in COUNTED

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != self._within


def pages(site: Path) -> dict[str, Page]:
    """Return every page of the site by its source document."""
    found = {}
    for name in DOCUMENTS:
        stem = name.removesuffix(".md")
        stem = stem[: -len(stem.rpartition("/")[2])].rstrip("/") if stem.endswith(("index", "README")) else stem
        found[name] = Page((site / stem / "index.html").read_text(encoding="utf-8"), "article")
    return found


@pytest.mark.gate
def test_a_page_equals_its_github_rendering_and_loads_nothing_external(site: Path) -> None:
    for name, page in pages(site).items():
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        forge = Page(cmarkgfm.github_flavored_markdown_to_html(text, options=Options.CMARK_OPT_UNSAFE), None)
        assert page.elements["h1"] == 1, name
        assert +page.elements == +forge.elements, name
        assert [address for address in page.loads if re.match(r"(https?:)?//", address)] == [], name


@pytest.mark.gate
def test_every_page_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert len(found) == len(DOCUMENTS)


@pytest.mark.gate
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_site_serves_each_schema_under_its_own_name(site: Path, name: str) -> None:
    served = json.loads((site / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert served == build_editor_schema(name)
    assert served["$id"] == f"https://epbuild.github.io/epbuild/schemas/{name}.schema.json"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the site, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(FileHandler, directory=str(site)))
    with answering(server):
        yield f"http://127.0.0.1:{server.server_port}/"


class FileHandler(Quiet, SimpleHTTPRequestHandler):
    """Handler that serves files and logs nothing, because the browser reports failures."""


@pytest.mark.exhaustive
def test_axe_finds_no_serious_problem_on_the_site(address: str) -> None:
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    with opened_browser() as browser:
        for theme in themes:
            page = browser.new_page(color_scheme=theme)
            for name in ("", "getting-started/tutorial/", "reference/errors/"):
                page.goto(f"{address}{name}", timeout=120_000)  # the list of errors is long
                assert find_problems(page) == [], name


@pytest.mark.gate
def test_search_and_copy_work_on_a_desktop_and_on_a_phone(address: str) -> None:
    wrong: list[str] = []
    with opened_browser() as browser:
        context = browser.new_context(viewport={"width": 360, "height": 800}, permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith(address) else None)
        for name in ("", "getting-started/tutorial/", "concepts/other-tools/", "guides/numbers/", "reference/recipe/"):
            page.goto(f"{address}{name}", wait_until="networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, f"{name} is wider than a phone"
        page.set_viewport_size({"width": 1600, "height": 1000})
        page.goto(f"{address}getting-started/tutorial/", wait_until="networkidle")
        page.locator(".highlight", has_text="epbuild init models").locator("button").click()
        assert page.evaluate("navigator.clipboard.readText()").strip() == "epbuild init models --ep qnn --soc SM8750"
        found = page.locator("a.md-search-result__link")
        page.locator("input.md-search__input").click()
        page.keyboard.insert_text("padding never s")
        page.keyboard.type("et", delay=50)  # as users type: each key queries the index once it is loaded
        page.wait_for_function(
            "document.querySelector('.md-search-result__meta').textContent.includes('matching')", timeout=120_000
        )
        found.first.wait_for(timeout=120_000)
        assert "internals/facts/" in "".join(one.get_attribute("href") or "" for one in found.all())
        for query, first in FIRST_FOUND.items():
            page.locator("input.md-search__input").fill(query[:-1])
            page.keyboard.type(query[-1])
            try:
                page.wait_for_function(IS_FIRST, arg=f"{address}{first}", timeout=10_000)
            except Error:
                pytest.fail(f"search for {query!r} does not find {first} first, but {found.first.get_attribute('href')}")
    assert wrong == []
