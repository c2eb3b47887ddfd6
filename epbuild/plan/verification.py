"""Checks of numbers as actions.

    compile:vision/phone/det ─┬─ verify:vision/phone ── emit:vision/phone/directory
    compile:vision/phone/cls ─┘

What metrics have to come to is no part of the key: any result may be judged again, as it may for `expect`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.facts import Numbers, Thresholds
from epbuild.core.errors import Position, Problem, nearest
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.made import Made
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.patterns import FileFinder
from epbuild.plan.steps import InTarget, Plan, SessionGroup, Step
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.model import MadeInputs, VerifyChoice
from epbuild.recipe.models import overlaid
from epbuild.recipe.names import is_glob

_FORMAT = 1
_CONTRACT = 3
"""Raised when the same runs come to other figures."""
_AS_COMPILED = ("eps", "session_options", "session_files", "environment", "custom_ops")
"""The parts of a session group's document that a run of what it compiled depends on as well."""


class CheckedMember(Struct, frozen=True):
    """A model whose numbers are checked, and on what."""

    name: str
    session: str
    """The id of the session group that compiles it."""
    choice: VerifyChoice
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """The files of inputs, by their paths relative to the recipe; none: they are made up."""
    member: Member | None = None
    """As the session group has it; None while its files are not known."""
    reference: Literal["source", "prepared"] = "source"
    """What it is compared with, as far as that is known."""
    prepared: str | None = None
    """The id of the preparation whose result its session group compiles, if there is one."""

    @property
    def source(self) -> ModelFiles | None:
        """The files of the user's that it is compared with; None where they are not known, or what is prepared is compared with."""
        return self.member.original if self.member is not None and self.reference == "source" else None

    @property
    def made(self) -> MadeInputs | None:
        """How inputs are made up; None where they are given."""
        return None if self.choice.files is not None else self.choice.made or MadeInputs()

    @property
    def asked(self) -> Thresholds:
        return Thresholds(**(self.choice.metrics or {}))

    @property
    def is_gate(self) -> bool:
        """Whether bad numbers fail the step, on inputs or by metrics of the user's. On made inputs alone, they are a warning."""
        return self.choice.files is not None or self.choice.metrics is not None

    @property
    def must_be_judged(self) -> bool:
        """Whether it is a failure that this machine cannot judge its numbers."""
        return self.choice.unjudged != "publish"

    @property
    def must_show_something(self) -> bool:
        """Whether it is a failure that its numbers show nothing with these inputs."""
        return self.choice.unjudged == "fail" or (self.choice.unjudged is None and self.is_gate)


@dataclasses.dataclass(frozen=True)
class Verification(InTarget):
    """The check of the numbers of one group's models for one target."""

    group: str
    target: PlannedTarget
    members: tuple[CheckedMember, ...]
    timeout: float | None = None
    """Seconds that one process may take; None: no limit."""
    memory_asked: int | None = None
    custom_ops: tuple[CustomOpLibraries, ...] = ()
    compiled: tuple[Made, ...] = dataclasses.field(default=(), compare=False)
    """What its session groups came to, once that is known."""

    @property
    def id(self) -> str:
        return verification_id(self.group, self.target.name)

    @property
    def steps(self) -> tuple[str, ...]:
        return (self.id,)

    @property
    def sessions(self) -> tuple[str, ...]:
        """The ids of the session groups whose models it runs, each once."""
        return tuple(dict.fromkeys(member.session for member in self.members))

    @property
    def needs(self) -> tuple[str, ...]:
        # Preparations first: a session group that is made again takes their new results.
        return tuple(dict.fromkeys((*(member.prepared for member in self.members if member.prepared), *self.sessions)))

    @property
    def files(self) -> tuple[Path, ...]:
        sources = (path for checked in self.members if checked.source is not None for path in checked.source.all)
        return tuple(dict.fromkeys((*sources, *(path for checked in self.members for path in checked.inputs.values()))))

    @property
    def takes(self) -> tuple[()]:
        return ()  # what it takes of the user's own models, the session groups take as well

    @property
    def is_on_real_device(self) -> bool:
        """Whether what it runs has to run on a device, and not in an emulator: one process runs all, so it is asked for all of them."""
        return any(checked.choice.device == "real" for checked in self.members)

    @property
    def numbers(self) -> Numbers:
        """What the catalog knows of the numbers of the EP that comes first."""
        return self.target.eps[0].entry.numbers

    def of(self, name: str) -> CheckedMember:
        return {checked.name: checked for checked in self.members}[name]

    def compiled_of(self, checked: CheckedMember) -> Made:
        """What its session group came to. Raises KeyError as long as that is not known."""
        return {item.group.id: item for item in self.compiled}[checked.session]


