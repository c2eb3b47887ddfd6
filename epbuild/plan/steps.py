"""The plan as values: steps that a person sees, the session groups that compile them, and the emissions that lay artifacts out.

    compile:decoder/phone/prefill ─┐
                                   ├─ share:decoder/phone ── emit:decoder/phone/directory
    compile:decoder/phone/decode ──┘

Where a model is prepared, prepare:prefill/1-simplify stands before each step that compiles it. Where the models of a group become one,
merge:decoder/phone stands before the emission, and is done with it.

An action (the unit of caching and scheduling) is one session group or one emission; it goes by the id of its last step. A further kind
of action is a further class here, of the `Action` protocol, and an entry in `build.kinds` that says how it is keyed and done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

from epbuild.catalog.catalog import session_keys
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import KnownDifference, Limitation
from epbuild.core.errors import Position, Problem
from epbuild.onnxfile.connection import Connection
from epbuild.onnxfile.headers import Dimension
from epbuild.plan.custom_ops import CustomOps
from epbuild.recipe.forms import PACK_FORMS
from epbuild.recipe.image_reference import ImageReference
from epbuild.recipe.model import (
    CompileSettings,
    Compression,
    DeviceChoice,
    Expectation,
    GenaiRole,
    GraphOptimization,
    InputShape,
    Layout,
    ModelSource,
    Pack,
    Toolchain,
)
from epbuild.recipe.template import substitute

StepKind = Literal["prepare", "compile", "share", "verify", "merge", "emit"]

STATEMENT = ".intoto.json"
"""Ends the name of a file with provenance."""


class ToolchainNeeds(NamedTuple):
    """A toolchain, the EPs that it has to hold, and beside them the packages of custom operators: where each module is asked for."""

    toolchain: Toolchain
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
    def takes(self) -> tuple[tuple[ModelSource, ModelFiles], ...]:
        """The user's own models that it takes, whose files are known; not those that come out of what it needs."""

    @property
    def runs_in(self) -> ToolchainNeeds | None:
        """The toolchain that it runs in, and what that has to hold for it; None: epbuild does it itself."""


_A = TypeVar("_A")


_ACCEPTED = "the recipe accepts that the same compile gives other bytes"


@dataclass(frozen=True)
class Step:
    """A node of the plan; `action` is the id of the action that does it, `needs` the ids of the steps before it."""

    id: str
    kind: StepKind
    needs: tuple[str, ...]
    action: str


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model: its graph, and each external data file by the location that the graph names."""

    graph: Path
    external: Mapping[str, Path] = field(default_factory=dict)
    subgraph_data: frozenset[str] = frozenset()
    """The locations that a subgraph refers to: ONNX Runtime refuses these files where they have a second name."""

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.graph, *self.external.values())


@dataclass(frozen=True)
class Member:
    """One source model of a session group: its files, the names under which it is staged and compiled, and how it is compiled.

    EPs write the staged names into their output, so they are part of the contract and of the key.
    """

    name: str
    graph: Path
    external: Mapping[str, Path]
    """Each external data file by the location that the graph names."""
    model: ModelSource
    compile: CompileSettings
    expect: Expectation
    fetched: bool = False
    """Whether the files are known: those of a remote model are once it has been fetched."""
    asked: Mapping[str, InputShape] = field(default_factory=dict)
    """The sizes that the recipe gives to inputs of the source, by their names."""
    inputs: Mapping[str, tuple[Dimension, ...]] = field(default_factory=dict)
    """The inputs whose shapes change by that, with their shapes, of a model whose header is known: it is staged with these."""
    where: Position | None = None
    """Where the group names it."""
    subgraph_data: frozenset[str] = frozenset()
    """The locations of `external` that a subgraph refers to: ONNX Runtime refuses these files where they have a second name."""
    prepared: str | None = None
    """The id of the last of its preparations, whose result is compiled: its files are known once that is. None: it is compiled as it is."""
    original: ModelFiles | None = None
    """The files of the model as the user has it, before any preparation; None while they are not known."""

    def with_files(self, files: ModelFiles) -> Member:
        """The member compiled from these files."""
        return replace(self, graph=files.graph, external=files.external, subgraph_data=files.subgraph_data, fetched=True)

    @property
    def source(self) -> str:
        """The graph's path in the staging directory; external data lies below its folder."""
        return f"in/{self.name}/{self.name}.onnx"

    @property
    def output(self) -> str:
        """The EPContext model's path in the staging directory."""
        return f"out/{self.name}_ctx.onnx"

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the model consists of."""
        return (self.graph, *self.external.values()) if self.fetched else ()

    @property
    def data_folder(self) -> str | None:
        """The folder of its external data as the recipe has it; None: it lies beside the graph, or there is none."""
        named = self.model.external_data
        return named.name if named is not None and self.external else None

    @property
    def external_file(self) -> str | None:
        """The name of the file that receives the model's large initializers, beside its EPContext model; None: there is none."""
        name = self.compile.external_file
        return str(substitute(name, {"model": self.name})) if name else None


