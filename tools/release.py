"""`python -m tools.release TAG`: notes of a release from CHANGELOG.md. Fails if tag, version and changelog differ."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from epbuild import __version__

_FILES = "https://github.com/epbuild/epbuild/blob"
_CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def main() -> int:
    """Print the notes of a release. Return exit code 1 if tag, version and changelog differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=main.__doc__)
    parser.add_argument("tag", help="such as v0.1.0")
    tag = parser.parse_args().tag
    try:
        sys.stdout.write(release_notes(_CHANGELOG.read_text(encoding="utf-8"), tag, __version__))
    except ValueError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def release_notes(changelog: str, tag: str, version: str) -> str:
    """Return a version's section of a changelog, with links to the files of the tag. Raises ValueError if the three differ."""
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, and epbuild/__init__.py has the version {version}")
    heading = rf"## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}\n"
    found = re.search(rf"^{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`")
    return re.sub(r"\]\((?!https?:|#)", f"]({_FILES}/{tag}/", found[1].strip()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
