"""Records of builds in a workspace: the steps of each build and their times.

A record is a JSON file in `.epbuild/reports`. A build writes its record when it ends, even if it fails or is interrupted. A
killed build has no record, so reports lack its timeline.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from epbuild.core.atomic import write_file
from epbuild.core.canonical import parse_json
from epbuild.core.errors import Problem, StepId
from epbuild.core.records import convert, prepare_type
from epbuild.core.safepath import read_regular
from epbuild.engine.events import Origin, Outcome
from epbuild.recipe.model import MeasuredOn
from epbuild.survey.action_status import StepState

FORMAT = 1
_FOLDER = "reports"
_MAX_RECORDS = 10
_DAY = 24 * 3600
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{12}\.json")

RunOutcome = Outcome | Literal["interrupted"]
"""Outcome of a step. An interrupted step was running when the build was stopped."""


class ReportedError(Struct, frozen=True):
    """Error of a step."""

    code: str
    """Error code, such as `EPB401`."""
    message: str
    """Description of the problem."""
    reason: str | None
    """Cause of the error, without the rest of the message; null if it is not known separately."""
    hint: str | None
    """Suggested fix."""
    step: str | None
    """Step that failed, if the error is listed under another step of the same action; null otherwise."""

    def problem(self, step: str) -> Problem:
        """Convert the error to a `Problem` of the step with the id `step`."""
        return Problem(self.code, self.message, StepId(self.step or step), self.hint, self.reason)


class ReportedSpan(Struct, frozen=True):
    """Work in a build that is not part of a step."""

    kind: Literal["toolchain", "fetch", "upload"]
    """Kind of work: provisioning of a toolchain, fetch of a model, or upload of results."""
    name: str
    """Name of the toolchain, the model, or the remote cache."""
    started: float
    """Start, in seconds since the start of the build."""
    ended: float
    """End, in seconds since the start of the build."""
    failed: bool
    """True if the work failed or was interrupted."""


class ReportedChange(Struct, frozen=True):
    """File that a build added to, changed in, or removed from an output."""

    path: str
    """Path relative to the output."""
    before: int | None
    """Bytes before; null if the file is new."""
    after: int | None
    """Bytes after; null if the file was removed."""


class ReportedPublication(Struct, frozen=True):
    """Output that a build emitted or removed. Sizes and files exclude the manifest and the provenance."""

    step: str
    """Emit step."""
    path: str
    """Path of the output."""
    before: int | None
    """Bytes before; null if there was no output."""
    after: int | None
    """Bytes after; null if the output was removed."""
    files: tuple[ReportedChange, ...]
    """Files with different content."""


class ReportedTraffic(Struct, frozen=True):
    """Use of a remote cache by a build."""

    remote: str
    """Address of the remote cache."""
    asked: int
    """Number of requested results."""
    found: int
    """Number of results that the remote cache had."""
    unusable: int
    """Number of results that could not be used."""
    received_bytes: int
    """Number of downloaded bytes."""
    published: int
    """Number of uploaded results."""
    sent_bytes: int
    """Number of uploaded bytes."""
    seconds: float
    """Time during which at least one request was active."""


class ReportedPastFigures(Struct, frozen=True):
    """Figures of a model at the end of a build. They are comparable only with figures of equal `on` and `device`."""

    kind: Literal["measurement", "metrics"]
    """`measurement` for measured figures, `metrics` for task metrics."""
    group: str
    """Name of the group."""
    target: str
    """Name of the target."""
    member: str
    """Name of the model in its group."""
    figures: Mapping[str, float]
    """Values by name."""
    on: MeasuredOn | None
    """Runner of the model; null for any device of the EP, which may be an emulator."""
    device: str | None
    """Name of the device; null if it is unknown."""


class ReportedTotals(Struct, frozen=True):
    """State of all models and outputs of a recipe at the end of a build."""

    size: int
    """Bytes of all outputs, including outputs of earlier builds."""
    coverage: Mapping[str, int]
    """Number of models by coverage, for all targets."""
    accuracy: Mapping[str, float] | None
    """Worst value of each accuracy metric; null if accuracy was not measured."""
    figures: tuple[ReportedPastFigures, ...] = ()
    """Measured figures and task metrics of each model."""


class ReportedPastBuild(Struct, frozen=True):
    """One of the last builds of the recipe with the same settings."""

    began: str
    """Start of the build, in RFC 3339 format."""
    seconds: float
    """Duration of the build."""
    exit_code: int
    """Exit code; 130 if the build was interrupted."""
    totals: ReportedTotals | None
    """Totals at the end; null if the build was for a part of the recipe, was stopped, or ran with an earlier epbuild."""


class StepRun(Struct, frozen=True):
    """Run of a step in one build. Times are seconds since the start of the build."""

    step: str
    outcome: RunOutcome
    seconds: float
    """Duration according to the step's last event. A share step includes its compiles."""
    started: float | None
    ended: float | None
    worker: int | None
    """Number of the action's slot, from 0. Actions that run at once have different slots."""
    machine: str | None
    """Name of the machine that ran the step, or None for this machine."""
    origin: Origin | None
    """Source of a restored result, or None for the store."""
    was: StepState | None
    """State before the build."""
    because: tuple[str, ...]
    """Reasons why the build ran the step."""
    key: str | None
    """Action key, or None if the key was unknown before the build."""
    size: int | None
    memory: int | None
    errors: tuple[ReportedError, ...]
    phases: tuple[tuple[str, float], ...]
    """Short description and start of each phase."""


