"""The recipe as values. Nothing here touches a file.

Every thing that a later message may have to point at carries `where`, its position in the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from msgspec import Struct, field

from epbuild.core.errors import Position
from epbuild.recipe.nodes import Node, Scalar
from epbuild.recipe.paths import is_remote, package_file
from epbuild.recipe.requirement import Requirement, read_requirement

if TYPE_CHECKING:
    from epbuild.recipe.remote_address import CacheChoice

Layout = Literal["directory", "ort-model-package"]
"""Arrangement of an output's files."""

Pack = Literal["zip", "tar.zst", "oci"]
"""Archive or image of an output's files."""

CompressionMethod = Literal["zstd", "deflate"]
"""Compression of an output's files."""

GenaiRole = Literal["embeddings", "prefill", "decode", "lm_head", "both"]
"""Role of a model in onnxruntime-genai's pipeline. `both` runs on the prompt and on each new token."""

GraphOptimization = Literal["disable_all", "basic", "extended", "layout", "all"]


NONE: Final[Mapping[Any, Any]] = {}
"""Default of mappings. It must not be changed."""


class Setting(NamedTuple):
    """One option value as the recipe has it, with the place of the value and the place of its name."""

    value: Scalar
    where: Position
    name_where: Position


class Reference(NamedTuple):
    """Name of another part of the recipe, with its position."""

    name: str
    where: Position


class InputShape(NamedTuple):
    """The sizes that an input is to have, one for each of its dimensions, with the places of the list, of each size and of the name."""

    sizes: tuple[int, ...]
    where: Position
    places: tuple[Position, ...]
    name_where: Position


class ToolchainSpec(Struct, frozen=True, dict=True):
    """A Python environment: one to make of `packages` (pip requirements) for a `python`, or that of an existing `interpreter`.

    Beside an `interpreter`, `packages` are what its environment must hold; each is a plain requirement.
    """

    name: str
    where: Position
    python: str | None = None
    packages: tuple[str, ...] = ()
    interpreter: str | None = None
    platforms: tuple[str, ...] = ()
    """The platforms to lock the packages for; none: that depends on where they are locked."""
    custom_ops: tuple[Reference, ...] = ()
    """Shared libraries of custom operators, as paths relative to the recipe, and Python packages that ship one."""

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        return tuple(read_requirement(package) for package in self.packages)


class MadeInputs(Struct, frozen=True):
    """Inputs that are made up, to check numbers by: from a seed, so many sets, with ranges for the numbers of single inputs."""

    seed: int = 0
    samples: int = 1
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the largest number by input, both among them."""
    places: Mapping[str, Position] = field(default_factory=dict)
    """Position of each range."""


class VerifyChoice(Struct, frozen=True):
    """Whether the numbers of what is compiled are checked, and how; what is None, is set elsewhere or nowhere."""

    where: Position
    wanted: bool = True
    files: tuple[Reference, ...] | None = None
    """Globs of `.npz` files, relative to the recipe."""
    made: MadeInputs | None = None
    metrics: Mapping[str, float] | None = None
    """Thresholds of metrics, by name."""
    reference: Literal["source", "prepared"] | None = None
    """Model to compare with: the source as in the recipe, or as prepared."""
    unjudged: Literal["fail", "publish"] | None = None
    """Outcome for a model whose numbers cannot be judged."""
    device: Literal["real"] | None = None
    """Required device: a real one, no emulator."""


class PrepareStep(NamedTuple):
    """One entry of a model's `prepare`: a program of the user's (`run`), or a kind that epbuild ships, in a toolchain of its own."""

    kind: str
    where: Position
    toolchain: Reference
    command: tuple[Setting, ...] = ()
    """Of `run`: the program and its arguments; templates still hold `${in}`, `${out}` and `${model}`."""
    options: Node | None = None
    """Of the others: what stands under the kind; the catalog knows what it means."""
    files: tuple[Reference, ...] = ()
    """Globs of the files that it reads beside the model, relative to the recipe."""
    environment: Mapping[str, Setting] = NONE
    timeout: float | None = None
    """Seconds; None: no limit."""
    memory: int | None = None
    """The bytes of memory that it is expected to need; None: it is estimated."""


class ModelSpec(Struct, frozen=True):
    """A source model as written: a path relative to the recipe, `package:<package>/<file>` (installed), or the address of a remote file."""

    name: str
    where: Position
    path: str
    path_where: Position
    sha256: str | None = None
    data_sha256: Mapping[str, str] = field(default_factory=dict)
    """For a remote model: the SHA-256 of each external data file, by the location that the graph names."""
    inputs: Mapping[str, InputShape] = field(default_factory=dict)
    """The sizes of inputs, by their names: all that is done with the model sees these."""
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    """Sizes for symbolic dimensions, by their name."""
    denoted_dimensions: Mapping[str, int] = field(default_factory=dict)
    """Sizes for symbolic dimensions, by their denotation, such as DATA_BATCH."""
    dimension_places: Mapping[str, Position] = field(default_factory=dict)
    """Position of each key of the two, as `by_denotation.KEY` or `by_name.KEY`."""
    read: Literal["file", "bytes"] = "file"
    """Form of the graph for ONNX Runtime: a path, or bytes with the folder of the external data."""
    external_data: Reference | None = None
    """The folder that the locations of its external data are relative to, as a path relative to the recipe; None: that of the graph."""
    verify: VerifyChoice | None = None
    """Check of numbers wherever the model is compiled. Groups may override it."""
    prepare: tuple[PrepareStep, ...] = ()
    """Preparations before the compile, in order."""

    @property
    def is_remote(self) -> bool:
        """Whether the path is an address to fetch."""
        return is_remote(self.path)

    @property
    def package_file(self) -> tuple[str, str] | None:
        """The installed Python package that the model lies in, and the file there; None for a model that lies elsewhere."""
        return package_file(self.path)


class DeviceChoice(NamedTuple):
    """OrtEpDevice of a target. None everywhere means the one that the EP's catalog entry prefers."""

    type: Literal["cpu", "gpu", "npu"] | None = None
    vendor: str | None = None
    metadata: Mapping[str, str] = NONE
    virtual: bool = False


