"""Progress of an installation, as uv logs it."""

from __future__ import annotations

import re
import threading
from typing import Protocol

from epbuild.core.installer import UvListener

_STARTED = re.compile(r"\s*Downloading (\S+) \(([0-9.]+)([KMGT]?i?B)\)")
_ARRIVED = re.compile(r"\s*Downloaded (\S+)")
_STAGES = re.compile(r"(Resolved|Building|Prepared|Installed) ")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST_NAMES = 3


class InstallReport(Protocol):
    """Gets how far an installation is."""

    def installing(self, doing: str, done: int, total: int) -> None:
        """What it does, and how many bytes have been fetched of those that are known to be needed."""


class InstallProgress(UvListener):
    """Reports each change of what uv does."""

    def __init__(self, report: InstallReport, cancelled: threading.Event) -> None:
        super().__init__(cancelled)
        self._report = report
        self._sizes: dict[str, int] = {}
        self._arrived: set[str] = set()

    def logged(self, line: str) -> None:
        if started := _STARTED.match(line):
            self._sizes[started[1]] = int(float(started[2]) * _UNITS.get(started[3], 1))
        elif arrived := _ARRIVED.match(line):
            self._arrived.add(arrived[1])
        elif not _STAGES.match(line):
            return
        left = [name for name in self._sizes if name not in self._arrived]
        more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
        doing = f"fetching {', '.join(left[:_MOST_NAMES])}{more}" if left else _in_lower_case(line.strip())
        done = sum(size for name, size in self._sizes.items() if name in self._arrived)
        self._report.installing(doing, done, sum(self._sizes.values()))


def _in_lower_case(line: str) -> str:
    return line[:1].lower() + line[1:]
