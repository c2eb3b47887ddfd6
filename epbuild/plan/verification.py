"""Verifications of compiled models, as actions.

    compile:vision/phone/det ─┬─ verify:vision/phone ── emit:vision/phone/directory
    compile:vision/phone/cls ─┘

The thresholds of metrics are not part of the key. A stored result can therefore be judged again after thresholds or `expect` change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.facts import Numbers, Thresholds
from epbuild.core.errors import Position, Problem, suggest_nearest
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.made import Made
from epbuild.plan.measuring import ModelMeasurement, build_facts
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.staged_files import StagedFiles, find_unused_names
from epbuild.plan.steps import InTarget, Plan, SessionGroup, Step
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.model import CommandChoice, MadeInputs, VerifyChoice
from epbuild.recipe.models import overlay_choice
from epbuild.recipe.names import is_glob
from epbuild.recipe.patterns import FileFinder

COMMAND_INPUT = "in"
"""Folder in the staging directory that a user's command reads."""
METRIC_OUTPUT = "out/metrics.json"
"""File in the staging directory to which a command writes task metrics."""
RUN_OUTPUT = "out"
"""Folder in the staging directory to which a command writes the outputs of a model."""

_FORMAT = 1
_CONTRACT = 3
"""Contract version. Increment it when a change to epbuild changes the metrics of identical runs."""
_AS_COMPILED = ("eps", "session_options", "session_files", "environment", "custom_ops")
"""Keys of a compile's key document whose values also affect how the compiled models run."""


class StagedCommand(Struct, frozen=True):
    """User's command with staged names, and the files that it reads, by staged name."""

    words: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


class CheckedMember(Struct, frozen=True):
    """Model to verify, with the inputs and the reference of the check."""

    name: str
    session: str
    """Id of the session group that compiles the model."""
    choice: VerifyChoice
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Input files, by their paths relative to the recipe. Empty if the inputs are generated."""
    member: Member | None = None
    """Member of the session group. None until `with_inputs` sets it."""
    reference: Literal["source", "prepared"] = "source"
    """Reference of the comparison. It may change from `source` to `prepared` once the prepared model is known."""
    prepared: str | None = None
    """Id of the preparation whose result the session group compiles. None if the model is not prepared."""
    maker: str | None = None
    """Id of the step that makes the source model. None if the source model is a user's file, or is not the reference."""
    metric: StagedCommand | None = None
    """Command that computes task metrics. None until `with_inputs` sets it."""
    runner: StagedCommand | None = None
    """Command that runs the compiled model. None until `with_inputs` sets it."""

    @property
    def commands(self) -> dict[str, StagedCommand]:
        """Commands of the member by their names in the key document."""
        found = {"metric": self.metric, "command": self.runner}
        return {name: command for name, command in found.items() if command is not None}

    @property
    def source(self) -> ModelFiles | None:
        """Files of the source model. None if the files are unknown, or if the reference is the prepared model."""
        return self.member.original if self.member is not None and self.reference == "source" else None

    @property
    def made(self) -> MadeInputs | None:
        """Settings of generated inputs. None if the recipe names input files."""
        return None if self.choice.files is not None else self.choice.made or MadeInputs()

    @property
    def user_thresholds(self) -> Thresholds:
        return Thresholds(**(self.choice.metrics or {}))

    @property
    def is_gate(self) -> bool:
        """True if inaccurate outputs fail the step, because the user set inputs or metrics. Otherwise, they only cause a warning."""
        return self.choice.files is not None or self.choice.metrics is not None or self.choice.metric is not None

    @property
    def is_judged_by_metric(self) -> bool:
        """True if only task metrics decide, because the user set no thresholds for outputs."""
        return self.choice.metric is not None and self.choice.metrics is None

    @property
    def must_be_judged(self) -> bool:
        """True if the step fails when this machine cannot verify the model."""
        return self.choice.unjudged != "emit"

    @property
    def must_show_something(self) -> bool:
        """True if the step fails when a comparison with these inputs is inconclusive."""
        return self.choice.unjudged == "fail" or (self.choice.unjudged is None and self.is_gate)


