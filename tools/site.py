"""What mkdocs is to do with the documents: README.md as the home page, the schemas, and links that leave docs/ to the forge."""

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
_ALONE = (_HOME, "tutorial.md")
"""Pages that are no part of a group: beside them is nothing to choose from."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies elsewhere in the repository. The schema of recipes is the one for editors, with every EP's options."""
    files.append(File.generated(config, _HOME, content=(ROOT / "README.md").read_text(encoding="utf-8")))
    schemas = {path.name: path for path in (ROOT / "schemas").glob("*.schema.json")}
    schemas |= {path.name: path for path in (ROOT / "docs" / "reference").glob("*.schema.json")}
    for name, path in schemas.items():
        files.append(File.generated(config, f"schemas/{name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A document as the site has it: without comments, and with links that work from there."""
    if page.file.src_uri in _ALONE:
        page.meta["hide"] = ["navigation"]
    return document(markdown, "" if page.file.src_uri == _HOME else posixpath.join("docs", posixpath.dirname(page.file.src_uri)))


def document(markdown: str, folder: str) -> str:
    """A document of a folder of the repository as the site has it, which has `docs` for its root."""
    here = folder if folder.startswith("docs") else "docs"

    def linked(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        if target == "docs" or target.startswith("docs/"):
            index = "/README.md" if (ROOT / target).is_dir() else ""
            return posixpath.relpath(f"{target}{index}", here)
        return f"{_FORGE}/{'tree' if (ROOT / target).is_dir() else 'blob'}/main/{target}"

    return outside_fences(markdown, lambda text: _LINK.sub(linked, _COMMENT.sub("", text)))


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """A document with all changed that is in no fenced block."""
    return "".join(part if number % 2 else change(part) for number, part in enumerate(_FENCED.split(markdown)))
