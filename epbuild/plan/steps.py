"""The plan as values: steps, session groups that compile, emissions that publish.

    compile:decoder/phone/prefill ─┐
                                   ├─ share:decoder/phone ── emit:decoder/phone/directory
    compile:decoder/phone/decode ──┘

Where a model is prepared, prepare:prefill/1-simplify stands before each step that compiles it. Where the models of a group become one,
merge:decoder/phone stands before the emission, and is done with it.

An action (the unit of caching and scheduling) is one session group or one emission; it goes by the id of its last step. A further kind
of action is a further class here, of the `Action` protocol, and an entry in `actions.types.ACTION_TYPES`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.entries import EpEntry
from epbuild.core.defaults import STATEMENT
from epbuild.core.errors import Position, Problem
from epbuild.onnxfile.merge.connection import Connection
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.image_reference import ImageReference
from epbuild.recipe.model import Compression, GenaiRole, Layout, ModelSpec, Pack, ToolchainSpec
from epbuild.recipe.outputs import PACK_FORMS

StepKind = Literal["prepare", "compile", "share", "verify", "merge", "emit"]


class ToolchainNeeds(NamedTuple):
    """A toolchain, the EPs that it has to hold, and beside them the packages of custom operators: where each module is asked for."""

    toolchain: ToolchainSpec
    entries: tuple[EpEntry, ...]
    packages: Mapping[str, Position]


class Action(Protocol):
    """The unit of caching and scheduling. Its key is known once the actions that it needs are done, or their results are in the store."""

    @property
    def id(self) -> str:
        """The id of its last step."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The ids of the steps that it does, in order."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The ids of the actions whose results it is made of, each once."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the user's own that it depends on, each once, as far as they are known."""

    @property
    def takes(self) -> tuple[tuple[ModelSpec, ModelFiles], ...]:
        """The user's own models that it takes, whose files are known; not those that come out of what it needs."""

    @property
    def runs_in(self) -> ToolchainNeeds | None:
        """The toolchain that it runs in, and what that has to hold for it; None: epbuild does it itself."""


_A = TypeVar("_A")


class Step(NamedTuple):
    """A node of the plan; `action` is the id of the action that does it, `needs` the ids of the steps before it."""

    id: str
    kind: StepKind
    needs: tuple[str, ...]
    action: str


class InTarget:
    """What runs in the toolchain of a target, with the target's EPs and some custom operators."""

    target: PlannedTarget
    custom_ops: tuple[CustomOpLibraries, ...]

    @property
    def custom_op_packages(self) -> tuple[CustomOpLibraries, ...]:
        """Those of its custom operators whose library a package of the toolchain ships."""
        return tuple(ops for ops in self.custom_ops if ops.library is None)

    @cached_property
    def uses(self) -> tuple[tuple[EpEntry, ...], tuple[str, ...]]:
        """What its toolchain's identity is about: the EPs, and the packages of custom operators."""
        return tuple(ep.entry for ep in self.target.eps), tuple(ops.name for ops in self.custom_op_packages)

    @cached_property
    def runs_in(self) -> ToolchainNeeds:
        """The target's toolchain, with its EPs that come in packages."""
        entries = tuple(ep.entry for ep in self.target.eps if ep.library is None)
        return ToolchainNeeds(self.target.toolchain, entries, {ops.name: ops.where for ops in self.custom_op_packages})


