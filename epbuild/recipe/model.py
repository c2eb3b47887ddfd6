"""Data model of a recipe. No function in this module reads a file.

Objects that messages refer to have a field `where`, which is their position in the recipe's text.
"""

from __future__ import annotations

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
"""Format of the archive or image that contains an output's files."""

CompressionMethod = Literal["zstd", "deflate"]
"""Compression of an output's files."""

GenaiRole = Literal["embeddings", "prefill", "decode", "lm_head", "both"]
"""Role of a model in a pipeline of onnxruntime-genai. A model with the role `both` runs on the prompt and on each new token."""

GraphOptimization = Literal["disable_all", "basic", "extended", "layout", "all"]


MeasuredOn = Literal["device", "emulator", "cpu"]
"""Runner of a measured model: the device, an emulator of it, or the CPU instead of it."""

NONE: Final[Mapping[Any, Any]] = {}
"""Empty mapping, the default of optional mappings. It must not be modified."""


class Setting(Struct, frozen=True):
    """Value of an option, with the positions of the value and of the option's name."""

    value: Scalar
    where: Position
    name_where: Position


class Reference(NamedTuple):
    """Name of another part of the recipe, with its position."""

    name: str
    where: Position


class InputShape(NamedTuple):
    """Sizes of an input's dimensions, with the positions of the list, of each size and of the input's name."""

    sizes: tuple[int, ...]
    where: Position
    places: tuple[Position, ...]
    name_where: Position


class ToolchainSpec(Struct, frozen=True, dict=True):
    """Python environment of a target.

    If `interpreter` is None, epbuild creates the environment with the version `python` and installs `packages`, which are pip
    requirements. Otherwise the environment already exists. It must contain `packages`, which are then plain requirements.
    """

    name: str
    where: Position
    python: str | None = None
    packages: tuple[str, ...] = ()
    interpreter: str | None = None
    platforms: tuple[str, ...] = ()
    """Platforms to lock the packages for.

    Empty means the platform on which `epbuild lock` runs, and all platforms in the lock file.
    """
    custom_ops: tuple[Reference, ...] = ()
    """Custom operators. Each is the path of a shared library, relative to the recipe, or a Python package that contains a library."""

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        return tuple(read_requirement(package) for package in self.packages)


class MadeInputs(Struct, frozen=True):
    """Settings for generated inputs of numerical checks: seed, number of input sets, and value ranges."""

    seed: int = 0
    samples: int = 1
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Inclusive minimum and maximum of the values of an input, by the input's name."""
    places: Mapping[str, Position] = field(default_factory=dict)
    """Position of each range."""


class CommandChoice(Struct, frozen=True):
    """User's command for the numerical check of compiled models."""

    where: Position
    command: tuple[Setting, ...]
    """Program and arguments. The templates `${in}`, `${out}` and `${model}` are not yet substituted."""
    files: tuple[Reference, ...] = ()
    """Globs of other files that the command reads, relative to the recipe."""


class MetricChoice(CommandChoice, frozen=True):
    """User's command that computes task metrics, such as an accuracy, from the outputs of a model, and limits on these metrics."""

    min: Mapping[str, float] = field(default_factory=dict)
    max: Mapping[str, float] = field(default_factory=dict)
    max_drop: Mapping[str, float] = field(default_factory=dict)
    """Maximum difference by which a metric of the compiled model may be below that of its source, by name."""
    max_rise: Mapping[str, float] = field(default_factory=dict)


class VerifyChoice(Struct, frozen=True):
    """Settings of the numerical check of compiled models. A field is None if the model, group or member does not set it."""

    where: Position
    wanted: bool = True
    files: tuple[Reference, ...] | None = None
    """Globs of `.npz` files, relative to the recipe."""
    made: MadeInputs | None = None
    metrics: Mapping[str, float] | None = None
    """Thresholds of metrics, by name."""
    reference: Literal["source", "prepared"] | None = None
    """Reference of the comparison: the source model, or the model after its preparations."""
    unjudged: Literal["fail", "emit"] | None = None
    """Outcome if a model cannot be verified."""
    device: Literal["real"] | None = None
    """`real` requires a real device and excludes emulators."""
    metric: MetricChoice | None = None
    command: CommandChoice | None = None
    """Command that runs compiled models elsewhere, such as on a phone."""


