"""Measurements of compiled models, as actions.

    compile:vision/phone/det ─┬─ measure:vision/phone ── emit:vision/phone/directory
    compile:vision/phone/cls ─┘

Limits on figures are not part of the key. A stored result can therefore be judged again after `expect` changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from epbuild.core.errors import Problem
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.made import Made
from epbuild.plan.request import build_ep_document
from epbuild.plan.result import CompileResult
from epbuild.plan.staged_files import StagedFiles, find_unused_names
from epbuild.plan.steps import InTarget, SessionGroup
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.model import GroupSpec, MeasureChoice, MeasuredOn
from epbuild.recipe.nodes import render
from epbuild.recipe.patterns import FileFinder

INPUT = "in"
"""Folder in the staging directory for the files of the compiled model."""
FACTS = "facts.json"
"""Description of the model and the target, in the staging directory."""
OUTPUT = "out/figures.json"
"""File that the command writes, in the staging directory."""
FACTS_FORMAT = 1

_FORMAT = 1
_CONTRACT = 1
"""Version of the contract of measurements. Increment it when a change to the command's inputs changes results."""


class FigureBaseline(Struct, frozen=True):
    """Measured figures of a model in an earlier release."""

    path: str
    """Path of the release's report or outputs, relative to the recipe."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Values by name. Empty if the release has no figures of the model."""
    on: MeasuredOn | None = None
    device: str | None = None


class MeasuredMember(Struct, frozen=True):
    """Model to measure, with its command and the limits on its figures."""

    name: str
    session: str
    """Id of the session group that compiles the model."""
    limits: tuple[tuple[str, float], ...] = ()
    """Names and maximum values of figures."""
    growth: tuple[tuple[str, float], ...] = ()
    """Names and maximum growth of figures, as fractions of the figures in `baseline`."""
    baseline: FigureBaseline | None = None
    """Figures in an earlier release. None if `growth` is empty."""
    command: tuple[str, ...] = ()
    """Program and arguments, with staged names. Empty until `with_command_files` sets it."""


class ModelMeasurement(InTarget, Struct, frozen=True, dict=True):
    """Measurement of one group's compiled models for one target."""

    group: str
    target: PlannedTarget
    members: tuple[MeasuredMember, ...]
    choice: MeasureChoice
    custom_ops: tuple[CustomOpLibraries, ...] = ()
    staged: Mapping[str, Path] = field(default_factory=dict)
    """Files of the recipe that the command reads, by staged name."""
    compiled: tuple[Made, ...] = ()
    """Results of the session groups. Empty until the results are known."""

    @property
    def id(self) -> str:
        return make_measurement_id(self.group, self.target.name)

    @property
    def steps(self) -> tuple[str, ...]:
        return (self.id,)

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.session for member in self.members))

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.staged.values()))

    @property
    def is_on_real_device(self) -> bool:
        """True if the models run only on a real device that ONNX Runtime offers."""
        return not self.choice.command and self.choice.on == "device"

    @property
    def environment(self) -> dict[str, str]:
        return {name: render(setting.value) for name, setting in self.choice.environment.items()}

    @property
    def diagnostic_options(self) -> list[dict[str, str]]:
        """Options of each EP that request files about runs, such as a profile. Other sessions that run compiled models omit them."""
        return [
            {
                name: value
                for name, value in ep.provider_options.items()
                if name in ep.entry.options and ep.entry.options[name].describes_runs(value)
            }
            for ep in self.target.eps
        ]

    def compiled_of(self, member: MeasuredMember) -> Made:
        """Return the result of the session group that compiles a member. Raises KeyError while the result is unknown."""
        return {item.group.id: item for item in self.compiled}[member.session]


def make_measurement_id(group: str, target: str) -> str:
    return f"measure:{group}/{target}"


