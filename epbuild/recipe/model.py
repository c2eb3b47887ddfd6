"""Recipe as values. No function here reads a file.

Every value that a message may refer to has `where`, its position in the text.
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
from epbuild.recipe.paths import find_package_file, is_remote
from epbuild.recipe.requirement import Requirement, read_requirement

if TYPE_CHECKING:
    from epbuild.recipe.remote_address import CacheChoice

Layout = Literal["directory", "ort-model-package"]
"""Arrangement of an output's files."""

ArchiveFormat = Literal["zip", "tar.zst", "oci"]
"""Format of an archive or image of an output's files."""

CompressionMethod = Literal["zstd", "deflate"]
"""Compression of an output's files."""

GenaiRole = Literal["embeddings", "prefill", "decode", "lm_head", "both"]
"""Role of a model in onnxruntime-genai's pipeline. `both` runs on the prompt and on each new token."""

GraphOptimization = Literal["disable_all", "basic", "extended", "layout", "all"]


NONE: Final[Mapping[Any, Any]] = {}
"""Default of mappings. It must not be changed."""


class Setting(NamedTuple):
    """Option value with its position and that of its name."""

    value: Scalar
    where: Position
    name_where: Position


class Reference(NamedTuple):
    """Name of another part of the recipe, with its position."""

    name: str
    where: Position


class InputShape(NamedTuple):
    """Sizes of an input, one for each dimension, with the positions of the list, of each size and of the name."""

    sizes: tuple[int, ...]
    where: Position
    places: tuple[Position, ...]
    name_where: Position


class ToolchainSpec(Struct, frozen=True, dict=True):
    """Python environment: one to create from `packages` (pip requirements) for a `python`, or the one of an existing `interpreter`.

    The environment of an `interpreter` must contain `packages`, which are plain requirements.
    """

    name: str
    where: Position
    python: str | None = None
    packages: tuple[str, ...] = ()
    interpreter: str | None = None
    platforms: tuple[str, ...] = ()
    """Platforms to lock the packages for. Empty means the platform that runs `epbuild lock`, and those in the lock."""
    custom_ops: tuple[Reference, ...] = ()
    """Shared libraries of custom operators, as paths relative to the recipe, and Python packages with one."""

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        return tuple(read_requirement(package) for package in self.packages)


class MadeInputs(Struct, frozen=True):
    """Generated inputs for checks of numbers: the seed, the number of sets, and ranges for single inputs."""

    seed: int = 0
    samples: int = 1
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Minimum and maximum, inclusive, by input."""
    places: Mapping[str, Position] = field(default_factory=dict)
    """Position of each range."""


class VerifyChoice(Struct, frozen=True):
    """Settings for checking the numbers of compiled models. None means that the recipe sets it elsewhere, or nowhere."""

    where: Position
    wanted: bool = True
    files: tuple[Reference, ...] | None = None
    """Globs of `.npz` files, relative to the recipe."""
    made: MadeInputs | None = None
    metrics: Mapping[str, float] | None = None
    """Thresholds of metrics, by name."""
    reference: Literal["source", "prepared"] | None = None
    """Model to compare with: the source as in the recipe, or as prepared."""
    unjudged: Literal["fail", "emit"] | None = None
    """Outcome for a model whose numbers cannot be judged."""
    device: Literal["real"] | None = None
    """Required device: a real one, no emulator."""


class PrepareStep(NamedTuple):
    """Entry of a model's `prepare`: a user's program (`run`) or a built-in preparation, and its toolchain."""

    kind: str
    where: Position
    toolchain: Reference
    command: tuple[Setting, ...] = ()
    """Program and arguments of `run`. The templates `${in}`, `${out}` and `${model}` are not yet substituted."""
    options: Node | None = None
    """Value under the kind of a built-in preparation. The catalog defines its options."""
    files: tuple[Reference, ...] = ()
    """Globs of other files that it reads, relative to the recipe."""
    environment: Mapping[str, Setting] = NONE
    timeout: float | None = None
    """Maximum seconds, or None."""
    memory: int | None = None
    """Expected memory in bytes. None means an estimate."""


class ModelSpec(Struct, frozen=True):
    """Source model: a path relative to the recipe, `package:<package>/<file>` (installed), or the address of a remote file."""

    name: str
    where: Position
    path: str
    path_where: Position
    sha256: str | None = None
    data_sha256: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each external data file of a remote model, by its location in the graph."""
    input_shapes: Mapping[str, InputShape] = field(default_factory=dict)
    """Sizes of inputs by name, for every use of the model."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Sizes of open dimensions by name, or by denotation such as DATA_BATCH."""
    dimension_places: Mapping[str, Position] = field(default_factory=dict)
    """Position of each key of `dimensions`."""
    load_from: Literal["file", "memory"] = "file"
    """Place from which ONNX Runtime loads the graph: its file, or bytes in memory with the folder of the external data."""
    external_data: Reference | None = None
    """Folder of external data, relative to the recipe. None means the folder of the graph."""
    verify: VerifyChoice | None = None
    """Check of numbers wherever the model is compiled. Groups may override it."""
    prepare: tuple[PrepareStep, ...] = ()
    """Preparations before the compile, in order."""

    @property
    def is_remote(self) -> bool:
        """True if the path is an address to fetch."""
        return is_remote(self.path)

    @property
    def package_file(self) -> tuple[str, str] | None:
        """Installed Python package and the file in it, or None for another path."""
        return find_package_file(self.path)


