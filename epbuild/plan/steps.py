"""Values of a plan: steps, session groups and emissions.

    compile:decoder/phone/prefill ─┐
                                   ├─ share:decoder/phone ── emit:decoder/phone/directory
    compile:decoder/phone/decode ──┘

If a model is prepared, steps such as prepare:prefill/1-simplify precede each step that compiles the model. If the models of a group are
merged, merge:decoder/phone precedes the emission and belongs to the emission's action.

An action is the unit of caching and scheduling. Its id is the id of its last step. This module defines session groups
and emissions. The other actions are `preparing.Preparation`, `verification.Verification` and `measuring.ModelMeasurement`. A new type of
action implements the `Action` protocol and is added to `actions.types.ACTION_TYPES`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.entries import EpEntry
from epbuild.core.defaults import STATEMENT
from epbuild.core.digest import hash_values
from epbuild.core.errors import Position, Problem
from epbuild.onnxfile.merge.connection import Connection
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.image_reference import ImageReference
from epbuild.recipe.model import (
    NO_DEFAULTS,
    Archive,
    ArchiveFormat,
    Defaults,
    Encryption,
    GenaiRole,
    Layout,
    ModelSpec,
    ToolchainSpec,
)
from epbuild.recipe.outputs import ARCHIVE_FORMS

StepKind = Literal["prepare", "compile", "copy", "share", "verify", "measure", "merge", "emit"]


class ToolchainNeeds(NamedTuple):
    """Toolchain, the EPs that it must provide, and its modules of custom operators with their positions in the recipe."""

    toolchain: ToolchainSpec
    entries: tuple[EpEntry, ...]
    packages: Mapping[str, Position]


class Action(Protocol):
    """Unit of caching and scheduling. The key can be computed when all needed actions have results."""

    @property
    def id(self) -> str:
        """Id of the action's last step."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Ids of the action's steps, in order."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of the actions whose results this action reads, without duplicates."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Known user files that this action depends on, without duplicates."""

    @property
    def source_models(self) -> tuple[tuple[ModelSpec, ModelFiles], ...]:
        """Source models that this action reads, if their files are known. Results of other actions are excluded."""

    @property
    def runs_in(self) -> ToolchainNeeds | None:
        """Toolchain in which this action runs, and what it must provide. None if epbuild itself runs the action."""


_A = TypeVar("_A")


class Step(NamedTuple):
    """Step of a plan. `action` is the id of the action that runs the step. `needs` has the ids of the steps that must run first."""

    id: str
    kind: StepKind
    needs: tuple[str, ...]
    action: str


class InTarget:
    """Base class of actions that run in a target's toolchain, with the target's EPs and with custom operators."""

    target: PlannedTarget
    custom_ops: tuple[CustomOpLibraries, ...]

    @property
    def custom_op_packages(self) -> tuple[CustomOpLibraries, ...]:
        """Custom operators whose library is in a package of the toolchain."""
        return tuple(ops for ops in self.custom_ops if ops.library is None)

    @cached_property
    def identity_parts(self) -> tuple[tuple[EpEntry, ...], tuple[str, ...]]:
        """Catalog entries of the EPs, and modules of custom operators. Both are part of the identity of the action's toolchain."""
        return tuple(ep.entry for ep in self.target.eps), tuple(ops.name for ops in self.custom_op_packages)

    @property
    def source_models(self) -> tuple[tuple[ModelSpec, ModelFiles], ...]:
        """Source models that the action reads itself. Most actions read models of session groups, which list their sources."""
        return ()

    @cached_property
    def runs_in(self) -> ToolchainNeeds:
        """The target's toolchain, with the EPs and custom operators that its packages provide."""
        entries = tuple(ep.entry for ep in self.target.eps if ep.library is None)
        return ToolchainNeeds(self.target.toolchain, entries, {ops.name: ops.where for ops in self.custom_op_packages})


class Baseline(Struct, frozen=True):
    """Size of a session group's result in an earlier release."""

    path: str
    """Path of the release's report or outputs, relative to the recipe."""
    size: int | None
    """Total bytes. None if the release does not have the size."""


