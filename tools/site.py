"""Hooks of mkdocs: add the schemas to the site, and turn links out of docs/ into links to the forge."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_FORGE = "https://github.com/epbuild/epbuild"
_FENCED = re.compile(r"(^[ ]*```.*?^[ ]*```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_HOME = "index.md"
_BOOSTS = {
    "internals/": 0.2,
    "reference/": 0.3,
    "reference/environment.md": 2.0,
    "guides/input-sizes.md": 2.0,
    "guides/remote-cache.md": 2.0,
    "getting-started/tutorial.md": 2.0,
}
"""Weights of pages in the search by path or folder. Front matter would also be visible on the forge."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the schemas. That of recipes is the one for editors, with every EP's options."""
    schemas = {path.name: path for path in (ROOT / "schemas").glob("*.schema.json")}
    schemas |= {path.name: path for path in (ROOT / "docs" / "reference").glob("*.schema.json")}
    for name, path in schemas.items():
        files.append(File.generated(config, f"schemas/{name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page for the site, without comments, and set its weight in the search. The home page has no navigation beside it."""
    folder = f"{posixpath.dirname(page.file.src_uri)}/"
    page.meta["search"] = {"boost": _BOOSTS.get(page.file.src_uri, _BOOSTS.get(folder, 1.0))}
    if page.file.src_uri == _HOME:
        page.meta["hide"] = ["navigation"]
    return document(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)).rstrip("/"))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the search dialog of the theme for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def document(markdown: str, folder: str) -> str:
    """Return a document of `folder`, a folder of the repository, with links for the site. The root of the site is `docs`."""
    here = folder if folder.startswith("docs") else "docs"

    def linked(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        if target == "docs" or target.startswith("docs/"):
            index = "/README.md" if (ROOT / target).is_dir() else ""
            return posixpath.relpath(f"{target}{index}", here)
        return f"{_FORGE}/{'tree' if (ROOT / target).is_dir() else 'blob'}/main/{target}"

    return outside_fences(markdown, lambda text: _LINK.sub(linked, _COMMENT.sub("", text)))


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Apply `change` to everything outside fenced blocks."""
    return "".join(part if number % 2 else change(part) for number, part in enumerate(_FENCED.split(markdown)))
