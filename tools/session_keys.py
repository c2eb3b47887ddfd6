"""Session keys in the libraries of ONNX Runtime's wheels, for `epbuild/catalog/session_keys.toml`.

`python -m tools.session_keys onnxruntime==1.31.1 ...` installs these wheels into a temporary folder, and writes their keys into
the file. Other releases in the file are kept.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import epbuild.catalog
from epbuild.catalog.options import release_numbers

PLACE = Path(epbuild.catalog.__file__).with_name("session_keys.toml")
_TITLE = "# Written by `python -m tools.session_keys`: the session keys in the library of each ONNX Runtime release.\n"
_KEY = re.compile(
    rb"(?<![A-Za-z0-9_./])(?:session|optimization|memory|mlas|ep)(?:\.[a-z0-9]+(?:_[a-z0-9]+)*)+(?![A-Za-z0-9_.:(/-])"
)
_NAME_OF_SOURCE_FILE = re.compile(r".*\.(?:cc|h)")


def find_keys(site: Path) -> list[str]:
    """Return the session keys in the library of onnxruntime's Python module, below the folder `site` with its packages.

    A compiler may split a string into several instructions, so a library may have more keys.
    """
    [library] = site.glob("onnxruntime/capi/onnxruntime_pybind11_state*")
    found = {match[0].decode() for match in _KEY.finditer(library.read_bytes())}
    return sorted(key for key in found if not _NAME_OF_SOURCE_FILE.fullmatch(key))


def read_releases() -> dict[str, list[str]]:
    """Return the keys in the file, by release."""
    return {release: keys.split() for release, keys in tomllib.loads(PLACE.read_text(encoding="utf-8")).items()}


def _format(releases: dict[str, list[str]]) -> str:
    # Python reads a text ten times as fast as a list.
    texts = {release: "\n".join(releases[release]) for release in sorted(releases, key=release_numbers)}
    return _TITLE + "".join(f"\"{release}\" = '''\n{text}\n'''\n" for release, text in texts.items())


def main(requirements: list[str]) -> None:
    """Write the keys of these wheels."""
    releases = read_releases() if PLACE.exists() else {}
    for requirement in requirements:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", folder, requirement]
            subprocess.run(command, check=True)
            releases[requirement.partition("==")[2]] = find_keys(Path(folder))
    PLACE.write_text(_format(releases), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
