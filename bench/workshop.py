"""Working folder of a benchmark with a store of its own, and the commands that run there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from epbuild import __version__
from epbuild.core.errors import EpbuildError
from epbuild.toolchain.provision import Requirements, provision

CHECKOUT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
_QUOTED_LINES = 10

SETTLED_SECONDS = 2.5
"""Pause in seconds between changes of files and a measurement. epbuild does not trust the times of a file that is younger than two
seconds, and reads the file again."""

Said = Callable[[str], bool]
"""Check that the output of a command shows the measured work."""


class Unable(Exception):
    """Error: a benchmark cannot run here. The message has the reason."""


class Workshop:
    """Working folder in which epbuild finds an empty store.

    With `processor_time`, commands are measured by the processor time of all their processes instead of the elapsed time. That
    value stays comparable on a machine with other load.
    """

    def __init__(self, folder: Path, *, processor_time: bool = False) -> None:
        self.folder = folder.resolve()
        self.processor_time = processor_time
        self.cache = self.folder / "cache"
        self._toolchains = self.cache / "toolchains"

    def epbuild(self, *arguments: str | Path) -> list[str]:
        """Return the command line of the measured epbuild: the installed program that users start."""
        program = Path(sys.executable).with_name("epbuild.exe" if os.name == "nt" else "epbuild")
        return [*([str(program)] if program.exists() else [sys.executable, "-m", "epbuild"]), *map(str, arguments)]

    def seconds(
        self,
        command: Sequence[str | Path],
        folder: Path | None = None,
        said: Said = lambda text: True,
        codes: Sequence[int] = (0,),
        more: Mapping[str, str] | None = None,
    ) -> float:
        """Return the duration of a command. `more` are variables of its environment.

        Raises Unable if the command exits with a code outside `codes`, or if `said` rejects its output.
        """
        begin = self._clock()
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder or self.folder,
            env={**self.environment(), **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        taken = self._clock() - begin
        text = done.stdout.decode("utf-8", "replace").strip()
        if done.returncode not in codes or not said(text):
            last = text.splitlines()[-_QUOTED_LINES:]
            raise Unable(
                "\n".join([f"{subprocess.list2cmdline(done.args)} exited with status {done.returncode} and printed:", *last])
            )
        return taken

    def inner(self, name: str) -> Workshop:
        """Return a workshop in a subfolder, with a store of its own."""
        (self.folder / name).mkdir()
        return Workshop(self.folder / name, processor_time=self.processor_time)

    def _clock(self) -> float:
        if not self.processor_time:
            return time.perf_counter()
        from resource import RUSAGE_CHILDREN, getrusage  # missing on Windows

        used = getrusage(RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def environment(self) -> dict[str, str]:
        """Return the environment in which epbuild finds the workshop's store."""
        # As users run it: with cached bytecode, even if a developer's settings disable that.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        own = {
            "EPBUILD_CACHE_DIR": self.cache,
            "EPBUILD_TOOLCHAIN_DIR": self._toolchains,
            "DVC_SITE_CACHE_DIR": self.folder / "dvc",
            "DVC_NO_ANALYTICS": "1",
        }
        return {**kept, **{name: str(value) for name, value in own.items()}}

    def provision(self, packages: Sequence[str]) -> Path:
        """Provision the toolchain of a recipe with these packages, and return its interpreter. Raises Unable."""
        try:
            return provision(Requirements(tuple(packages)), self._toolchains, name="bench", where=None)
        except EpbuildError as error:
            raise Unable(str(error)) from error

    def stored(self, files: Sequence[Path]) -> list[str]:
        """Move files into the store, and return their digests. Raises Unable."""
        digests: list[str] = []

        def note(text: str) -> bool:
            digests.extend(text.split())
            return len(digests) == len(files)

        self.seconds([sys.executable, SCRIPTS / "store.py", self.cache, *files], said=note)
        for path in files:
            path.unlink()
        return digests

    def forget_results(self) -> None:
        """Remove everything from the store except toolchains."""
        for name in ("cas", "actions"):
            shutil.rmtree(self.cache / name, ignore_errors=True)


def machine() -> dict[str, Any]:
    """Return facts about the machine and the measured program that readers of the numbers need."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "epbuild": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load": load,
    }