class MeasureChoice(NamedTuple):
    """Settings of the measurement of compiled models. They run on this machine or a worker, or a user's command runs them."""

    where: Position
    command: tuple[Setting, ...] = ()
    """Program and arguments. Empty if the target's EPs run the models.

    The templates `${in}`, `${out}`, `${facts}` and `${model}` are not yet substituted.
    """
    files: tuple[Reference, ...] = ()
    """Globs of other files that the command reads, relative to the recipe."""
    environment: Mapping[str, Setting] = NONE
    timeout: float | None = None
    """Maximum seconds for one model. None means no limit."""
    on: MeasuredOn = "device"
    """Runner to which limits apply. Figures of another runner meet no limit. Without a command, `device` requires a real device."""
    runs: int = 50
    """Number of runs without a command."""
    profile: bool = False
    """True to profile further runs with ONNX Runtime. Refused with a command."""


class PrepareStep(NamedTuple):
    """Entry of a model's `prepare`, or its `make`: a user's program (`run`) or a built-in preparation. The step runs in `toolchain`."""

    kind: str
    where: Position
    toolchain: Reference
    command: tuple[Setting, ...] = ()
    """Program and arguments of `run`. The templates `${in}`, `${out}` and `${model}` are not yet substituted."""
    options: Node | None = None
    """Options of a built-in preparation: the value of the key with the preparation's name. The catalog defines the options."""
    files: tuple[Reference, ...] = ()
    """Globs of other files that the step reads, relative to the recipe."""
    environment: Mapping[str, Setting] = NONE
    timeout: float | None = None
    """Maximum seconds. None means that the recipe sets no maximum."""
    memory: int | None = None
    """Expected memory in bytes. None means an estimate."""


class ModelSpec(Struct, frozen=True):
    """Source model. Its `path` is a path relative to the recipe, `package:<package>/<file>`, or the address of a remote file.

    A model with a `parent`, or one that a command makes, has an empty path. A model with a parent has the source of its `origin`.
    """

    name: str
    where: Position
    path: str
    path_where: Position
    """Position of the source: the value of `path`, `make` or `from`."""
    sha256: str | None = None
    data_sha256: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each external data file of a remote model, by its location in the graph."""
    input_shapes: Mapping[str, InputShape] = field(default_factory=dict)
    """Shapes of inputs by name. They apply in every group that contains the model."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Sizes of symbolic dimensions by name, or by denotation such as DATA_BATCH."""
    dimension_places: Mapping[str, Position] = field(default_factory=dict)
    """Position of each key of `dimensions`."""
    load_from: Literal["file", "memory"] = "file"
    """Way in which ONNX Runtime loads the graph.

    `file` passes the path of the graph. `memory` passes the bytes of the graph and the folder of the external data.
    """
    external_data: Reference | None = None
    """Folder of external data, relative to the recipe. None means the folder of the graph."""
    verify: VerifyChoice | None = None
    """Numerical check in all groups that contain the model. Groups may override the settings."""
    prepare: tuple[PrepareStep, ...] = ()
    """Preparations to run before the model is compiled, in order."""
    make: PrepareStep | None = None
    """Command that writes the model's file, before the first preparation."""
    parent: Reference | None = None
    """Model whose prepared result this model's preparations read."""
    root: ModelSpec | None = None
    """First ancestor of a model with a parent. None if the model has no parent, or if the parent is invalid."""

    @property
    def origin(self) -> ModelSpec:
        """Model with the source: the first ancestor, or the model itself."""
        return self.root or self

    @property
    def commands(self) -> tuple[PrepareStep, ...]:
        """The command that makes the model, if any, and the preparations, in order."""
        return self.prepare if self.make is None else (self.make, *self.prepare)

    @property
    def is_remote(self) -> bool:
        """True if the path is an address to fetch."""
        return is_remote(self.path)

    @property
    def package_file(self) -> tuple[str, str] | None:
        """Python package and the file in it, or None if `path` is not `package:<package>/<file>`."""
        return find_package_file(self.path)


class DeviceChoice(NamedTuple):
    """Criteria that select the OrtEpDevice of a target. If no field is set, the EP's catalog entry selects the device."""

    type: Literal["cpu", "gpu", "npu"] | None = None
    vendor: str | None = None
    metadata: Mapping[str, str] = NONE
    virtual: bool = False


class EpChoice(Struct, frozen=True):
    """EP of a target's session, from an installed package or a plugin `library` (a path relative to the recipe)."""

    ep: Reference
    device: DeviceChoice
    provider_options: Mapping[str, Setting]
    library: Setting | None = None


