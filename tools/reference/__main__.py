"""`python -m tools.reference [--write] [FOLDER]`: compare the reference pages of a checkout with their sources, or write them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.reference.pages import build_reference_pages
from tools.reference.report_schema import build_report_schema

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "docs" / "reference"
_REPORT_SCHEMA = _ROOT / "schemas" / "report.schema.json"


def main() -> int:
    """Compare or write the pages. Return exit code 1 if they differ from their sources."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages, and remove obsolete ones")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=_FOLDER, help="folder of the pages; default: docs/reference of this checkout"
    )
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.folder)
        if arguments.folder == _FOLDER:
            _REPORT_SCHEMA.write_text(build_report_schema(), encoding="utf-8", newline="\n")
    stale = find_differences(arguments.folder)
    for name in stale:
        sys.stderr.write(f"{arguments.folder / name} is out of date; run `python -m tools.reference --write`\n")
    return 1 if stale else 0


def find_differences(folder: Path) -> list[str]:
    """Return the names of pages that are missing, out of date, or obsolete."""
    pages = build_reference_pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    return sorted(name for name in pages.keys() | there.keys() if pages.get(name) != there.get(name))


def write(folder: Path) -> None:
    """Write the pages into the folder, and remove obsolete ones."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = build_reference_pages()
    for path in folder.iterdir():
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    sys.exit(main())