@dataclass(frozen=True)
class OptionFile:
    """A file that an option names, and the name under which the EP is given it."""

    path: Path
    staged: str


@dataclass(frozen=True)
class PlannedEp:
    """One EP of a target, whose options have become the strings that ONNX Runtime takes."""

    entry: EpEntry
    catalog: str
    """What names the catalog's knowledge of how this EP is driven."""
    device: DeviceChoice
    provider_options: Mapping[str, str]
    files: Mapping[str, OptionFile]
    """The files that options name, by option; these options' values are the staged names."""
    library: Path | None
    """The plugin library to register; None: the one of the EP's package."""
    silent: frozenset[str]
    """The options that do not change what a compile writes, and so stay out of the key."""
    only_compiling: frozenset[str] = frozenset()
    """Those of them that no session reads which runs what was compiled."""

    @property
    def lasting_options(self) -> dict[str, str]:
        """The options that outputs tell of: without the dumps of a compile, and where on this machine they went."""
        return {name: value for name, value in self.provider_options.items() if name not in self.only_compiling}

    @property
    def binary_target(self) -> str | None:
        """What the context binary should say that it was made for, where the catalog knows how to ask; else None."""
        return self.entry.binary_target(self.provider_options)


@dataclass(frozen=True)
class PlannedTarget:
    """A target whose EPs, in order of preference, and session keys are known to be what ONNX Runtime takes."""

    name: str
    toolchain: Toolchain
    eps: tuple[PlannedEp, ...]
    session_options: Mapping[str, str]
    session_files: Mapping[str, OptionFile]
    """The files that session keys name, by key."""
    silent: frozenset[str]
    """The session keys that do not change what a compile writes."""
    environment: Mapping[str, str]
    unchecked: tuple[str, ...]
    """The options and session keys that the catalog does not know, and that the recipe lets through."""
    reproducible: bool = True
    """False where the recipe accepts that the same compile gives other bytes."""
    where: Position | None = None
    """Where the recipe defines it."""
    old_runtime: str | None = None
    """The release of ONNX Runtime where the toolchain pins one without ModelCompiler, in which a session compiles."""

    @property
    def title(self) -> str:
        """The EPs' names, for messages."""
        return ", ".join(ep.entry.ep for ep in self.eps)

    @property
    def one_binary(self) -> bool:
        """Whether the members of a sharing group have one context binary between them."""
        return all(ep.entry.sharing.binaries == "one" for ep in self.compiling)

    @property
    def compiling(self) -> tuple[PlannedEp, ...]:
        """The EPs that leave compiled parts behind; the CPU EP is there to run what they do not take."""
        return tuple(ep for ep in self.eps if ep.entry.sources)

    @property
    def graph_optimization_level(self) -> GraphOptimization:
        """How far ONNX Runtime optimises a graph where the recipe does not say: as the first EP that compiles is best given it."""
        return next((ep.entry.graph_optimization_level for ep in self.compiling), "disable_all")

    @property
    def leaves_to_cpu(self) -> bool:
        """Whether the target names, last, an EP that takes every node: then some may be left to it."""
        return self.eps[-1].entry.takes_every_node

    @property
    def known_differences(self) -> tuple[KnownDifference, ...]:
        """In what its artifacts are known to differ when they are compiled again; nothing is claimed where there is none."""
        return tuple(row for ep in self.compiling for row in ep.entry.known_differences(ep.provider_options))

    def known_to_differ(self, *, reproducible: bool) -> str | None:
        """Why its artifacts are known to differ when they are compiled again, as clauses; None where that is not known of them.

        `reproducible` is False where the recipe accepts it, of the target or of a group that is compiled for it.
        """
        accepted = () if reproducible else (_ACCEPTED,)
        return "; ".join(dict.fromkeys((*(row.why for row in self.known_differences), *accepted))) or None

    def limitations(self, said: str, act: Literal["compile", "load"]) -> Iterator[tuple[str, Limitation]]:
        """Each limitation that the catalog knows and that shows in what was said of a compile or a load, with whose it is."""
        for ep in self.eps:
            for limitation in ep.entry.cannot:
                if limitation.shows(said, act, ep.device.type, ep.provider_options):
                    yield ep.entry.ep, limitation
        for limitation in session_keys().cannot:
            if limitation.shows(said, act, None, {}):
                yield "ONNX Runtime", limitation

    @property
    def option_files(self) -> tuple[OptionFile, ...]:
        """Every file that an option or a session key names."""
        return (*(file for ep in self.eps for file in ep.files.values()), *self.session_files.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the target's options name, and every plugin library of the user's own."""
        named = (file.path for file in self.option_files)
        return (*named, *(ep.library for ep in self.eps if ep.library))


@dataclass(frozen=True)
class SessionGroup:
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
    custom_ops: tuple[CustomOps, ...] = ()
    """What every session is given beside the EPs."""
    reproducible: bool = True
    """False where the recipe accepts that the same compile gives other bytes."""
    may_fail: bool = False
    """Whether the recipe counts a build as a success although this fails."""

    @property
    def weights_file(self) -> str | None:
        """The name of the members' one weights file, beside each of them; EPs that share through it write it down. None: none."""
        return f"{self.group}.weights.bin" if self.share and self.initializer_threshold is not None else None

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

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the result depends on, each once."""
        libraries = (ops.library for ops in self.custom_ops if ops.library is not None)
        members = (path for member in self.members for path in member.files)
        return tuple(dict.fromkeys((*members, *self.target.files, *libraries)))

    @property
    def custom_op_packages(self) -> tuple[CustomOps, ...]:
        """Those of its custom operators whose library a package of the toolchain ships."""
        return tuple(ops for ops in self.custom_ops if ops.library is None)

    @property
    def needs(self) -> tuple[str, ...]:
        """The preparations whose results it compiles."""
        return tuple(dict.fromkeys(member.prepared for member in self.members if member.prepared is not None))

    @property
    def takes(self) -> tuple[tuple[ModelSource, ModelFiles], ...]:
        """The models of those members that are compiled as they are."""
        fetched = [member for member in self.members if member.prepared is None]
        return tuple((member.model, member.original) for member in fetched if member.original is not None)

    @property
    def uses(self) -> tuple[tuple[EpEntry, ...], tuple[str, ...]]:
        """What its toolchain's identity is about: the EPs, and the packages of custom operators."""
        return tuple(ep.entry for ep in self.target.eps), tuple(ops.name for ops in self.custom_op_packages)

    @property
    def runs_in(self) -> ToolchainNeeds:
        """The target's toolchain, with its EPs that come in packages."""
        entries = tuple(ep.entry for ep in self.target.eps if ep.library is None)
        return ToolchainNeeds(self.target.toolchain, entries, {ops.name: ops.where for ops in self.custom_op_packages})


@dataclass(frozen=True)
class Merging:
    """How the compiled models of a group become one: in the order of `members`, whose numbers the connections have."""

    name: str
    members: tuple[str, ...]
    prefixes: Mapping[str, str]
    """What goes before the names in a model, by member; an empty text for nothing."""
    connections: tuple[Connection, ...] | None
    """None: an output feeds the inputs of its name in later models."""
    step: str = ""
    """The id of its step; every emission has one of its own."""


@dataclass(frozen=True)
class Genai:
    """What onnxruntime-genai is told of a group: `config` holds all but the pipeline, `roles` gives each model's role, by member."""

    config: Path
    roles: Mapping[str, GenaiRole]
    files: Mapping[str, Path]
    """The files that are shipped beside its configuration, such as the tokenizer's, by name."""


@dataclass(frozen=True)
class Part:
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


@dataclass(frozen=True)
class Emission:
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
        """The session groups whose artifacts it lays out, each once."""
        return tuple(dict.fromkeys(ident for part in self.parts for ident in part.session_groups))

    @property
    def needs(self) -> tuple[str, ...]:
        """The actions that it is made of, and those without which it is not published: the checks of numbers."""
        return tuple(dict.fromkeys((*self.session_groups, *(part.verification for part in self.parts if part.verification))))

    @property
    def takes(self) -> tuple[()]:
        """It takes results."""
        return ()

    @property
    def runs_in(self) -> None:
        """Epbuild lays outputs out itself."""
        return None

    @property
    def mergings(self) -> tuple[Merging, ...]:
        """Those of its parts that merge."""
        return tuple(part.merging for part in self.parts if part.merging is not None)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that it does: its own, after those of merging where it merges."""
        return (*(merging.step for merging in self.mergings), self.id)

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the user's own that goes into it, beside what the session groups were made of."""
        return tuple(dict.fromkeys(path for part in self.parts for path in part.files))


@dataclass(frozen=True)
class Plan:
    """The ordered graph of steps, every step after those that it needs, with the actions behind them."""

    steps: tuple[Step, ...]
    actions: Mapping[str, Action]
    """By id, each after those that it needs."""
    warnings: tuple[Problem, ...] = ()

    @cached_property
    def session_groups(self) -> Mapping[str, SessionGroup]:
        """Those of its actions that compile."""
        return self.of(SessionGroup)

    @cached_property
    def emissions(self) -> Mapping[str, Emission]:
        """Those of its actions that lay an output out."""
        return self.of(Emission)

    @cached_property
    def may_fail(self) -> frozenset[str]:
        """The actions whose failure is allowed: session groups of which the recipe says so, and what serves or is made of only those."""
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

    def of(self, kind: type[_A]) -> dict[str, _A]:
        """Its actions of one kind, by id."""
        return {ident: action for ident, action in self.actions.items() if isinstance(action, kind)}

    def sources(self) -> list[tuple[ModelSource, ModelFiles]]:
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
