"""Listener that keeps the reports and logs of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epbuild.toolchain.process import WorkerListener


class WorkerWords(WorkerListener):
    def __init__(self) -> None:
        self.reports: list[Mapping[str, Any]] = []
        self.words: list[str] = []

    def reported(self, report: Mapping[str, Any]) -> None:
        self.reports.append(report)

    def logged(self, line: str) -> None:
        self.words.append(line)