class EpChoice(NamedTuple):
    """One EP of a target's session: from an installed package, or from a plugin `library` (a path relative to the recipe)."""

    ep: Reference
    device: DeviceChoice
    provider_options: Mapping[str, Setting]
    library: Setting | None = None


class Target(NamedTuple):
    """EPs in order of preference, and options, in one toolchain; a matrix has already been expanded into one target per row."""

    name: str
    where: Position
    toolchain: Reference
    eps: tuple[EpChoice, ...]
    session_options: Mapping[str, Setting]
    environment: Mapping[str, Setting] = NONE
    """Environment variables for the worker."""
    allow_unknown_options: bool = False
    allow_unknown_session_keys: bool = False
    reproducible: bool = True
    """False where the recipe accepts that the same compile gives other bytes."""
    whole: bool = True
    """False where something of it was wrong and left out: then only what it has may be judged, and not what it lacks."""
    allow_failure: bool = False
    """Whether failures of this target do not fail the build."""


class CompileSettings(Struct, frozen=True):
    """Form of a compiled EPContext model.

    `initializers` is where those of nodes outside the EP go: the model, `external_file` (a template that may hold `${model}`)
    when they have at least `external_threshold` bytes, or where the source keeps them.
    """

    embed: bool = False
    graph_optimization_level: GraphOptimization | None = None
    """None: that of the target's EP, as the catalog has it; in a plan it is always there."""
    initializers: Literal["inline", "external", "source"] = "inline"
    external_file: str | None = None
    external_threshold: int = 1024
    node_name_prefix: str | None = None
    embed_where: Position | None = None
    prefix_where: Position | None = None
    initializers_where: Position | None = None


class Expectation(Struct, frozen=True):
    """What must be true of every compiled member: the number of its EPContext nodes, and of nodes left outside the EP.

    What is asked of a sharing group as a whole, every member of it has alike.
    """

    ep_context_nodes: int | None = None
    fallback_nodes: int | Literal["any"] | None = None
    """None: the recipe does not set it; then only a target that ends with the CPU EP may leave nodes to it."""
    min_shared_ratio: float | None = None
    """Minimum share of the bytes of separately compiled members that sharing must save."""
    where: Position | None = None


class InitializerSharing(Struct, frozen=True):
    """That the members of a sharing group are compiled with one weights file: initializers from `threshold` bytes on lie there."""

    where: Position
    threshold: int = 1024


