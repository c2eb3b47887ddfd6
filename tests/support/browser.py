"""Browser for tests of pages: the machine's Chromium or Edge, else Debian's packages of Chromium.

The packages are unpacked without root into the user's cache, and nothing is written elsewhere. `python
tests/support/browser.py` provides the browser and prints its path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import pytest
from playwright.sync_api import Browser, Error, sync_playwright

_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
_PLACES = (
    "{ProgramFiles(x86)}/Microsoft/Edge/Application/msedge.exe",
    "{ProgramFiles}/Microsoft/Edge/Application/msedge.exe",
    "{ProgramFiles}/Google/Chrome/Application/chrome.exe",
)
_MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
_NEW = re.compile(r"^Inst (\S+) \(", re.MULTILINE)
"""A package that `apt-get --simulate install` would install. For an upgrade, the old version precedes in brackets."""


@dataclass(frozen=True)
class Program:
    """Executable of a browser, and the environment variables that it needs."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """Open a headless browser. If there is none, skip the test, or fail it in CI."""
    program = find_browser()
    if program is None:
        assert "CI" not in os.environ, "there is no Chromium, and no apt-get that could fetch it"
        pytest.skip("there is no Chromium on this machine, and no apt-get that could fetch it")
    with sync_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, **program.environment}
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program.path, args=options, env=environment)
        try:
            yield browser
        finally:
            browser.close()


def find_browser() -> Program | None:
    """Return the browser of this machine, or unpack one in the cache."""
    for command in _COMMANDS:
        if found := shutil.which(command):
            return Program(Path(found))
    for path in _usual_places():
        return Program(path)
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epbuild-tests" / "chromium"
        return unpacked(cache)
    return None


def unpacked(cache: Path, *options: str) -> Program | None:
    """Unpack Debian's Chromium in `cache`, with the libraries that this machine lacks. `options` are passed to apt-get."""
    cache.mkdir(parents=True, exist_ok=True)
    root, ready = cache / "root", cache / "ready"
    with filelock.FileLock(cache / "lock"):
        if not ready.exists():
            try:
                _unpack(cache, root, options)
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"{error}: {error.stderr}")
                return None
            ready.touch()
    folders = {path.parent for path in root.glob("usr/lib/**/*.so*")}
    return Program(root / "usr/lib/chromium/chromium", {"LD_LIBRARY_PATH": os.pathsep.join(map(str, sorted(folders)))})


def _unpack(cache: Path, root: Path, options: tuple[str, ...]) -> None:
    """Fetch package lists and packages into folders of the cache with verified signatures, and unpack the packages."""
    for folder in ("lists/partial", "archives/partial", "packages"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    own = [f"Dir::State::lists={cache / 'lists'}", f"Dir::Cache={cache}", "APT::Sandbox::User=", "Debug::NoLocking=1"]
    apt = ["apt-get", *(part for option in own for part in ("-o", option)), *options]
    _run([*apt, "-qq", "update"], cache)
    packages = _NEW.findall(_run([*apt, "--simulate", "--no-install-recommends", "install", "chromium"], cache))
    _run([*apt, "-qq", "download", *packages], cache / "packages")
    for package in (cache / "packages").glob("*.deb"):
        _run(["dpkg-deb", "--extract", str(package), str(root)], cache)
    shutil.rmtree(cache / "packages")
    shutil.rmtree(cache / "lists")


def _run(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=600).stdout


def _usual_places() -> Iterator[Path]:
    for place in _PLACES:
        try:
            path = Path(place.format_map(os.environ))
        except KeyError:
            continue
        if path.exists():
            yield path
    if _MAC.exists():
        yield _MAC


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_browser()}\n")
    except Error as error:
        sys.exit(str(error))