_RUNS = frozenset({"built", "restored", "emitted", "failed", "allowed", "interrupted"})


def measure_work(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the time of each step itself. The recorded time of a share step includes its compiles."""
    work = dict(seconds)
    for step, took in seconds.items():
        kind, _, place = step.partition(":")
        share = f"share:{place.rpartition('/')[0]}"
        if kind == "compile" and share in work:
            work[share] = max(0.0, work[share] - took)
    return work


class BuildRecord(Struct, frozen=True):
    """Record of a build in which at least one step was out of date."""

    format: int
    epbuild: str
    recipe: str
    """Name of the recipe's file."""
    configuration: str
    """Id of the `Configuration`."""
    began: float
    """Start in Unix seconds."""
    seconds: float
    exit_code: int
    machine: str
    process: int
    """Id of the process that ran the build."""
    jobs: int
    steps: int
    """Number of requested steps."""
    todo: int
    """Number of steps that were out of date."""
    runs: tuple[StepRun, ...]
    spans: tuple[ReportedSpan, ...]
    published: tuple[ReportedPublication, ...]
    remote: tuple[ReportedTraffic, ...]
    totals: ReportedTotals | None = None

    def measure_work(self) -> dict[str, float]:
        """Return the time of each step that ran."""
        return measure_work({run.step: run.seconds for run in self.runs if run.outcome in _RUNS})


class BuildSummary(Struct, frozen=True):
    """Part of a build record that a history of builds needs. Reading a record as this type skips its steps."""

    format: int
    configuration: str
    began: float
    seconds: float
    exit_code: int
    totals: ReportedTotals | None = None


class BuildRecords:
    """Build records in the folder of a workspace."""

    def __init__(self, workspace: Path) -> None:
        self._folder = workspace / _FOLDER

    def put(self, record: BuildRecord) -> None:
        """Write a record, and remove the oldest records beyond the limit. Raises OSError."""
        self._folder.mkdir(exist_ok=True)
        fraction = int(record.began % 1 * 1e6)
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(record.began))
        name = f"{began}.{fraction:06d}Z-{record.configuration[:12]}.json"
        write_file(self._folder / name, json.dumps(msgspec.to_builtins(record), separators=(",", ":")) + "\n", durable=False)
        for path in (*self._list_files()[_MAX_RECORDS:], *self._list_drafts()):
            with suppress(OSError):
                path.unlink()

    def find_last(self, configuration: str) -> BuildRecord | None:
        """Return the last readable record of a configuration, or None."""
        names = f"-{configuration[:12]}.json"
        return next((found for found in self._read(names) if found.configuration == configuration), None)

    def list_summaries(self, configuration: str) -> list[BuildSummary]:
        """Return the readable records of a configuration, oldest build first."""
        found = []
        for path in reversed(self._list_files()):
            if path.name.endswith(f"-{configuration[:12]}.json"):
                with suppress(OSError, msgspec.MsgspecError):
                    summary = msgspec.json.decode(read_regular(path), type=prepare_type(BuildSummary))
                    found += [summary] if (summary.format, summary.configuration) == (FORMAT, configuration) else []
        return found

    def find_own(self, since: float) -> BuildRecord | None:
        """Return the record of this process's last build if it began at or after `since`, or None."""
        process = os.getpid()
        recent = takewhile(lambda found: found.began >= since, self._read())
        return next((found for found in recent if found.process == process), None)

    def _read(self, ending: str = "") -> Iterator[BuildRecord]:
        """Yield the records, newest build first. Damaged records and records in other formats are skipped."""
        for path in self._list_files():
            if path.name.endswith(ending):
                with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
                    document = parse_json(read_regular(path))
                    if document["format"] == FORMAT:
                        yield convert(document, BuildRecord)

    def _list_files(self) -> list[Path]:
        """Return the files of records, newest build first."""
        try:
            return sorted((path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
        except OSError:
            return []

    def _list_drafts(self) -> list[Path]:
        """Return incomplete record files that are more than a day old. Builds that were killed left them."""
        long_ago = time.time() - _DAY
        return [path for path in self._folder.glob(".*.json") if path.stat().st_mtime < long_ago]
