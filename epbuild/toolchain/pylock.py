"""A locked toolchain as a `pylock.toml` (PEP 751), which other installers read.

Unlike epbuild's own lock, the file names the address of each package file: it works with the index that the lock was made from.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild.toolchain.lock import FileOrigin, LockedToolchain, Package
from epbuild.toolchain.lock_file import toml_value
from epbuild.toolchain.platforms import MARKERS


def pylock_name(toolchain: str) -> str:
    """Return the file name of a toolchain. PEP 751 allows no full stop between `pylock.` and `.toml`."""
    return f"pylock.{toolchain.replace('.', '-')}.toml"


def pylock_text(toolchain: LockedToolchain) -> str | None:
    """Return the text of the file, or None if all environments exist already: the files of their packages are unknown.

    A package that has different versions on different platforms has an entry for each.
    """
    platforms = {name: found for name, found in sorted(toolchain.platforms.items()) if not found.is_installed}
    if not platforms:
        return None
    origins: dict[str, FileOrigin] = {}
    releases = defaultdict[tuple[str, str], dict[str, Package]](dict)
    for platform, environment in platforms.items():
        origins |= environment.origins
        for package in environment.packages:
            releases[package.name, package.version][platform] = package
    lines = ['lock-version = "1.0"', f"environments = {toml_value([MARKERS[platform] for platform in platforms])}"]
    pythons = {environment.python.rpartition("-")[2] for environment in platforms.values()}
    if len(pythons) == 1:
        lines.append(f"requires-python = {toml_value(f'=={pythons.pop()}.*')}")
    lines.append('created-by = "epbuild"')
    for (name, version), found in sorted(releases.items()):
        lines += ["", "[[packages]]", f"name = {toml_value(name)}", f"version = {toml_value(version)}"]
        if len(found) < len(platforms):
            lines.append(f"marker = {toml_value(' or '.join(f'({MARKERS[platform]})' for platform in found))}")
        lines += _files({digest: origins[digest] for package in found.values() for digest in package.files})
    return "\n".join([*lines, ""])


def origins_of(document: Mapping[str, Any], folder: Path) -> dict[str, FileOrigin]:
    """Return the origin of each file of a `pylock.toml` in `folder`, by its SHA-256."""
    packages = document.get("packages", ())
    files = [(file, True) for package in packages for file in package.get("wheels", ())]
    files += [(package["sdist"], False) for package in packages if "sdist" in package]
    return {
        str(file["hashes"]["sha256"]): FileOrigin(
            ("url", str(file["url"])) if "url" in file else ("path", os.path.normpath(folder / file["path"])), is_wheel
        )
        for file, is_wheel in files
        if "sha256" in file.get("hashes", {})
    }


def _files(origins: Mapping[str, FileOrigin]) -> Iterator[str]:
    entries = {
        digest: f"{{ {origin.place[0]} = {toml_value(origin.place[1])}, hashes = {{ sha256 = {toml_value(digest)} }} }}"
        for digest, origin in sorted(origins.items(), key=lambda item: item[1].place)
    }
    sources = [entry for digest, entry in entries.items() if not origins[digest].is_wheel]
    wheels = [entry for digest, entry in entries.items() if origins[digest].is_wheel]
    if sources:
        yield f"sdist = {sources[0]}"  # a release has one
    if wheels:
        yield "wheels = ["
        yield from (f"    {entry}," for entry in wheels)
        yield "]"