def needs_real_device(plan: Plan, step: Step) -> bool:
    """Whether a step of a plan runs on a real device alone."""
    action = plan.actions.get(step.action)
    return isinstance(action, Verification) and action.is_on_real_device


def verification_id(group: str, target: str) -> str:
    return f"verify:{group}/{target}"


def plan_verification(sessions: Sequence[SessionGroup], choices: Mapping[str, VerifyChoice | None]) -> Verification | None:
    """The check of a group's session groups for one target, by what is chosen for each member; None where nothing is to be checked."""
    checked = [
        CheckedMember(member.name, session.id, choice, prepared=member.prepared)
        for session in sessions
        for member in session.members
        if (choice := chosen(member, choices.get(member.name))) is not None
    ]
    if not checked:
        return None
    first = sessions[0]
    return Verification(first.group, first.target, tuple(checked), first.timeout, first.memory, first.custom_ops)


def chosen(member: Member, own: VerifyChoice | None) -> VerifyChoice | None:
    """How a member is checked: by its group's settings, and by its model's beside those; None: not at all."""
    base = member.model.verify
    choice = overlaid(own, base)
    return choice if choice is not None and choice.wanted else None


def with_inputs(
    verification: Verification,
    sessions: Mapping[str, SessionGroup],
    headers: Mapping[str, ModelHeader],
    finder: FileFinder,
    problems: list[Problem],
) -> Verification:
    """A verification with the files of its members and of their inputs, as far as they are known; what is wrong is added to `problems`.

    `headers` are those of the models that are checked as they are compiled, by member; `finder` finds those of inputs.
    """
    found = []
    for checked in verification.members:
        member = sessions[checked.session].member(checked.name)
        files = {
            Path(os.path.relpath(path, finder.base)).as_posix(): path for path in _input_files(checked.choice, finder, problems)
        }
        if checked.name in headers:
            problems += _unknown_inputs(checked, headers[checked.name])
        # Whether the source can be compared with shows once what is prepared is there.
        chosen_one = checked.choice.reference if member.prepared is not None else None
        found.append(replace(checked, member=member, inputs=files, reference=chosen_one or "source"))
    return dataclasses.replace(verification, members=tuple(found))


def _input_files(choice: VerifyChoice, finder: FileFinder, problems: list[Problem]) -> Iterator[Path]:
    for pattern in choice.files or ():
        found = finder.find(pattern)
        if found is None:
            continue
        # Some systems leave hidden files beside others, which only a whole name means.
        matches = [Path(folder, name) for folder, name in found.files if not is_glob(pattern.name) or name[0] != "."]
        problem = None if matches else Problem("EPB290", f"no file of inputs is named by '{pattern.name}'", pattern.where)
        wrong = next((path for path in matches if path.suffix.lower() != ".npz"), None)
        if wrong is not None:
            hint = "Save the arrays by the names of the inputs with numpy.savez."
            problem = Problem("EPB290", f"the inputs '{wrong.name}' are no .npz file", pattern.where, hint)
        if problem is not None:
            problems.append(problem)
        yield from matches if problem is None else ()


def _unknown_inputs(checked: CheckedMember, header: ModelHeader) -> Iterator[Problem]:
    """A problem for each range of an input that the model does not have."""
    made, names = checked.made, [value.name for value in header.inputs]
    for name in made.ranges if made is not None else ():
        if name not in names:
            message = f"the model '{checked.name}' has no input '{name}'; it has: {', '.join(names)}"
            where: Position = made.places.get(name, checked.choice.where) if made is not None else checked.choice.where
            yield Problem("EPB291", message, where, nearest(name, names))


def verification_document(action: Verification, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a verification's key, once what it needs is known; `digests` are the SHA-256 of its files."""
    first = action.compiled[0].document
    return {
        "format": _FORMAT,
        "contract": _CONTRACT,
        "kind": "verify",
        "compiled": {item.group.id: {"artifacts": item.result.digests} for item in action.compiled},
        "members": [_member(action, checked, digests) for checked in action.members],
        **({"device": "real"} if action.is_on_real_device else {}),
        **{part: first[part] for part in _AS_COMPILED if part in first},
        "toolchain": toolchain,
    }


def _member(action: Verification, checked: CheckedMember, digests: Mapping[Path, str]) -> dict[str, Any]:
    made = checked.made
    listed = next(member for member in action.compiled_of(checked).document["members"] if member["name"] == checked.name)
    graph, external = listed["graph"], listed["external"]
    if checked.source is not None:
        graph = digests[checked.source.graph]
        external = {location: digests[path] for location, path in checked.source.external.items()}
    return {
        "name": checked.name,
        # What is compared with.
        "graph": graph,
        "external": external,
        "samples": {name: digests[path] for name, path in checked.inputs.items()}
        if made is None
        else {"seed": made.seed, "number": made.samples, "ranges": {name: list(bounds) for name, bounds in made.ranges.items()}},
    }