class Target(Struct, frozen=True):
    """Target with its EPs in order of preference. Each row of a matrix is a separate target."""

    name: str
    where: Position
    toolchain: Reference
    eps: tuple[EpChoice, ...]
    session_options: Mapping[str, Setting]
    environment: Mapping[str, Setting] = NONE
    """Environment variables for the worker."""
    run_options: Mapping[str, Setting] = NONE
    """Configuration entries of each run of a compiled model."""
    allow_unknown_options: bool = False
    allow_unknown_session_keys: bool = False
    allow_nondeterminism: bool = False
    """True if the recipe accepts that a second compile may produce different bytes."""
    measure: MeasureChoice | None = None
    """Measurement of all models of the target, unless their group has its own."""
    whole: bool = True
    """False if an invalid part was removed. Missing parts of such a target are not reported."""


class CompileSettings(Struct, frozen=True):
    """Settings that determine how an EPContext model is written.

    `initializers` selects where to store the initializers of fallback nodes: in the EPContext model (`inline`), in `external_file`
    (`external`), or in the source model (`source`). `external_file` is a template with `${model}`. The file stores initializers of
    at least `external_threshold` bytes. If `initializer_names` has patterns, initializers that match none of them are stored inline.
    """

    embed: bool = False
    graph_optimization_level: GraphOptimization | None = None
    """Graph optimization level of the compile. None means the level in the catalog entry of the EP. A planned member always has a level."""
    initializers: Literal["inline", "external", "source"] = "inline"
    external_file: str | None = None
    external_threshold: int = 1024
    node_name_prefix: str | None = None
    initializer_names: tuple[str, ...] = ()
    embed_where: Position | None = None
    prefix_where: Position | None = None
    initializers_where: Position | None = None


class Expectation(Struct, frozen=True):
    """Expected properties of a compiled member.

    In a sharing group, all members have the same expectations. They apply to the whole group.
    """

    ep_context_nodes: int | None = None
    fallback_nodes: int | Literal["any"] | None = None
    """Maximum number of fallback nodes.

    None means any number for a target whose last EP is the CPU EP, and 0 for other targets.
    """
    min_shared_ratio: float | None = None
    """Minimum fraction of bytes that sharing must save, compared with compiling each member alone."""
    max_bytes: int | None = None
    """Maximum size of the compiled model in bytes, with its context binary and data."""
    max_growth: float | None = None
    """Maximum growth of that size since the release in `baseline`, as a fraction."""
    baseline: Reference | None = None
    """Path of an earlier release's report or outputs, relative to the recipe."""
    figures: tuple[tuple[str, float], ...] = ()
    """Names and maximum values of measured figures, such as `load_ms` and `latency_ms.p50`."""
    figure_growth: tuple[tuple[str, float], ...] = ()
    """Names and maximum growth of measured figures since the release in `baseline`, as fractions."""
    where: Position | None = None

    @property
    def size_limits(self) -> tuple[int | None, float | None, str | None]:
        """Limits of the size, without positions. The baseline counts only if it limits the growth of the size."""
        baseline = self.baseline if self.max_growth is not None else None
        return self.max_bytes, self.max_growth, baseline and baseline.name


class InitializerSharing(Struct, frozen=True):
    """Settings of the weights file that the members of a sharing group share.

    The file contains all initializers of at least `threshold` bytes.
    """

    where: Position
    threshold: int = 1024


class GroupMember(Struct, frozen=True):
    """Model in a group. `name` is the model's name in the group. The settings of a member override the settings of the group."""

    name: str
    model: Reference
    compile: CompileSettings
    expect: Expectation
    input_shapes: Mapping[str, InputShape] = NONE
    """Shapes of inputs in this group, in addition to the model's own `input_shapes`."""
    verify: VerifyChoice | None = None
    compiled: bool = True
    """False for `compile: none`: the model is emitted as it is, and runs on the CPU EP."""
    dimensions: Mapping[str, int] = NONE
    """Sizes of symbolic dimensions in this group. They override the model's own `dimensions`."""
    dimension_places: Mapping[str, Position] = NONE
    """Position of each key of `dimensions`."""


class Merge(Struct, frozen=True):
    """Merge of a group's compiled models into one model. The planner resolves the names of members."""

    name: str
    where: Position
    connect: tuple[tuple[Reference, Reference], ...] | None = None
    """Pairs of an output and the input that it feeds, as `model.value`.

    None connects each output to the inputs of the same name in later models.
    """
    prefixes: Mapping[str, Setting] = NONE
    """Prefix for the names in a member's model, by member."""


class GenaiChoice(Struct, frozen=True):
    """Settings of an onnxruntime-genai pipeline."""

    where: Position
    config: Reference
    """Path, relative to the recipe, of a JSON file with the complete configuration except the pipeline."""
    roles: Mapping[GenaiRole, tuple[Reference, ...]]
    """Models of the group by role. Several models of one role run one after the other."""
    files: tuple[Reference, ...] = ()
    """Other files to emit, such as the files of the tokenizer, relative to the recipe."""


