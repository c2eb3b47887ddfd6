"""Locked toolchains as `pylock.toml` files (PEP 751) for other installers.

Unlike epbuild's own lock, the file contains the address of each package file. So it works only with the index that was used for the lock.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild.toolchain.lock import FileOrigin, LockedToolchain, Package
from epbuild.toolchain.lock_file import format_toml_value
from epbuild.toolchain.platforms import MARKERS


def get_pylock_name(toolchain: str) -> str:
    """Return the file name for a toolchain. PEP 751 allows no period between `pylock.` and `.toml`."""
    return f"pylock.{toolchain.replace('.', '-')}.toml"


def format_pylock(toolchain: LockedToolchain) -> str | None:
    """Return the toolchain as the text of a `pylock.toml`. Return None if no locked environment lists the files of its packages.

    A package with different versions on different platforms has an entry for each version.
    """
    platforms = {name: environment for name, environment in sorted(toolchain.platforms.items()) if not environment.is_installed}
    if not platforms:
        return None
    origins: dict[str, FileOrigin] = {}
    releases = defaultdict[tuple[str, str], dict[str, Package]](dict)
    for platform, environment in platforms.items():
        origins |= environment.origins
        for package in environment.packages:
            releases[package.name, package.version][platform] = package
    lines = ['lock-version = "1.0"', f"environments = {format_toml_value([MARKERS[platform] for platform in platforms])}"]
    pythons = {environment.python.rpartition("-")[2] for environment in platforms.values()}
    if len(pythons) == 1:
        lines.append(f"requires-python = {format_toml_value(f'=={pythons.pop()}.*')}")
    lines.append('created-by = "epbuild"')
    for (name, version), packages in sorted(releases.items()):
        lines += ["", "[[packages]]", f"name = {format_toml_value(name)}", f"version = {format_toml_value(version)}"]
        if len(packages) < len(platforms):
            lines.append(f"marker = {format_toml_value(' or '.join(f'({MARKERS[platform]})' for platform in packages))}")
        lines += _format_files({digest: origins[digest] for package in packages.values() for digest in package.files})
    return "\n".join([*lines, ""])


def read_origins(document: Mapping[str, Any], folder: Path) -> dict[str, FileOrigin]:
    """Return the origin of each file that a `pylock.toml` in `folder` lists, by the SHA-256 of the file."""
    packages = document.get("packages", ())
    files = [(file, True) for package in packages for file in package.get("wheels", ())]
    files += [(package["sdist"], False) for package in packages if "sdist" in package]
    origins = {}
    for file, is_wheel in files:
        if "sha256" in file.get("hashes", {}):
            place = ("url", str(file["url"])) if "url" in file else ("path", os.path.normpath(folder / file["path"]))
            origins[str(file["hashes"]["sha256"])] = FileOrigin(place, is_wheel)
    return origins


def _format_files(origins: Mapping[str, FileOrigin]) -> Iterator[str]:
    """Yield the lines for a package's source distribution and wheels."""
    sources: list[str] = []
    wheels: list[str] = []
    for digest, origin in sorted(origins.items(), key=lambda item: item[1].place):
        kind, place = origin.place
        entry = f"{{ {kind} = {format_toml_value(place)}, hashes = {{ sha256 = {format_toml_value(digest)} }} }}"
        (wheels if origin.is_wheel else sources).append(entry)
    if sources:
        yield f"sdist = {sources[0]}"  # a release has at most one
    if wheels:
        yield "wheels = ["
        yield from (f"    {entry}," for entry in wheels)
        yield "]"