class SessionGroup(InTarget, Struct, frozen=True, dict=True):
    """What runs in one fresh process, in order: a sharing group for one target, or one model for one target."""

    id: str
    group: str
    target: PlannedTarget
    members: tuple[Member, ...]
    share: bool
    timeout: float | None
    memory: int | None
    steps: tuple[str, ...]
    initializer_threshold: int | None = None
    """The size in bytes from which the members' initializers lie in one weights file when they share; None: there is none."""
    custom_ops: tuple[CustomOpLibraries, ...] = ()
    """What every session is given beside the EPs."""
    reproducible: bool = True
    """False where the recipe accepts that the same compile gives other bytes."""
    may_fail: bool = False
    """Whether the recipe counts a build as a success although this fails."""

    @property
    def weights_file(self) -> str | None:
        """The name of the members' one weights file, beside each of them; EPs that share through it write it down. None: none."""
        return f"{self.group}.weights.bin" if self.share and self.initializer_threshold is not None else None

    def member(self, name: str) -> Member:
        """That of a name. Raises KeyError."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}

    def most_left(self, member: Member) -> int | None:
        """How many nodes of a member may be left outside the EPs that compile; None: any number."""
        asked = member.expect.fallback_nodes
        if asked == "any" or (asked is None and self.target.leaves_to_cpu):
            return None
        return asked or 0

    @property
    def min_shared_ratio(self) -> float | None:
        """The least part of the bytes of its members compiled alone that sharing must save; None: nobody asks."""
        return self.members[0].expect.min_shared_ratio

    @cached_property
    def files(self) -> tuple[Path, ...]:
        libraries = (ops.library for ops in self.custom_ops if ops.library is not None)
        members = (path for member in self.members for path in member.files)
        return tuple(dict.fromkeys((*members, *self.target.files, *libraries)))

    @cached_property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.prepared for member in self.members if member.prepared is not None))

    @property
    def takes(self) -> tuple[tuple[ModelSpec, ModelFiles], ...]:
        as_they_are = (member for member in self.members if member.prepared is None)
        return tuple((member.model, member.original) for member in as_they_are if member.original is not None)


class Merging(Struct, frozen=True):
    """How the compiled models of a group become one: in the order of `members`, whose numbers the connections have."""

    name: str
    members: tuple[str, ...]
    prefixes: Mapping[str, str]
    """What goes before the names in a model, by member; an empty text for nothing."""
    connections: tuple[Connection, ...] | None
    """None: an output feeds the inputs of its name in later models."""
    step: str = ""
    """The id of its step; every emission has one of its own."""


class Genai(Struct, frozen=True):
    """What onnxruntime-genai is given for a group: `config` holds all but the pipeline, `roles` the role of each member."""

    config: Path
    roles: Mapping[str, GenaiRole]
    files: Mapping[str, Path]
    """The files that are shipped beside its configuration, such as the tokenizer's, by name."""


class Part(Struct, frozen=True):
    """What one group for one target is in an output. Names are POSIX paths below the part's `folder`, and that below the output's root."""

    group: str
    target: PlannedTarget
    folder: str
    """The empty text for the root itself."""
    session_groups: tuple[str, ...]
    models: Mapping[str, str]
    """The EPContext model's name, by member; of members that are merged, by the merged model."""
    binaries: Mapping[str, Mapping[str, str]]
    """The context binary's name, by member and then by the EP that makes it; members that share one have the same name here."""
    base: Mapping[str, str] = field(default_factory=dict)
    """The name of the model as it was before compiling, by member; none where that is not shipped."""
    prepared: tuple[str, ...] = ()
    """The ids of the preparations whose models are shipped as they were before compiling."""
    components: Mapping[str, str] = field(default_factory=dict)
    """What each of `models` is called in a model package."""
    merging: Merging | None = None
    genai: Genai | None = None
    verification: str | None = None
    """The id of the check of its numbers; None: nobody asks for one."""
    reproducible: bool = True
    """False where the recipe accepts that the same compile gives other bytes."""

    @property
    def known_to_differ(self) -> str | None:
        """Why what is compiled for it is known to differ when it is compiled again, as clauses."""
        return self.target.known_to_differ(reproducible=self.reproducible)

    @property
    def files(self) -> tuple[Path, ...]:
        """The user's own files that are shipped as they are, or read to make one that is."""
        return (self.genai.config, *self.genai.files.values()) if self.genai is not None else ()


class Emission(Struct, frozen=True, dict=True):
    """One output: which compiled models go where, in which layout, and whether the files are packed into one."""

    id: str
    layout: Layout
    pack: Pack | None
    """None: they lie in a folder as they are."""
    path: Path
    """What the output is: a folder, or the archive."""
    parts: tuple[Part, ...]
    where: Position
    push: ImageReference | None = None
    """Where a registry is to have it."""
    compression: Compression | None = None
    """None: the files are packed as they are."""
    push_only: bool = False
    """Whether the registry alone gets it, and nothing is put at `path`."""
    provenance: bool = False
    bom: bool = False
    title: str = ""
    description: str = ""

    @property
    def is_file(self) -> bool:
        """Whether the output is one file, an archive."""
        return self.pack is not None and PACK_FORMS[self.pack].is_file

    @property
    def root(self) -> Path:
        """The folder that the names of emitted files are relative to."""
        return self.path.parent if self.is_file else self.path

    @property
    def statement(self) -> Path | None:
        """The provenance of an archive, which lies beside it; None: there is none, or it lies in the output."""
        return self.path.with_name(f"{self.path.name}{STATEMENT}") if self.is_file and self.provenance else None

    @property
    def session_groups(self) -> tuple[str, ...]:
        """The session groups whose artifacts it publishes, each once."""
        return tuple(dict.fromkeys(ident for part in self.parts for ident in part.session_groups))

    @cached_property
    def needs(self) -> tuple[str, ...]:
        # Preparations first: a session group that is made again takes their new results.
        prepared = (ident for part in self.parts for ident in part.prepared)
        checks = (part.verification for part in self.parts if part.verification)
        return tuple(dict.fromkeys((*prepared, *self.session_groups, *checks)))

    @property
    def takes(self) -> tuple[()]:
        return ()

    @property
    def runs_in(self) -> None:
        return None

    @property
    def main_files(self) -> tuple[str, ...]:
        """What people look for in it, as POSIX paths: the archive, or the models and context binaries of a folder."""
        place = self.path.as_posix()
        if self.pack is not None:
            return (place,)
        found: list[str] = []
        for part in self.parts:
            folder = posixpath.join(place, part.folder, "")
            binaries = (name for names in part.binaries.values() for name in names.values())
            found += (folder + name for name in dict.fromkeys((*part.models.values(), *binaries)))
        return tuple(found)

    @property
    def mergings(self) -> tuple[Merging, ...]:
        return tuple(part.merging for part in self.parts if part.merging is not None)

    @property
    def steps(self) -> tuple[str, ...]:
        return (*(merging.step for merging in self.mergings), self.id)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(path for part in self.parts for path in part.files))