class GroupSpec(Struct, frozen=True):
    """Group of models that are compiled together for some targets, in order. Globs are already expanded."""

    name: str
    where: Position
    members: tuple[GroupMember, ...]
    targets: tuple[Reference, ...]
    share_weights: bool
    """True if all members, or the members of each set in `sharing_sets`, share weights."""
    share_initializers: InitializerSharing | None = None
    """Settings of the shared weights file. None if source models keep their initializers, as in groups that do not share weights."""
    timeout: float | None = None
    """Maximum seconds for one session group, or None for no limit."""
    memory: int | None = None
    """Expected memory of one session group in bytes. None means an estimate."""
    merge: Merge | None = None
    genai: GenaiChoice | None = None
    allow_nondeterminism: bool = False
    """True if the recipe accepts that a second compile may produce different bytes. Targets have the same setting."""
    allow_failure: frozenset[str] = frozenset()
    """Targets for which a failure of this group does not fail the build."""
    sharing_sets: tuple[tuple[Reference, ...], ...] = ()
    """Sets of members that share weights with each other. Empty if all members of a sharing group form one set."""
    adapters: tuple[Reference, ...] = ()
    """LoRA adapters to emit, relative to the recipe."""
    measure: MeasureChoice | None = None
    """Measurement of the compiled models. None means the target's."""


class Archive(Struct, frozen=True):
    """Archive or image that contains an output's files. A `level` of None means no compression."""

    format: ArchiveFormat
    level: int | None = None


class Encryption(Struct, frozen=True):
    """Encryption of an output's context data. The key is in an environment variable, or a command prints it."""

    where: Position
    key_variable: str | None = None
    key_command: tuple[str, ...] = ()
    key_id: str | None = None
    """Name of the key in the manifest. The output is encrypted again if the name changes."""


class OutputSpec(Struct, frozen=True, dict=True):
    """Output to emit. Its templates still contain the names of groups and targets (see `recipe.template`)."""

    where: Position
    layout: Layout
    path: Setting
    model: Setting
    context_binary: Setting
    include_source: Setting | None = None
    """Template for the file names of source models. If set, the output also contains the source models."""
    component_name: Setting | None = None
    """Template for the names of components in a model package.

    None means the name of the group if the group has one model, or else the name of the model.
    """
    groups: tuple[Reference, ...] | None = None
    """Groups of the output, in the recipe's order. None means all groups."""
    targets: tuple[Reference, ...] | None = None
    archive: Archive | None = None
    """Archive or image. None means that the output is a folder."""
    registry: Setting | None = None
    """Reference of an image in a registry."""
    provenance: bool = False
    sbom: bool = False
    encryption: Encryption | None = None

    def is_for(self, group: str, target: str) -> bool:
        groups, targets = self._chosen
        return (groups is None or group in groups) and (targets is None or target in targets)

    @cached_property
    def names_targets(self) -> bool:
        """True if the names of files in the output may depend on the name of the target."""
        templates = (self.model, self.context_binary, self.component_name)
        return self.include_source is not None or any("${target}" in str(text.value) for text in templates if text is not None)

    @cached_property
    def _chosen(self) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        groups, targets = (
            None if chosen is None else frozenset(reference.name for reference in chosen)
            for chosen in (self.groups, self.targets)
        )
        return groups, targets


class Defaults(Struct, frozen=True):
    """Defaults for keys that the recipe does not set."""

    name: str | None = None
    """Name of the build, from the recipe's folder; null if the recipe sets it."""
    toolchains: Mapping[str, tuple[str, ...]] = NONE
    """Packages or interpreter of each default toolchain, by the toolchain's name."""
    groups: tuple[str, ...] = ()
    """Groups created for models that are in no group. Each has all targets."""
    output: str | None = None
    """Template of the default output path; null if the recipe has outputs."""


NO_DEFAULTS: Final = Defaults()


class Recipe(Struct, frozen=True, dict=True):
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
    """Files of the recipe: the main file first, then the files that it extends and includes."""
    names: tuple[Path, ...] = ()
    """Paths that were used to open the files. Because of links, several paths may lead to the same file."""
    digests: Mapping[Path, str] = field(default_factory=dict)
    """SHA-256 of the content of each file in `files`, as read."""
    digest: str = ""
    """Digest of the recipe schema, of all files, and of the values that templates in the files use."""

    @cached_property
    def directory(self) -> Path:
        return self.file.parent
