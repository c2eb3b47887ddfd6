"""`python -m tools.page_libraries [--write]`: the libraries of the report's page, compared with what npm has, or fetched.

`epbuild/report/html/page/libraries/pinned.json` has each package with its version, the digest of its archive as npm has it
(`integrity`), the file in it that the page takes, and the SHA-256 of that. To renew one, write another version and run with
`--write --renew`, which takes what npm has and writes its digests: look at the difference before you commit it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "epbuild" / "report" / "html" / "page" / "libraries"
_PINNED = FOLDER / "pinned.json"


def main() -> int:
    """Exit code 1: a library is not what its pin says."""
    parser = argparse.ArgumentParser(prog="python -m tools.page_libraries", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    parser.add_argument("--renew", action="store_true", help="take what npm has for the versions, and write its digests")
    arguments = parser.parse_args()
    pinned: list[dict[str, str]] = json.loads(_PINNED.read_text(encoding="utf-8"))
    stale = []
    for library in pinned:
        fetched = fetch(library, renew=arguments.renew)
        if arguments.write:
            for name, content in fetched.items():
                (FOLDER / name).write_bytes(content)
        stale += [
            name for name, content in fetched.items() if not (FOLDER / name).exists() or (FOLDER / name).read_bytes() != content
        ]
    if arguments.renew:
        _PINNED.write_text(json.dumps(pinned, indent=2) + "\n", encoding="utf-8")
    for name in stale:
        sys.stderr.write(f"{FOLDER / name} is not what npm has; run `python -m tools.page_libraries --write`\n")
    return 1 if stale else 0


def fetch(library: dict[str, str], *, renew: bool = False) -> Mapping[str, bytes]:
    """The file of a library and its licence, by name, out of the package that npm fetches; `renew` changes the digests of `library`."""
    with tempfile.TemporaryDirectory() as folder:
        package = f"{library['package']}@{library['version']}"
        command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, package]
        subprocess.run(command, check=True, cwd=folder, timeout=300, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        digest = f"sha512-{base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()}"
        with tarfile.open(archive) as files:
            found = {
                name: _member(files, library[path])
                for name, path in ((library["file"], "path"), (library["licence"], "licence_path"))
            }
    if renew:
        library.update(integrity=digest, sha256=hashlib.sha256(found[library["file"]]).hexdigest())
    if digest != library["integrity"]:
        sys.exit(f"{package} has the digest {digest}, and {_PINNED} has {library['integrity']}")
    return found


def _member(files: tarfile.TarFile, path: str) -> bytes:
    member = files.extractfile(path)
    if member is None:
        sys.exit(f"expected a file, found a directory: {path}")
    return member.read()


if __name__ == "__main__":
    sys.exit(main())
