"""Runs of `worker/load.py`, which opens and runs models in one process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.core.errors import Cancelled
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.request import HERE, build_ep_document, resolve_places
from epbuild.plan.target import PlannedEp
from epbuild.toolchain.diagnosis import diagnose, merge_reasons
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Worker, run_script
from epbuild.toolchain.process import Ending
from epbuild.worker.scripts import LOAD

_SHARE = "ep.share_ep_contexts"
# Activity and time clause in error messages, by the event that starts the activity.
_DOING = {
    "opening": ("opening the model", "while the model was being opened"),
    "running": ("running the model", "while the model ran"),
    "closing": ("closing the model", "while the model was being closed"),
}
_BEFORE = ("setting up the EPs", "while the EPs were being set up")


class Feed(Struct, frozen=True):
    """Inputs of one run: a `.npz` file of arrays in the order of `names`, and the path for the outputs."""

    file: Path
    names: tuple[str, ...]
    outputs: Path


class Load(Struct, frozen=True):
    """Model to open, with the inputs to run it on and the compatibility strings that EPs wrote into it, by EP."""

    name: str
    file: Path
    compatibility: Mapping[str, str] = field(default_factory=dict)
    feeds: tuple[Feed, ...] = ()
    profile: str | None = None
    """Name of the file in the scratch directory for ONNX Runtime's profile of the runs. None for no profile."""


