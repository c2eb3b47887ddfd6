"""Results of a benchmark: series of samples, some with a limit, as values and as a JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FORMAT = 1

Unit = Literal["s", "MB", "x"]


@dataclass(frozen=True)
class Series:
    """Samples of one measurement. The median must not exceed `limit`, if there is one."""

    what: str
    unit: Unit
    samples: tuple[float, ...]
    limit: float | None = None

    @property
    def median(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples)

    @property
    def kept(self) -> bool:
        """True if there is no limit, or the median is within it."""
        return self.limit is None or self.median <= self.limit


@dataclass(frozen=True)
class Result:
    """Result of one benchmark: the question, the measurements, and notes for the reader."""

    question: str
    series: tuple[Series, ...]
    notes: str

    @property
    def kept(self) -> bool:
        """True if all limits are kept."""
        return all(series.kept for series in self.series)


def save(path: Path, name: str, result: Result, machine: Mapping[str, Any]) -> None:
    """Write a result to a file atomically. The file has no date in it; its own dates show its age."""
    document = {
        "format": FORMAT,
        "benchmark": name,
        "question": result.question,
        "machine": dict(machine),
        "kept": result.kept,
        "series": [
            {
                "what": series.what,
                "unit": series.unit,
                "median": series.median,
                "min": min(series.samples),
                "max": max(series.samples),
                "limit": series.limit,
                "kept": series.kept,
                "samples": list(series.samples),
            }
            for series in result.series
        ],
        "notes": result.notes,
    }
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)