class DeviceChoice(NamedTuple):
    """OrtEpDevice of a target. None everywhere means the one that the EP's catalog entry prefers."""

    type: Literal["cpu", "gpu", "npu"] | None = None
    vendor: str | None = None
    metadata: Mapping[str, str] = NONE
    virtual: bool = False


class EpChoice(NamedTuple):
    """EP of a target's session, from an installed package or a plugin `library` (a path relative to the recipe)."""

    ep: Reference
    device: DeviceChoice
    provider_options: Mapping[str, Setting]
    library: Setting | None = None


class Target(NamedTuple):
    """Target with its EPs in order of preference. A matrix has been expanded into one target for each row."""

    name: str
    where: Position
    toolchain: Reference
    eps: tuple[EpChoice, ...]
    session_options: Mapping[str, Setting]
    environment: Mapping[str, Setting] = NONE
    """Environment variables for the worker."""
    allow_unknown_options: bool = False
    allow_unknown_session_keys: bool = False
    allow_nondeterminism: bool = False
    """True if the recipe accepts that compiling again changes bytes."""
    whole: bool = True
    """False if an invalid part was removed. Missing parts are then no problems."""


class CompileSettings(Struct, frozen=True):
    """Form of a compiled EPContext model.

    `initializers` is the place of initializers of nodes outside the EP: in the model; in `external_file`, a template with `${model}`, from
    `external_threshold` bytes on; or as in the source.
    """

    embed: bool = False
    graph_optimization_level: GraphOptimization | None = None
    """None means the level in the catalog entry of the target's EP. It is never None in a plan."""
    initializers: Literal["inline", "external", "source"] = "inline"
    external_file: str | None = None
    external_threshold: int = 1024
    node_name_prefix: str | None = None
    embed_where: Position | None = None
    prefix_where: Position | None = None
    initializers_where: Position | None = None


class Expectation(Struct, frozen=True):
    """Expected properties of a compiled member. All members of a sharing group have equal expectations for the group as a whole."""

    ep_context_nodes: int | None = None
    fallback_nodes: int | Literal["any"] | None = None
    """Maximum number of nodes outside the EP. None means that only a target that ends with the CPU EP may leave nodes to it."""
    min_shared_ratio: float | None = None
    """Minimum share of the bytes of separately compiled members that sharing must save."""
    where: Position | None = None


class InitializerSharing(Struct, frozen=True):
    """One weights file for the members of a sharing group, with all initializers of at least `threshold` bytes."""

    where: Position
    threshold: int = 1024


class GroupMember(NamedTuple):
    """Model in a group, with its `name` there. Its own settings override the group's."""

    name: str
    model: Reference
    compile: CompileSettings
    expect: Expectation
    input_shapes: Mapping[str, InputShape] = NONE
    """Sizes of inputs in this group, in addition to those of the model."""
    verify: VerifyChoice | None = None