class Session(Struct, frozen=True):
    """Settings for opening all models of one process. Without EPs, models run on the CPU EP."""

    environment: Environment
    eps: tuple[PlannedEp, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the process."""
    timeout: float | None = None
    lacking: tuple[str, ...] = ()
    """Options and session keys that are omitted because their files are missing."""
    custom_ops: tuple[CustomOpLibraries, ...] = ()
    from_memory: bool = False
    """True to pass models and their external data from memory. A session key names the folder of the context binaries."""
    data_folders: Mapping[Path, Path] = field(default_factory=dict)
    """Folders of external data by model, for models whose data is not beside them."""

    def with_sharing(self, *, share: bool) -> Session:
        """Return the session with sharing of contexts enabled or disabled."""
        options = {key: value for key, value in self.options.items() if key != _SHARE}
        return replace(self, options={**options, _SHARE: "1"} if share else options)


RAISED = "EPB641"
"""Error code of a failure that ONNX Runtime or an EP reported."""


class LoadFailure(Struct, frozen=True):
    """Failure of a run, with the model that failed, or None if the run failed before the first model.

    `cannot_load` is True if this machine cannot load the model, although the model may be valid.
    """

    model: str | None
    message: str
    code: str
    cannot_load: bool = False


class Attempt(Struct, frozen=True):
    """Outcome of a run: its reports, and its failure or None."""

    reports: tuple[Mapping[str, Any], ...]
    failure: LoadFailure | None

    def find_reports(self, event: str) -> list[Mapping[str, Any]]:
        return [report for report in self.reports if report.get("event") == event]

    @property
    def seconds(self) -> dict[str, float]:
        return {report["model"]: report["seconds"] for report in self.find_reports("opened")}

    @property
    def devices(self) -> str:
        """List of the devices of plugin EPs, as text. Empty if there are none."""
        return _format_devices(self.find_reports("device"))


def list_devices(session: Session, scratch: Path, cancelled: threading.Event | None = None) -> Attempt:
    """List ONNX Runtime's release and the devices of a session's EPs, in a new process. The reports are `started` and `offered`.

    Raises EnvironmentFailure, BuildError and Cancelled as `run_models` does. The attempt's failure is the reason why the EPs
    cannot be used.
    """
    stop = cancelled or threading.Event()
    ending = _run((), session, scratch, stop, lists_devices=True)
    if stop.is_set():
        raise Cancelled("devices")
    return Attempt(ending.reports, _make_failure(ending, ending.tail, session))


def run_models(loads: Sequence[Load], session: Session, scratch: Path, cancelled: threading.Event | None = None) -> Attempt:
    """Open the models in order in one new process, run them, and close them in reverse order. Without models, only select devices.

    After a crash, the models are run once more with verbose logging, because most EPs otherwise log nothing. The log is
    `worker.log` in the `scratch` directory. Raises EnvironmentFailure if the process cannot be started, BuildError if its
    reports are invalid, and Cancelled once `cancelled` is set.
    """
    stop = cancelled or threading.Event()
    ending = _run(loads, session, scratch, stop, verbose=False)
    lines = ending.tail
    if ending.cause != "cancelled" and _has_crashed(ending):
        second = _run(loads, session, scratch, stop, verbose=True)
        if _find_last_model(second) == _find_last_model(ending) and second.status == ending.status:
            lines = second.tail
    if stop.is_set():
        raise Cancelled(", ".join(load.name for load in loads))
    return Attempt(ending.reports, _make_failure(ending, lines, session))


def explain_no_real_device(attempt: Attempt, eps: Sequence[PlannedEp]) -> str | None:
    """Return the reason why no real device was found for the EPs, as a clause, or None if a real device was found."""
    if attempt.failure is not None:
        return attempt.failure.message.rstrip(".")
    emulators = {ep.entry.ep: ep.entry.emulator_devices for ep in eps}
    found = [report for report in attempt.find_reports("device") if report["type"] in emulators.get(report["ep"], ())]
    return f"only {_format_devices(found)}, which emulates it" if found else None


def _format_devices(devices: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{device['type']} from {device['vendor']}" for device in devices)


def _run(
    loads: Sequence[Load],
    session: Session,
    scratch: Path,
    cancelled: threading.Event,
    *,
    verbose: bool = False,
    lists_devices: bool = False,
) -> Ending:
    request = {
        "eps": [build_ep_document(ep) for ep in session.eps],
        "session_options": dict(session.options),
        HERE: resolve_places(session.eps, session.custom_ops),
        "share_weights": False,  # This option is only for compiles. Here, the session options contain it.
        "members": [],
        "verbose": verbose,
        "lists_devices": lists_devices,
        "sdk_attributes": {ep.entry.ep: attribute for ep in session.eps if (attribute := ep.entry.binary.sdk_attribute)},
        "models": [_make_model_request(load, session) for load in loads],
    }
    worker = Worker("process that loads the models", LOAD, session.timeout, session.variables)
    return run_script(worker, session.environment, scratch, request, cancelled)


def _make_model_request(load: Load, session: Session) -> dict[str, Any]:
    data_folder = session.data_folders.get(load.file)
    return {
        "name": load.name,
        "file": str(load.file.absolute()),
        "compatibility": dict(load.compatibility),
        "inputs": [{"file": str(feed.file), "names": list(feed.names), "outputs": str(feed.outputs)} for feed in load.feeds],
        "compile": {"node_name_prefix": None},
        "read": "file",
        "profile": load.profile,
        "data_folder": str(data_folder.absolute()) if data_folder is not None else None,
        "data_in_memory": sorted(read_header(load.file).external_data) if session.from_memory else None,
        "free_dimensions": {},
        "denoted_dimensions": {},
    }


def _has_crashed(ending: Ending) -> bool:
    """Return whether the process crashed by itself, without a report."""
    found = diagnose(ending)
    return found is not None and not found.report and found.cause in ("crashed", "out of memory") and not found.from_outside


def _find_last_model(ending: Ending) -> tuple[str, str] | None:
    doing = [report for report in ending.reports if report.get("event") in _DOING]
    return (doing[-1]["event"], doing[-1]["model"]) if doing else None


def _make_failure(ending: Ending, lines: Sequence[str], session: Session) -> LoadFailure | None:
    """Return the failure of a process, or None if it succeeded. `lines` are from the log of its last run."""
    found = diagnose(ending, [ep.entry for ep in session.eps])
    if found is None:
        return None
    doing = _find_last_model(ending)
    model = doing[1] if doing else None
    act, moment = _DOING[doing[0]] if doing else _BEFORE
    reason, quote = merge_reasons(found.raised, lines)
    reason = reason or ""
    known = _find_limitation((*lines, found.raised or ""), session.eps)
    if known is not None:
        return LoadFailure(model, known, "EPB640", cannot_load=True)
    match found.cause:
        case "timed out":
            return LoadFailure(model, f"{act} did not finish within {session.timeout:g} s and was stopped.{quote}", "EPB643")
        case "out of memory":
            return LoadFailure(
                model, f"the process ran out of memory {moment}{f': {reason}' if reason else ''}.{quote}", "EPB644"
            )
        case "unfit" | "custom operators":
            return LoadFailure(model, f"{reason}.{quote}", "EPB640", cannot_load=True)
        case "ended":
            doubt = "" if ending.out_of_memory else ", possibly because it ran out of memory,"
            return LoadFailure(model, f"the process {found.end}{doubt} {moment}.{quote}", "EPB644")
        case "crashed":
            return LoadFailure(model, f"the process {found.end} {moment}.{quote}", "EPB642")
    return LoadFailure(model, f"{act} failed: {reason}.{quote}", RAISED)


def _find_limitation(lines: Sequence[str], eps: Sequence[PlannedEp]) -> str | None:
    """Return a sentence about the first catalog limitation of an EP that matches the log, or None."""
    text = "\n".join(lines)
    for ep in eps:
        for limitation in ep.entry.cannot:
            if limitation.shows(text, "load", ep.device.type, ep.provider_options):
                return f"{ep.entry.ep} cannot {limitation.what} here: {limitation.why}."
    return None
