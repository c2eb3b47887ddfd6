"""Reader of the reports that sizes of results are compared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from epbuild.core.canonical import parse_json
from epbuild.core.errors import Problem
from epbuild.core.records import convert
from epbuild.core.safepath import open_regular
from epbuild.plan.steps import Baseline
from epbuild.recipe.model import Reference

_FORMAT = 1
_MAX_BYTES = 1 << 30
_HINT = "Write the path of a report: `epbuild report -o release.json`."


class _Step(Struct, frozen=True):
    action: str
    size: Annotated[int, Meta(ge=0)] | None = None


class _Report(Struct, frozen=True):
    """Part of a report that is compared. The whole report is `commands.reporting.values.Report`."""

    format: int
    steps: tuple[_Step, ...]


class Baselines:
    """Reader of reports that reads each file once. Paths are relative to the folder `base`. Unusable files are added to `problems`."""

    def __init__(self, base: Path, problems: list[Problem]) -> None:
        self._base = base
        self._problems = problems
        self._sizes: dict[str, Mapping[str, int | None]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of the reports."""
        return tuple(self._base / name for name in self._sizes)

    def find(self, action: str, report: Reference) -> Baseline:
        """Return the size of an action's result in a report."""
        if report.name not in self._sizes:
            self._sizes[report.name] = self._read(report)
        return Baseline(report.name, self._sizes[report.name].get(action))

    def _read(self, report: Reference) -> Mapping[str, int | None]:
        """Return the total bytes of the steps of each action, by action. They are None if the report lacks the size of a step."""
        try:
            with open_regular(self._base / report.name) as file:
                content = file.read(_MAX_BYTES + 1)
            found = convert(parse_json(content), _Report) if len(content) <= _MAX_BYTES else None
        except OSError as error:
            self._add_problem(report, f"cannot be read: {error.strerror or error}")
            return {}
        except (ValueError, RecursionError):  # includes ValidationError
            found = None
        if found is None or found.format != _FORMAT:
            self._add_problem(report, "is not a report as JSON that this epbuild can read")
            return {}
        sizes: defaultdict[str, list[int | None]] = defaultdict(list)
        for step in found.steps:
            sizes[step.action].append(step.size)
        return {action: None if None in of else sum(filter(None, of)) for action, of in sizes.items()}

    def _add_problem(self, report: Reference, why: str) -> None:
        self._problems.append(Problem("EPB298", f"the baseline '{report.name}' {why}", report.where, _HINT))