class Verification(InTarget, Struct, frozen=True, dict=True):
    """Verification of one group's models for one target."""

    group: str
    target: PlannedTarget
    members: tuple[CheckedMember, ...]
    timeout: float | None = None
    """Time limit of one process in seconds. None means no limit."""
    memory_asked: int | None = None
    custom_ops: tuple[CustomOpLibraries, ...] = ()
    compiled: tuple[Made, ...] = ()
    """Results of the session groups. Empty until the results are known."""

    @property
    def id(self) -> str:
        return make_verification_id(self.group, self.target.name)

    @property
    def steps(self) -> tuple[str, ...]:
        return (self.id,)

    @property
    def sessions(self) -> tuple[str, ...]:
        """Ids of the session groups whose models are verified, without duplicates."""
        return tuple(dict.fromkeys(member.session for member in self.members))

    @property
    def needs(self) -> tuple[str, ...]:
        # Preparations are listed first, because a session group that runs again reads their new results.
        prepared = (step for member in self.members for step in (member.maker, member.prepared) if step is not None)
        return tuple(dict.fromkeys((*prepared, *self.sessions)))

    @property
    def files(self) -> tuple[Path, ...]:
        sources = (path for checked in self.members if checked.source is not None for path in checked.source.all)
        own = (path for checked in self.members for path in checked.inputs.values())
        staged = (path for checked in self.members for command in checked.commands.values() for path in command.files.values())
        return tuple(dict.fromkeys((*sources, *own, *staged)))

    @property
    def is_on_real_device(self) -> bool:
        """True if any member needs a real device. All members then run on the real device, because one process runs them all."""
        return any(checked.choice.device == "real" and checked.choice.command is None for checked in self.members)

    @property
    def numbers(self) -> Numbers:
        """The catalog's facts about the accuracy of the first EP."""
        return self.target.eps[0].entry.numbers

    def of(self, name: str) -> CheckedMember:
        return {checked.name: checked for checked in self.members}[name]

    def compiled_of(self, checked: CheckedMember) -> Made:
        """Return the result of the session group that compiles a checked member. Raises KeyError while the result is unknown."""
        return {item.group.id: item for item in self.compiled}[checked.session]


def is_real_device_needed(plan: Plan, step: Step) -> bool:
    """Return whether a step of a plan runs only on a real device."""
    action = plan.actions.get(step.action)
    return isinstance(action, Verification | ModelMeasurement) and action.is_on_real_device


def make_verification_id(group: str, target: str) -> str:
    return f"verify:{group}/{target}"


def plan_verification(sessions: Sequence[SessionGroup], choices: Mapping[str, VerifyChoice | None]) -> Verification | None:
    """Plan the verification of a group's session groups for one target. Return None if no member is verified.

    `choices` has the settings by member. Members that are not compiled are not verified.
    """
    checked = [
        CheckedMember(
            member.name,
            session.id,
            choice,
            prepared=member.prepared,
            maker=None if choice.reference == "prepared" else member.maker,
        )
        for session in sessions
        if session.compiled
        for member in session.members
        if (choice := choose_check(member, choices.get(member.name))) is not None
    ]
    if not checked:
        return None
    first = sessions[0]
    return Verification(first.group, first.target, tuple(checked), first.timeout, first.memory, first.custom_ops)


def choose_check(member: Member, own: VerifyChoice | None) -> VerifyChoice | None:
    """Return a member's `verify` settings: `own`, completed with the model's settings. Return None if the member is not verified."""
    base = member.model.verify
    choice = overlay_choice(own, base)
    return choice if choice is not None and choice.wanted else None


def with_inputs(
    verification: Verification,
    sessions: Mapping[str, SessionGroup],
    headers: Mapping[str, ModelHeader],
    finder: FileFinder,
    problems: list[Problem],
) -> Verification:
    """Return a copy of `verification` with the source files and the input files of its members. Add problems to `problems`.

    `headers` has the headers of unprepared models, by member. `finder` finds the input files.
    """
    found = []
    for checked in verification.members:
        member = sessions[checked.session].member(checked.name)
        files = {
            Path(os.path.relpath(path, finder.base)).as_posix(): path
            for path in _find_input_files(checked.choice, finder, problems)
        }
        if checked.name in headers and headers[checked.name].is_compiled:
            message = f"the numbers of '{checked.name}' cannot be checked: the CPU does not run the EPContext nodes of its source"
            problems.append(Problem("EPB205", message, member.model.path_where, "Remove 'verify'."))
        elif checked.name in headers:
            problems += _find_unknown_inputs(checked, headers[checked.name])
        # Only the prepared model itself shows whether it can be compared with its source.
        chosen_one = checked.choice.reference if member.prepared is not None else None
        metric, runner = (
            _stage_command(
                key, choice, {"in": COMMAND_INPUT, "out": out, "model": checked.name}, verification.id, finder, problems
            )
            for key, choice, out in (
                ("metric", checked.choice.metric, METRIC_OUTPUT),
                ("command", checked.choice.command, RUN_OUTPUT),
            )
        )
        reference = chosen_one or "source"
        found.append(replace(checked, member=member, inputs=files, reference=reference, metric=metric, runner=runner))
    return replace(verification, members=tuple(found))


