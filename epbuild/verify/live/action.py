"""Checks of numbers as a kind of action: what they are keyed by, how their figures are judged, and how they are found."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epbuild.cache.blobs import BlobStore
from epbuild.catalog.numbers import METRICS
from epbuild.compile.executor import Execution
from epbuild.compile.kind import KeyInputs, Kind, StepEnd
from epbuild.compile.sharing import measure_alone
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId, VerifyError
from epbuild.engine.events import StepOutput
from epbuild.onnxfile.headers import read_header
from epbuild.onnxfile.wire import MalformedModel
from epbuild.plan.made import Made
from epbuild.plan.steps import Member, ModelFiles
from epbuild.plan.verification import CheckedMember, Compiled, Verification, verification_document
from epbuild.toolchain.environment import Environment
from epbuild.verify.live.eps import session_of
from epbuild.verify.live.inputs import BadInputs, NoInputs, Sample, made_samples, read_samples
from epbuild.verify.live.inputs import Made as MadeBy
from epbuild.verify.live.metrics import DifferentOutput, Figures
from epbuild.verify.live.model import Source, other_values
from epbuild.verify.live.runs import Reference, measure, run_reference
from epbuild.verify.live.verdict import Rules, Verdict, overall, shown, told
from epbuild.verify.live.worker import Attempt, Failure, Load, Session, attempt

_ALONE = "These are the numbers of the same model compiled un-shared"
_PUBLISH = "To publish it all the same, write `unjudged: publish` in its `verify`; the manifest then says so."
_CHANGE = "What is asked is in `metrics` of its `verify`; without them, it is what the catalog has for the EP."
_TOLD = ("output", "cosine", "snr_db", "max_abs", "max_rel", "top1", "samples", "evidence", "reference")
"""What a manifest has of the figures of an output."""


class Verifying(Kind[Verification]):
    """What runs compiled models and holds their outputs against those of their sources."""

    doing = "checking numbers"
    doing_again = "checking numbers again"
    done = "checked"

    def resolved(self, action: Verification, needed: Sequence[Made], store: BlobStore) -> Verification:
        action = replace(action, compiled=tuple(map(_compiled, needed)))
        return replace(action, members=tuple(_with_reference(action, checked) for checked in action.members))

    def document(self, action: Verification, inputs: KeyInputs) -> dict[str, Any]:
        return verification_document(action, inputs.digests, inputs.toolchain)

    def identity(self, action: Verification, environment: Environment) -> dict[str, Any]:
        return environment.identity((ep.entry for ep in action.target.eps), (ops.name for ops in action.custom_op_packages))

    def unmet(self, action: Verification, result: Mapping[str, Any]) -> Sequence[Problem]:
        return [problem for checked in action.members for problem in _unmet(action, checked, result)]

    def make(self, action: Verification, execution: Execution) -> dict[str, Any]:
        return _Check(action, execution).result()

    def compares(self, action: Verification) -> bool:
        return False  # it leaves figures, and no files

    def remake(self, action: Verification, execution: Execution) -> Mapping[str, Path]:
        return {}

    def memory(self, action: Verification, measured: int | None) -> int:
        return action.memory_asked or super().memory(action, measured)

    def ends(self, action: Verification, result: Mapping[str, Any]) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, _note(result))


def _compiled(made: Made) -> Compiled:
    """What a session group came to, as a check of its numbers needs it."""
    models = made.result["models"]
    return Compiled(
        group=made.group,
        models={model["member"]: model["file"] for model in models},
        artifacts={name: digest for name, digest, _ in made.artifacts()},
        signatures={model["member"]: model["source"] for model in models},
        document=made.document,
    )


def _with_reference(action: Verification, checked: CheckedMember) -> CheckedMember:
    """A member that knows what it is compared with: its source, unless what is prepared has other inputs or outputs."""
    member = checked.member
    if member is None or member.prepared is None or member.original is None or checked.choice.reference is not None:
        return checked
    try:
        header = read_header(member.original.graph)
    except (OSError, MalformedModel):  # which the check itself tells
        return checked
    alike = not other_values(header, action.compiled_of(checked).signatures[checked.name])
    return checked if alike else replace(checked, reference="prepared")


def numbers_of(made: Made, member: str) -> dict[str, Any]:
    """What a manifest says of the numbers of a member: the figures of each output, and why they were not judged where they were not."""
    action, result = made.action, made.result
    if not isinstance(action, Verification) or member not in {checked.name for checked in action.members}:
        return {}
    rows = [row for row in result["figures"] if row["member"] == member]
    # Another machine adds in another order: what is beyond these digits is no property of the artifact.
    found = {
        "figures": [
            {name: _rounded(name, row[name]) for name in _TOLD} | ({"unshared": True} if row["unshared"] else {}) for row in rows
        ]
    }
    reason = unjudged(result, member) or "; ".join(
        f"{verdict.figures.output}: {verdict.reason}"
        for verdict in _verdicts(action, action.of(member), result)
        if verdict.outcome == "unjudgeable"
    )
    return found | ({"unjudged": reason} if reason else {})


def _rounded(name: str, value: Any) -> Any:
    if value is None or name not in METRICS:
        return value
    if name in ("max_abs", "max_rel"):
        return float(f"{value:.3g}")
    return round(value, 1 if name == "snr_db" else 6)


def unjudged(result: Mapping[str, Any], member: str) -> str | None:
    """Why the numbers of a member could not be found here; None where they were."""
    return next((item["reason"] for item in result["unjudged"] if item["member"] == member), None)


def _unmet(action: Verification, checked: CheckedMember, result: Mapping[str, Any]) -> Iterator[Problem]:
    where, name = StepId(action.id), checked.name
    reason = unjudged(result, name)
    if reason is not None:
        if checked.must_be_judged:
            yield _not_here(action, name, reason)
        return
    rows = [row for row in result["figures"] if row["member"] == name]
    verdicts = _verdicts(action, checked, result)
    outcome = overall(verdicts)
    if outcome == "passed" or not rows or (outcome == "unjudgeable" and not checked.must_be_judged):
        return
    on = rows[0]["on"] + ("; made inputs: weak evidence" if rows[0]["evidence"] == "made" else "")
    alone = f". {_ALONE}" if rows[0]["unshared"] else ""
    hints = dict.fromkeys(verdict.hint for verdict in verdicts if verdict.outcome == outcome and verdict.hint is not None)
    if outcome == "unjudgeable":
        message = f"the numbers of the model '{name}' cannot be judged ({on}): {told(verdicts)}{alone}"
        yield Problem("EPB665", message, where, " ".join((*hints, _PUBLISH)))
        return
    worst = f"; the worst number, for {rows[0]['at']}, is {rows[0]['worst']}" if rows[0]["worst"] else ""
    message = f"the numbers of the model '{name}' are too far from those of the CPU EP ({on}): {told(verdicts)}{worst}{alone}"
    yield Problem("EPB646", message, where, " ".join((*hints, _CHANGE)))


def _verdicts(action: Verification, checked: CheckedMember, result: Mapping[str, Any]) -> list[Verdict]:
    """The verdict on each output of a member, by what is asked of it now."""
    return [
        Rules(action.numbers, row["quantised"], checked.asked).judge(Figures.read(row))
        for row in result["figures"]
        if row["member"] == checked.name
    ]


def _not_here(action: Verification, name: str, reason: str) -> Problem:
    message = f"the numbers of the model '{name}' cannot be judged here: {reason.rstrip('.')}"
    hint = f"Build it where {action.target.eps[0].entry.ep} can run what it compiles. {_PUBLISH}"
    return Problem("EPB666", message, StepId(action.id), hint)


def _note(result: Mapping[str, Any]) -> str:
    """What a finished check is worth telling: the worst figures of all."""
    cosines = [row["cosine"] for row in result["figures"] if row["cosine"] is not None]
    ratios = [row["snr_db"] for row in result["figures"] if row["snr_db"] is not None]
    parts = [f"cosine {min(cosines):.6f}"] if cosines else []
    parts += [f"{min(ratios):.1f} dB"] if ratios else []
    if not parts and result["figures"]:
        parts = [shown(Figures.read(result["figures"][0]))]
    if any(row["evidence"] == "made" for row in result["figures"]):
        parts.append("made inputs: weak evidence")
    parts += [f"{len(result['unjudged'])} not judged here"] if result["unjudged"] else []
    return ", ".join(parts)


@dataclass(frozen=True)
class _Subject:
    """A member that is run: what it is compared with, and the outputs of that."""

    checked: CheckedMember
    source: Source
    kind: str
    """`source` or `prepared`."""
    quantised: bool
    reference: Reference


class _Check:
    """One check of numbers on its way."""

    def __init__(self, action: Verification, execution: Execution) -> None:
        self._action = action
        self._execution = execution
        self._session = session_of(action.target, execution.environment, action.custom_ops, action.timeout)
        self._logs: list[Path] = []
        self._peaks: list[int] = []
        self._figures: list[dict[str, Any]] = []
        self._unjudged: list[dict[str, str]] = []

    def result(self) -> dict[str, Any]:
        """The figures, and what is kept beside them. Raises EpbuildError, and Cancelled."""
        begin = time.monotonic()
        try:
            for number, built in enumerate(self._action.compiled):
                self._run(built, self._execution.staging / f"{number}")
        finally:
            self._write_log()
        self._execution.recheck()
        for item in self._unjudged:
            # What another machine can judge must not be in the store as something that nobody can.
            if self._action.of(item["member"]).must_be_judged:
                raise VerifyError(_not_here(self._action, item["member"], item["reason"]))
        log = self._execution.store.add(self._execution.log)
        return {
            "artifacts": {},
            "figures": self._figures,
            "unjudged": self._unjudged,
            "log": {"digest": log.digest, "size": log.size},
            "measured": {
                "seconds": round(time.monotonic() - begin, 3),
                "members": {},
                "peak_memory": max(self._peaks, default=None),
            },
        }

    def _run(self, built: Compiled, place: Path) -> None:
        """Find the figures of the members of one session group that are checked."""
        for name, digest in built.artifacts.items():
            self._execution.store.materialise(digest, place / "compiled" / name)
        files = {name: place / "compiled" / file for name, file in built.models.items()}
        subjects = {
            checked.name: self._subject(checked, built, files[checked.name], place / f"reference-{number}")
            for number, checked in enumerate(self._action.members)
            if checked.session == built.group.id
        }
        loads = [
            Load(name, file, feeds=subjects[name].reference.feeds if name in subjects else ()) for name, file in files.items()
        ]
        self._say(f"running {', '.join(subjects)} on {self._action.target.title}")
        tried = self._attempt(loads, self._session.sharing(share=True) if built.group.share else self._session, place / "run")
        if tried.failure is None:
            for name, subject in subjects.items():
                self._compare(name, subject, tried, unshared=False)
        elif not tried.failure.impossible:
            raise _failed(self._action, tried.failure, self._execution)
        elif built.group.share:
            for number, (name, subject) in enumerate(subjects.items()):
                self._run_alone(name, subject, built, place / f"alone-{number}")
        else:
            self._unjudged += [{"member": name, "reason": tried.failure.message} for name in subjects]

    def _run_alone(self, name: str, subject: _Subject, built: Compiled, place: Path) -> None:
        """The same of a member compiled un-shared, where what shares cannot be loaded."""
        self._say(f"compiling {name} un-shared, as what shares cannot be loaded here")
        place.mkdir(parents=True)
        log = place.with_suffix(".log")
        self._logs.append(log)
        own = replace(self._execution, staging=place, log=log, compiled=lambda: None, relinking=lambda paths: nullcontext())
        try:
            measure_alone(built.group, _member(built, name), own)
        except EpbuildError as error:
            raise type(error)(*(replace(problem, where=StepId(self._action.id)) for problem in error.problems)) from error
        load = Load(name, place / _member(built, name).output, feeds=subject.reference.feeds)
        tried = self._attempt([load], self._session, place / "run")
        if tried.failure is None:
            self._compare(name, subject, tried, unshared=True)
        elif tried.failure.impossible:
            self._unjudged.append({"member": name, "reason": tried.failure.message})
        else:
            raise _failed(self._action, tried.failure, self._execution)

    def _subject(self, checked: CheckedMember, built: Compiled, compiled: Path, place: Path) -> _Subject:
        """A member with the outputs of what it is compared with."""
        member = _member(built, checked.name)
        step = StepId(self._action.id)
        try:
            compiled_from = ModelFiles(member.graph, member.external, member.subgraph_data)
            files = checked.source or compiled_from
            prepared = compiled_from if member.prepared is not None else None
            source = Source(files.graph, files.external, read_header(files.graph), member.model.free_dimensions, prepared)
            inputs = read_header(compiled).inputs
            samples = self._samples(checked, source, inputs)
        except (BadInputs, NoInputs) as error:
            hint = "Change `inputs` of its `verify`."
            raise VerifyError(Problem("EPB648", f"the inputs of the model '{checked.name}': {error}", step, hint)) from error
        except (OSError, MalformedModel) as error:
            raise BuildError(Problem("EPB649", f"the model '{checked.name}' cannot be read: {error}", step)) from error
        if others := other_values(source.header, built.signatures[checked.name]):
            message = (
                f"the model '{checked.name}' cannot be compared with its source, which has other inputs or outputs: {others}"
            )
            raise VerifyError(Problem("EPB649", message, step, "Write `reference: prepared`, or leave `reference` out."))
        self._say(
            f"running {checked.name} on the CPU EP, for {len(samples)} sets of inputs"
            if len(samples) > 1
            else f"running {checked.name} on the CPU EP"
        )
        place.mkdir(parents=True)
        self._logs.append(place / "worker.log")
        found = run_reference(
            checked.name,
            source.placed(place / "source"),
            samples,
            [value.name for value in inputs],
            self._session,
            place,
            self._execution.cancelled,
        )
        if isinstance(found, Failure):
            message = f"there is nothing to compare '{checked.name}' with: the CPU EP cannot run its source: {found.message}"
            raise BuildError(Problem("EPB649", message, step, f"The whole log: {self._execution.shown_log}."))
        return _Subject(checked, source, checked.reference, source.is_quantised, found)

    def _samples(self, checked: CheckedMember, source: Source, inputs: Sequence[Any]) -> list[Sample]:
        made = checked.made
        if made is None:
            return [replace(sample, name=name) for name, path in checked.inputs.items() for sample in read_samples(path, inputs)]
        ranges = {name: bounds for name, bounds in made.ranges.items() if name in {value.name for value in inputs}}
        return made_samples(MadeBy(made.seed, made.samples, ranges), inputs, source.sizes)

    def _compare(self, name: str, subject: _Subject, tried: Attempt, *, unshared: bool) -> None:
        outputs = [tuple(report["outputs"]) for report in tried.of("ran") if report["model"] == name]
        try:
            measured = measure(subject.reference, outputs)
        except DifferentOutput as error:
            message = f"the model '{name}' does not give what its source does: {error}"
            raise VerifyError(Problem("EPB646", message, StepId(self._action.id))) from error
        samples = subject.reference.samples
        for figures in measured.figures:
            self._figures.append(
                {
                    "member": name,
                    **figures.document,
                    "evidence": "made" if subject.reference.made else "given",
                    "on": f"for {samples[0].name}" if len(samples) == 1 else f"for {len(samples)} sets of inputs",
                    "reference": subject.kind,
                    "quantised": subject.quantised,
                    "unshared": unshared,
                    "worst": measured.worst.place if measured.worst is not None else None,
                    "at": measured.at,
                }
            )

    def _attempt(self, loads: Sequence[Load], session: Session, scratch: Path) -> Attempt:
        scratch.mkdir(parents=True)
        self._logs.append(scratch / "worker.log")
        tried = attempt(loads, session, scratch, self._execution.cancelled)
        self._peaks += [report["peak_memory"] for report in tried.of("finished") if report.get("peak_memory")]
        return tried

    def _say(self, text: str) -> None:
        self._execution.progress.report(StepOutput(self._action.id, text))

    def _write_log(self) -> None:
        """All that the processes said, one after the other."""
        with self._execution.log.open("wb") as whole:
            for log in self._logs:
                if log.exists():
                    whole.write(f"--- {log.parent.name}\n".encode())
                    with log.open("rb") as part:
                        shutil.copyfileobj(part, whole)


def _member(built: Compiled, name: str) -> Member:
    return next(member for member in built.group.members if member.name == name)


def _failed(action: Verification, failure: Failure, execution: Execution) -> EnvironmentFailure | BuildError:
    """That a compiled model could not be run, as a mistake of its own."""
    subject = f"the model '{failure.model}' cannot be run" if failure.model is not None else "the models cannot be run"
    message = f"{subject} on {action.target.title}: {failure.message}"
    return BuildError(Problem(failure.code, message, StepId(action.id), f"The whole log: {execution.shown_log}."))