class Merge(NamedTuple):
    """Merge of a group's compiled models. Its references to members are texts that the planner resolves."""

    name: str
    where: Position
    connect: tuple[tuple[Reference, Reference], ...] | None = None
    """Outputs and the inputs that they feed, each as `model.value`. None connects outputs to inputs of the same name in later models."""
    prefixes: Mapping[str, Setting] = NONE
    """Prefix of the names in a model, by member."""


class GenaiChoice(NamedTuple):
    """Pipeline of onnxruntime-genai. `config` has all of its configuration except the pipeline."""

    where: Position
    config: Reference
    """JSON file, relative to the recipe."""
    roles: Mapping[GenaiRole, Reference]
    """Models of the group by role."""
    files: tuple[Reference, ...] = ()
    """Other files to ship, such as the tokenizer's, relative to the recipe."""


class GroupSpec(NamedTuple):
    """Models that are built together for some targets, in order. Globs have been expanded."""

    name: str
    where: Position
    members: tuple[GroupMember, ...]
    targets: tuple[Reference, ...]
    share_weights: bool
    share_initializers: InitializerSharing | None = None
    """Only for a group that shares weights. None means that each source keeps its initializers."""
    timeout: float | None = None
    """Maximum seconds of one session group, or None."""
    memory: int | None = None
    """Expected memory of one session group in bytes. None means an estimate."""
    merge: Merge | None = None
    genai: GenaiChoice | None = None
    allow_nondeterminism: bool = False
    """True if the recipe accepts that compiling again changes bytes, as for a target."""
    allow_failure: frozenset[str] = frozenset()
    """Targets for which a failure of this group does not fail the build."""


class Archive(NamedTuple):
    """Archive or image of an output's files, and its compression level. None means that the files are stored as they are."""

    format: ArchiveFormat
    level: int | None = None


class OutputSpec(Struct, frozen=True, dict=True):
    """Layout to emit. Names of groups and targets in its templates are not yet substituted: see `recipe.template`."""

    where: Position
    layout: Layout
    path: Setting
    model: Setting
    context_binary: Setting
    include_source: Setting | None = None
    """Name of each source model, to ship these as well."""
    component_name: Setting | None = None
    """Name of each model in a model package. None means the group's name if it has one model, else the model's."""
    groups: tuple[Reference, ...] | None = None
    """Groups of the output, in the recipe's order. None means all."""
    targets: tuple[Reference, ...] | None = None
    archive: Archive | None = None
    """None means a folder."""
    registry: Setting | None = None
    """Reference of an image in a registry."""
    provenance: bool = False
    sbom: bool = False

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


class Defaults(Struct, frozen=True):
    """Defaults that a recipe takes where it says nothing."""

    name: str | None = None
    """Name of the recipe, from its folder."""
    toolchains: Mapping[str, tuple[str, ...]] = NONE
    """Toolchains of the catalog, each with its packages, or with its interpreter."""
    groups: tuple[str, ...] = ()
    """Groups of one model, for all targets."""
    output: str | None = None
    """Path of the only output, a template of group and target."""


NO_DEFAULTS: Final = Defaults()


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Recipe, validated and expanded."""

    file: Path
    name: str
    description: str
    toolchains: Mapping[str, ToolchainSpec]
    models: Mapping[str, ModelSpec]
    targets: Mapping[str, Target]
    groups: Mapping[str, GroupSpec]
    outputs: tuple[OutputSpec, ...]
    catalogs: tuple[Reference, ...] = ()
    """Users' catalog files, relative to the recipe."""
    cache: CacheChoice | None = None
    defaults: Defaults = NO_DEFAULTS
    folders: tuple[Path, ...] = ()
    """Folders in which a new file may match a pattern of `models`."""
    files: tuple[Path, ...] = ()
    """Files of the recipe: its own first, then those that it extends and includes."""
    names: tuple[Path, ...] = ()
    """Paths by which the files were opened. With links, several may lead to the same file."""
    digests: Mapping[Path, str] = dataclasses.field(default_factory=dict, compare=False)
    """SHA-256 of each of `files` when it was read."""
    digest: str = ""
    """Digest of the recipe schema, of all files, and of the values of their templates."""

    @property
    def directory(self) -> Path:
        return self.file.parent