class SessionGroup(InTarget, Struct, frozen=True, dict=True):
    """Models that one new process compiles in order, for one target: all members of a sharing set, or a single model."""

    id: str
    group: str
    target: PlannedTarget
    members: tuple[Member, ...]
    share: bool
    timeout: float | None
    memory: int | None
    steps: tuple[str, ...]
    initializer_threshold: int | None = None
    """Minimum size in bytes of initializers in the shared weights file. None if there is no shared weights file."""
    custom_ops: tuple[CustomOpLibraries, ...] = ()
    """Custom operators that every session registers."""
    allow_nondeterminism: bool = False
    """True if the recipe allows a repeated compile to write different bytes."""
    may_fail: bool = False
    """True if a build can succeed even if this session group fails."""
    compiled: ClassVar[bool] = True
    """False for models that are only copied."""
    set_name: str = ""
    """Name of the sharing set: its first member. Empty if the recipe's group has only one set."""
    baseline: Baseline | None = None
    """Size in an earlier release. None if the recipe names no release."""

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all fields of the session group. It may differ between processes if a field is a set of several items."""
        fields = [getattr(self, name) for name in self.__struct_fields__ if name != "target"]
        return hash_values((self.compiled, self.target.fingerprint, fields))

    @property
    def weights_file(self) -> str | None:
        """Name of the shared weights file, or None. EPs that share weights through this file store its name in their output."""
        if not self.share or self.initializer_threshold is None:
            return None
        return f"{self.group}-{self.set_name}.weights.bin" if self.set_name else f"{self.group}.weights.bin"

    def member(self, name: str) -> Member:
        """Return a member by its name. Raises KeyError."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}

    def max_fallback_nodes(self, member: Member) -> int | None:
        """Return the maximum number of fallback nodes of a member, or None if there is no limit."""
        asked = member.expect.fallback_nodes
        if asked == "any" or not self.compiled or (asked is None and self.target.leaves_to_cpu):
            return None
        return asked or 0

    @property
    def min_shared_ratio(self) -> float | None:
        """Minimum sharing ratio that the recipe accepts. None if the recipe sets no minimum.

        The ratio is the share of bytes that sharing saves, compared with compiling the members alone.
        """
        return self.members[0].expect.min_shared_ratio if self.share else None

    @cached_property
    def files(self) -> tuple[Path, ...]:
        libraries = (ops.library for ops in self.custom_ops if ops.library is not None)
        members = (path for member in self.members for path in member.files)
        # Texts are compared, because hashing a path takes longer and a plan may have 20,000 files.
        return tuple({str(path): path for path in (*members, *self.target.files, *libraries)}.values())

    @cached_property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.prepared for member in self.members if member.prepared is not None))

    @property
    def source_models(self) -> tuple[tuple[ModelSpec, ModelFiles], ...]:
        as_they_are = (member for member in self.members if member.prepared is None)
        return tuple((member.model, member.original) for member in as_they_are if member.original is not None)


class CopiedModel(SessionGroup, frozen=True, dict=True):
    """Session group of a single model, which is emitted without being compiled."""

    compiled: ClassVar[bool] = False


class Merging(Struct, frozen=True):
    """Merge of a group's compiled models into one model, in the order of `members`. Connections refer to members by number."""

    name: str
    members: tuple[str, ...]
    prefixes: Mapping[str, str]
    """Prefix for the names in each member's model, by member. A prefix may be empty."""
    connections: tuple[Connection, ...] | None
    """Connections of outputs to inputs. None connects each output to the inputs of the same name in later models."""
    step: str = ""
    """Id of the merge step. Each emission has its own merge step."""


class Genai(Struct, frozen=True):
    """Pipeline of onnxruntime-genai for a group. `config` is a configuration without the pipeline.

    `roles` maps models to roles. Models of one role are in the order in which they run.
    """

    config: Path
    roles: Mapping[str, GenaiRole]
    files: Mapping[str, Path]
    """Files to emit beside the configuration, such as the files of the tokenizer, by name."""