def plan_measurement(
    group: GroupSpec, sessions: Sequence[SessionGroup], choice: MeasureChoice | None, problems: list[Problem]
) -> ModelMeasurement | None:
    """Plan the measurement of a group's session groups for one target. Return None if the recipe requests none.

    Add a problem for each limit that nothing measures, and for an unusable command.
    """
    if choice is None:
        problems += _find_unmeasured_limits(group, sessions[0].target)
        return None
    if choice.command:
        whose, names = f"'measure' of '{sessions[0].group}'", {"in": "the model to measure", "out": "the file to write"}
        problems += find_unused_names(whose, choice.command, names, choice.where, key="command")
    elif choice.on == "cpu":
        hint = "Add `command`, or write `on: device` or `on: emulator`."
        problems.append(Problem("EPB270", "'on: cpu' of 'measure' needs a command", choice.where, hint))
    members = tuple(
        MeasuredMember(member.name, session.id, member.expect.figures, member.expect.figure_growth)
        for session in sessions
        for member in session.members
    )
    first = sessions[0]
    return ModelMeasurement(first.group, first.target, members, choice, first.custom_ops)


def _find_unmeasured_limits(group: GroupSpec, target: PlannedTarget) -> Iterator[Problem]:
    for member in group.members:
        for name, _ in (*member.expect.figures, *member.expect.figure_growth)[:1]:
            message = f"'expect' of the group '{group.name}' limits {name}, but nothing measures it for '{target.name}'"
            hint = "Add 'measure' to the group or to the target."
            yield Problem("EPB299", message, member.expect.where or group.where, hint)


def with_command_files(
    measurement: ModelMeasurement,
    sessions: Mapping[str, SessionGroup],
    base: Path,
    finder: FileFinder,
    problems: list[Problem],
) -> ModelMeasurement:
    """Return a copy of `measurement` with the commands of its members and the files to stage. Paths are relative to `base`."""
    staged = StagedFiles(base, finder, problems)
    staged.add(measurement.choice.files)
    if not measurement.choice.command:
        return replace(measurement, staged=staged.files)
    members = []
    for member in measurement.members:
        names = {
            "in": f"{INPUT}/{get_model_file(sessions[member.session], member.name)}",
            "out": OUTPUT,
            "facts": FACTS,
            "model": member.name,
        }
        members.append(replace(member, command=staged.stage_command(measurement.id, measurement.choice.command, names)))
    return replace(measurement, members=tuple(members), staged=staged.files)


def get_model_file(session: SessionGroup, member: str) -> str:
    """Return the name of a member's model among the artifacts of its session group."""
    return f"{member}_ctx.onnx" if session.compiled else f"{member}.onnx"


def build_facts(group: str, target: PlannedTarget, result: CompileResult, member: str) -> dict[str, Any]:
    """Return the description of a compiled model and its target that a command reads."""
    model = result.model(member)
    return {
        "format": FACTS_FORMAT,
        "group": group,
        "target": target.name,
        "model": member,
        "file": model.file,
        "files": sorted(list_model_files(result, member)),
        "inputs": to_builtins(model.source.inputs),
        "outputs": to_builtins(model.source.outputs),
        "compatibility": dict(model.compatibility),
        "eps": [{**build_ep_document(ep), "options": ep.lasting_options} for ep in target.eps],
        "session_options": dict(target.session_options),
        "run_options": dict(target.run_options),
    }


def list_model_files(result: CompileResult, member: str) -> dict[str, str]:
    """Return the SHA-256 of a compiled model and of the files that it refers to, by name."""
    return {name: result.artifacts[name].digest for name in result.model(member).files}


def build_measurement_document(
    measurement: ModelMeasurement, digests: Mapping[Path, str], toolchain: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the key document of a measurement whose session groups have results. `digests` maps its files to their SHA-256."""
    results = {member.name: measurement.compiled_of(member).compiled for member in measurement.members}
    return {
        "format": _FORMAT,
        "contract": _CONTRACT,
        "kind": "measure",
        "members": [
            {
                "name": member.name,
                "command": list(member.command),
                "facts": build_facts(measurement.group, measurement.target, results[member.name], member.name),
                "files": list_model_files(results[member.name], member.name),
            }
            for member in measurement.members
        ],
        "staged": {name: digests[path] for name, path in measurement.staged.items()},
        "environment": measurement.environment,
        **({} if measurement.choice.command else _describe_runs(measurement)),
        "toolchain": toolchain,
    }


def _describe_runs(measurement: ModelMeasurement) -> dict[str, Any]:
    """Return the part of the key document for runs without a command."""
    return {
        "runs": measurement.choice.runs,
        "real": measurement.is_on_real_device,
        "diagnostic_options": measurement.diagnostic_options,
        **({"profile": True} if measurement.choice.profile else {}),
    }