def _stage_command(
    key: str, choice: CommandChoice | None, names: Mapping[str, str], step: str, finder: FileFinder, problems: list[Problem]
) -> StagedCommand | None:
    """Return the command at a key of `verify`, or None. `names` are the values of its templates. Add problems to `problems`."""
    if choice is None:
        return None
    paths = {"in": "the folder to read", "out": f"the {'file' if key == 'metric' else 'folder'} to write"}
    problems += find_unused_names(f"'{key}'", choice.command, paths, choice.where)
    staged = StagedFiles(finder.base, finder, problems)
    staged.add(choice.files)
    return StagedCommand(staged.stage_command(step, choice.command, names), staged.files)


def _find_input_files(choice: VerifyChoice, finder: FileFinder, problems: list[Problem]) -> Iterator[Path]:
    for pattern in choice.files or ():
        found = finder.find(pattern)
        if found is None:
            continue
        # A wildcard does not match hidden files, because some systems add them beside visible files.
        matches = [Path(folder, name) for folder, name in found.files if not is_glob(pattern.name) or name[0] != "."]
        problem = None if matches else Problem("EPB290", f"no input file matches '{pattern.name}'", pattern.where)
        wrong = next((path for path in matches if path.suffix.lower() != ".npz"), None)
        if wrong is not None:
            hint = "Save the arrays with numpy.savez, named after the inputs."
            problem = Problem("EPB290", f"the input file '{wrong.name}' is not a .npz file", pattern.where, hint)
        if problem is not None:
            problems.append(problem)
        yield from matches if problem is None else ()


def _find_unknown_inputs(checked: CheckedMember, header: ModelHeader) -> Iterator[Problem]:
    """Yield a problem for each range whose input is missing from the model."""
    made, names = checked.made, [value.name for value in header.inputs]
    for name in made.ranges if made is not None else ():
        if name not in names:
            message = f"the model '{checked.name}' has no input '{name}', only {', '.join(names)}"
            where: Position = made.places.get(name, checked.choice.where) if made is not None else checked.choice.where
            yield Problem("EPB291", message, where, suggest_nearest(name, names))


def build_verification_document(
    action: Verification, digests: Mapping[Path, str], toolchain: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the key document of a verification whose session groups have results. `digests` maps its files to their SHA-256."""
    first = action.compiled[0].document
    return {
        "format": _FORMAT,
        "contract": _CONTRACT,
        "kind": "verify",
        "compiled": {item.group.id: {"artifacts": item.result.digests} for item in action.compiled},
        "members": [_build_member(action, checked, digests) for checked in action.members],
        **({"device": "real"} if action.is_on_real_device else {}),
        **{part: first[part] for part in _AS_COMPILED if part in first},
        "toolchain": toolchain,
    }


def build_check_facts(action: Verification, checked: CheckedMember) -> dict[str, Any]:
    """Return the description of a member's compiled model that its command reads."""
    return build_facts(action.group, action.target, action.compiled_of(checked).compiled, checked.name)


def _build_member(action: Verification, checked: CheckedMember, digests: Mapping[Path, str]) -> dict[str, Any]:
    made = checked.made
    listed = next(member for member in action.compiled_of(checked).document["members"] if member["name"] == checked.name)
    graph, external = listed["graph"], listed["external"]
    if checked.source is not None:
        graph = digests[checked.source.graph]
        external = {location: digests[path] for location, path in checked.source.external.items()}
    return {
        "name": checked.name,
        # The reference.
        "graph": graph,
        "external": external,
        "samples": {name: digests[path] for name, path in checked.inputs.items()}
        if made is None
        else {"seed": made.seed, "number": made.samples, "ranges": {name: list(bounds) for name, bounds in made.ranges.items()}},
        **{
            name: {
                "command": list(command.words),
                "staged": {staged: digests[path] for staged, path in command.files.items()},
            }
            for name, command in checked.commands.items()
        },
        **({"facts": build_check_facts(action, checked)} if checked.runner is not None else {}),
    }