class Plan(Struct, frozen=True, dict=True):
    """The ordered graph of steps, every step after those that it needs, with the actions behind them."""

    steps: tuple[Step, ...]
    actions: Mapping[str, Action]
    """By id, each after those that it needs."""
    warnings: tuple[Problem, ...] = ()
    warned: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    """Those of the warnings that are about a session group, by its id."""

    @cached_property
    def session_groups(self) -> Mapping[str, SessionGroup]:
        return self.of(SessionGroup)

    @cached_property
    def emissions(self) -> Mapping[str, Emission]:
        return self.of(Emission)

    @cached_property
    def may_fail(self) -> frozenset[str]:
        """Actions that may fail: session groups that the recipe lets fail, and what serves or is made of only those."""
        serves: dict[str, set[str]] = {ident: set() for ident in self.actions}
        """For each action, the session groups that it is made of; for one that is made of none, those that are made of it."""
        for ident, action in self.actions.items():
            of = {one for need in action.needs for one in serves[need]}
            serves[ident] = {ident} if isinstance(action, SessionGroup) else of
        for ident in reversed([ident for ident, found in serves.items() if not found]):
            followers = [other for other, action in self.actions.items() if ident in action.needs]
            serves[ident] = {one for other in followers for one in serves[other]}
        allowed = {ident for ident, group in self.session_groups.items() if group.may_fail}
        return frozenset(ident for ident, found in serves.items() if found and found <= allowed)

    def without_emissions(self) -> Plan:
        """What it has whose results are stored."""
        return self._part({ident: action for ident, action in self.actions.items() if not isinstance(action, Emission)})

    def of_pushed(self) -> Plan:
        """The outputs that are pushed, which leave nothing here, and what they need."""
        kept: dict[str, Action] = {}
        needed: set[str] = set()
        for ident, action in reversed(list(self.actions.items())):
            pushed = replace(action, push_only=True) if isinstance(action, Emission) and action.push is not None else None
            if pushed is not None or ident in needed:
                kept[ident] = pushed or action
                needed.update(action.needs)
        return self._part(dict(reversed(kept.items())))

    def _part(self, kept: Mapping[str, Action]) -> Plan:
        return Plan(tuple(step for step in self.steps if step.action in kept), kept, self.warnings, self.warned)

    def of(self, kind: type[_A]) -> dict[str, _A]:
        """Its actions of one kind, by id."""
        return {ident: action for ident, action in self.actions.items() if isinstance(action, kind)}

    def sources(self) -> list[tuple[ModelSpec, ModelFiles]]:
        """The models that it begins with, each once, whose files are known."""
        return list({model.name: (model, files) for action in self.actions.values() for model, files in action.takes}.values())

    def toolchains(self) -> dict[str, ToolchainNeeds]:
        """The toolchains that the plan's actions run in, each with what it has to hold."""
        found: dict[str, ToolchainNeeds] = {}
        for needs in (action.runs_in for action in self.actions.values()):
            if needs is None:
                continue
            known = found.get(needs.toolchain.name, ToolchainNeeds(needs.toolchain, (), {}))
            more = tuple(entry for entry in needs.entries if entry not in known.entries)
            packages = {**needs.packages, **known.packages}
            found[needs.toolchain.name] = ToolchainNeeds(needs.toolchain, (*known.entries, *more), packages)
        return found