class GroupMember(NamedTuple):
    """A model in a group, with the group's settings or its own in their place; `name` is what it is called there."""

    name: str
    model: Reference
    compile: CompileSettings
    expect: Expectation
    inputs: Mapping[str, InputShape] = NONE
    """The sizes of inputs in this group, beside those that the model itself has them fixed to."""
    verify: VerifyChoice | None = None


class Merge(NamedTuple):
    """Merge of a group's compiled models. Its references to members are texts that the planner resolves."""

    name: str
    where: Position
    connect: tuple[tuple[Reference, Reference], ...] | None = None
    """Outputs and the inputs that they feed, each as `model.value`; None: an output feeds the inputs of its name in later models."""
    prefixes: Mapping[str, Setting] = NONE
    """Prefix of the names in a model, by member."""


class GenaiChoice(NamedTuple):
    """Pipeline of onnxruntime-genai. `config` has all of its configuration except the pipeline."""

    where: Position
    config: Reference
    """A JSON file; the path is relative to the recipe."""
    roles: Mapping[GenaiRole, Reference]
    """The model of the group that has each role."""
    files: tuple[Reference, ...] = ()
    """Files that are shipped beside it, such as the tokenizer's; paths relative to the recipe."""


class GroupSpec(NamedTuple):
    """Models that are built together for some targets, in order; globs have been expanded."""

    name: str
    where: Position
    members: tuple[GroupMember, ...]
    targets: tuple[Reference, ...]
    share_weights: bool
    share_initializers: InitializerSharing | None = None
    """For a group that shares weights; None: each source keeps its initializers where they are."""
    timeout: float | None = None
    """Seconds that one session group may take; None: no limit."""
    memory: int | None = None
    """Bytes of memory that one session group is expected to need; None: it is estimated."""
    merge: Merge | None = None
    genai: GenaiChoice | None = None
    custom_ops: tuple[Reference, ...] = ()
    """As those of a toolchain, which its members are given as well."""
    reproducible: bool = True
    """As that of a target, which has to be so as well."""
    allow_failure: bool = False
    """Whether failures of this group do not fail the build."""


class Compression(NamedTuple):
    """Compression of an output: the method, and its level (zstd: 1 to 19, deflate: 1 to 9)."""

    method: CompressionMethod
    level: int


class OutputSpec(Struct, frozen=True, dict=True):
    """One layout to emit. The templates still hold the names that only a group and a target give: see `recipe.template`."""

    where: Position
    layout: Layout
    path: Setting
    model: Setting
    context_binary: Setting
    base: Setting | None = None
    """The name of each model as it was before compiling, which is then shipped as well."""
    component: Setting | None = None
    """Name of each model in a model package. None means the group's name if it has one model, else the model's."""
    groups: tuple[Reference, ...] | None = None
    """Groups of the output, in the recipe's order. None means all."""
    targets: tuple[Reference, ...] | None = None
    pack: Pack | None = None
    push: Setting | None = None
    """The reference of an image in a registry."""
    compression: Compression | None = None
    """None: the files are packed as they are, which those of a `tar.zst` never are."""
    provenance: bool = False
    bom: bool = False

    def is_for(self, group: str, target: str) -> bool:
        groups, targets = self._chosen
        return (groups is None or group in groups) and (targets is None or target in targets)

    @cached_property
    def _chosen(self) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        groups, targets = (
            None if chosen is None else frozenset(reference.name for reference in chosen)
            for chosen in (self.groups, self.targets)
        )
        return groups, targets


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A whole recipe, read, checked against its schema, and expanded."""

    file: Path
    name: str
    description: str
    toolchains: Mapping[str, ToolchainSpec]
    models: Mapping[str, ModelSpec]
    targets: Mapping[str, Target]
    groups: Mapping[str, GroupSpec]
    outputs: tuple[OutputSpec, ...]
    catalogs: tuple[Reference, ...] = ()
    """Catalog files of the user's own, for EPs that epbuild does not know; paths relative to the recipe."""
    cache: CacheChoice | None = None
    files: tuple[Path, ...] = ()
    """Every file that the recipe was read from: its own first, then those that it extends and includes."""
    names: tuple[Path, ...] = ()
    """Paths by which the files were opened. With links, several may lead to the same file."""
    digests: Mapping[Path, str] = dataclasses.field(default_factory=dict, compare=False)
    """The SHA-256 of each of `files`, as it was read."""
    digest: str = ""
    """Digest of the recipe schema, of all files, and of the values of their templates."""

    @property
    def directory(self) -> Path:
        return self.file.parent