class Part(Struct, frozen=True):
    """Part of an output for one group and one target. Names are POSIX paths below `folder`, a folder of the output."""

    group: str
    target: PlannedTarget
    folder: str
    """POSIX path below the output's root. Empty for the root itself."""
    session_groups: tuple[str, ...]
    models: Mapping[str, str]
    """Name of each emitted model, by member. A merged model is listed under its own name."""
    binaries: Mapping[str, Mapping[str, str]]
    """Name of each context binary, by member and then by EP. Members that share a binary have the same name."""
    base: Mapping[str, str] = field(default_factory=dict)
    """Name of each emitted source model, by member. Empty if the output contains no source models."""
    prepared: tuple[str, ...] = ()
    """Ids of the preparations whose models are emitted as source models."""
    components: Mapping[str, str] = field(default_factory=dict)
    """Component name in a model package, by the keys of `models`."""
    merging: Merging | None = None
    genai: Genai | None = None
    verification: str | None = None
    """Id of the part's verification. None if the recipe requests no verification."""
    measurement: str | None = None
    """Id of the part's measurement. None if the recipe requests no measurement."""
    allow_nondeterminism: bool = False
    """True if the recipe allows a repeated compile to write different bytes."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """LoRA adapters to emit, by name below `folder`."""

    @property
    def known_to_differ(self) -> str | None:
        """Known reasons, as clauses, why a repeated compile writes different bytes. None if no reason is known."""
        return self.target.known_to_differ(allow_nondeterminism=self.allow_nondeterminism)

    @property
    def files(self) -> tuple[Path, ...]:
        """User files that are emitted unchanged or used to generate emitted files."""
        pipeline = (self.genai.config, *self.genai.files.values()) if self.genai is not None else ()
        return (*pipeline, *self.adapters.values())


class Emission(Struct, frozen=True, dict=True):
    """Emission of one output: its compiled models, their paths, its layout, and its archive."""

    id: str
    layout: Layout
    archive: Archive | None
    """Archive or image. None for a folder."""
    path: Path
    """Path of the output's folder or archive."""
    parts: tuple[Part, ...]
    where: Position
    registry: ImageReference | None = None
    """Image reference for pushing the output. None if the output is not pushed."""
    push_only: bool = False
    """True if the output is only pushed, and not written to `path`."""
    provenance: bool = False
    sbom: bool = False
    encryption: Encryption | None = None
    title: str = ""
    description: str = ""

    @property
    def archive_format(self) -> ArchiveFormat | None:
        """Format of the archive or image. None for a folder."""
        return self.archive.format if self.archive is not None else None

    @property
    def compression_level(self) -> int | None:
        """Compression level of the archive or image. None if the files are not compressed."""
        return self.archive.level if self.archive is not None else None

    @property
    def is_file(self) -> bool:
        """True if the output is an archive."""
        return self.archive is not None and ARCHIVE_FORMS[self.archive.format].is_file

    @property
    def root(self) -> Path:
        """Base folder for the names of emitted files."""
        return self.path.parent if self.is_file else self.path

    @property
    def statement(self) -> Path | None:
        """Path of the provenance file beside an archive. None if the output contains the provenance file, or has no provenance."""
        return self.path.with_name(f"{self.path.name}{STATEMENT}") if self.is_file and self.provenance else None

    @property
    def session_groups(self) -> tuple[str, ...]:
        """Ids of the session groups whose artifacts are emitted, without duplicates."""
        return tuple(dict.fromkeys(ident for part in self.parts for ident in part.session_groups))

    @cached_property
    def needs(self) -> tuple[str, ...]:
        # Preparations are listed first, because a session group that runs again reads their new results.
        prepared = (ident for part in self.parts for ident in part.prepared)
        checks = (ident for part in self.parts for ident in (part.verification, part.measurement) if ident is not None)
        return tuple(dict.fromkeys((*prepared, *self.session_groups, *checks)))

    @property
    def source_models(self) -> tuple[()]:
        return ()

    @property
    def runs_in(self) -> None:
        return None

    @property
    def main_files(self) -> tuple[str, ...]:
        """POSIX paths of the output's main files: the archive, or the models and context binaries in the folder."""
        place = self.path.as_posix()
        if self.archive is not None:
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
    """Graph of steps in dependency order, and the actions that run the steps."""

    steps: tuple[Step, ...]
    actions: Mapping[str, Action]
    """Actions by id, in dependency order."""
    warnings: tuple[Problem, ...] = ()
    folders: tuple[Path, ...] = ()
    """Folders in which a new file may match a pattern of the recipe."""
    defaults: Defaults = NO_DEFAULTS
    """Defaults that apply to the recipe."""
    reports: tuple[Path, ...] = ()
    """Reports of earlier releases, with which results are compared."""

    @cached_property
    def session_groups(self) -> Mapping[str, SessionGroup]:
        return self.of(SessionGroup)

    @cached_property
    def emissions(self) -> Mapping[str, Emission]:
        return self.of(Emission)

    @cached_property
    def may_fail(self) -> frozenset[str]:
        """Ids of the actions that may fail.

        The recipe allows certain session groups to fail. Another action may fail if it depends only on such session groups, or if only
        such session groups depend on it.
        """
        serves: dict[str, set[str]] = {ident: set() for ident in self.actions}
        """Session groups that each action depends on, or else the session groups that depend on the action."""
        for ident, action in self.actions.items():
            of = {one for need in action.needs for one in serves[need]}
            serves[ident] = {ident} if isinstance(action, SessionGroup) else of
        for ident in reversed([ident for ident, found in serves.items() if not found]):
            followers = [other for other, action in self.actions.items() if ident in action.needs]
            serves[ident] = {one for other in followers for one in serves[other]}
        allowed = {ident for ident, group in self.session_groups.items() if group.may_fail}
        return frozenset(ident for ident, found in serves.items() if found and found <= allowed)

    def without_emissions(self) -> Plan:
        """Return the plan without its emissions. The store keeps the results of all other actions."""
        return self._keep_actions({ident: action for ident, action in self.actions.items() if not isinstance(action, Emission)})

    def with_pushes_only(self) -> Plan:
        """Return a plan with only the emissions that have a registry, marked as push-only, and the actions that they need."""
        kept: dict[str, Action] = {}
        needed: set[str] = set()
        for ident, action in reversed(list(self.actions.items())):
            pushed = replace(action, push_only=True) if isinstance(action, Emission) and action.registry is not None else None
            if pushed is not None or ident in needed:
                kept[ident] = pushed or action
                needed.update(action.needs)
        return self._keep_actions(dict(reversed(kept.items())))

    def _keep_actions(self, kept: Mapping[str, Action]) -> Plan:
        return replace(self, steps=tuple(step for step in self.steps if step.action in kept), actions=kept)

    def of(self, kind: type[_A]) -> dict[str, _A]:
        """Return the actions of one type, by id."""
        return {ident: action for ident, action in self.actions.items() if isinstance(action, kind)}

    def sources(self) -> list[tuple[ModelSpec, ModelFiles]]:
        """Return the source models whose files are known, without duplicates."""
        return list(
            {model.name: (model, files) for action in self.actions.values() for model, files in action.source_models}.values()
        )

    def list_unread_models(self) -> list[str]:
        """Return the names of source models whose files are unknown, because they have not been fetched or made yet."""
        names = dict.fromkeys(member.model.origin.name for group in self.session_groups.values() for member in group.members)
        known = {model.name for model, _ in self.sources()}
        return [name for name in names if name not in known]

    def toolchains(self) -> dict[str, ToolchainNeeds]:
        """Return the toolchains of the plan's actions, by name. Each has the combined needs of its actions."""
        found: dict[str, ToolchainNeeds] = {}
        for needs in (action.runs_in for action in self.actions.values()):
            if needs is None:
                continue
            known = found.get(needs.toolchain.name, ToolchainNeeds(needs.toolchain, (), {}))
            more = tuple(entry for entry in needs.entries if entry not in known.entries)
            packages = {**needs.packages, **known.packages}
            found[needs.toolchain.name] = ToolchainNeeds(needs.toolchain, (*known.entries, *more), packages)
        return found
