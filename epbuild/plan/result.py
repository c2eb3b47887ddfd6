"""`CompileResult` and results of other actions, which the cache stores as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError, field, json, to_builtins

from epbuild.cache.blobs import BlobStore
from epbuild.cache.records import ActionRecords
from epbuild.core.digest import Blob
from epbuild.core.records import convert, prepare_type
from epbuild.core.safepath import is_anchored, is_outside
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.weights import WeightBytes
from epbuild.recipe.model import MeasuredOn

DIAGNOSTICS = "diagnostics"
"""Folder in the names of diagnostic files among a result's artifacts."""


class Measurements(Struct, frozen=True):
    """Cost of an action: total seconds, seconds of each member by name, and peak memory in bytes."""

    seconds: float
    members: Mapping[str, float]
    peak_memory: int | None


class ActionResult(Struct, frozen=True):
    """Result of an action: its artifacts by name, its log and its cost."""

    artifacts: Mapping[str, Blob]
    log: Blob
    measured: Measurements

    @property
    def names(self) -> Iterable[str]:
        """Names of the artifacts that the result refers to."""
        return ()

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each artifact, by name."""
        return {name: blob.digest for name, blob in self.artifacts.items()}


_R = TypeVar("_R", bound=ActionResult)
_D = TypeVar("_D")


class ValueType(Struct, frozen=True, omit_defaults=True):
    """Input or output of a model. A dimension is a size, the name of a symbol, or None. A shape of unknown rank is None."""

    name: str
    type: str
    shape: tuple[Any, ...] | None
    computed: tuple[Any, ...] | UnsetType | None = UNSET
    """Shape that ONNX Runtime computed for an output of a source model. Set only if it differs from the declared shape."""


class ModelSignature(Struct, frozen=True, omit_defaults=True):
    """Inputs and outputs of a source model, and the name of the shared weights file beside the model."""

    inputs: tuple[ValueType, ...]
    outputs: tuple[ValueType, ...]
    weights_file: str | None = None


class ContextNode(Struct, frozen=True, omit_defaults=True):
    """EPContext node. Attributes that are absent or have the schema's default value are None."""

    name: str
    source: str | None
    main_context: int
    embed_mode: int
    partition_name: str | None = None
    ep_sdk_version: str | None = None
    onnx_model_filename: str | None = None
    hardware_architecture: str | None = None
    notes: str | None = None
    max_size: int | None = None
    reference: str | None = None
    payload_bytes: int | None = None
    others: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, node: EPContextNode) -> ContextNode:
        made: dict[str, Any] = {"max_size": node.max_size or None, "others": dict(node.others) or None}
        made["payload_bytes"] = node.payload[1] if node.payload else None
        return cls(**{name: getattr(node, name) for name in cls.__struct_fields__ if name not in made}, **made)


class FallbackNode(Struct, frozen=True):
    """Fallback node, and the reason for the fallback if an EP reported one."""

    node: str
    """Name of the node, which may be empty."""
    operator: str
    """Operator, with its domain."""
    reason: str | None
    """Reason that the EP reported. None if the EP reported no reason."""


class ModelResult(Struct, frozen=True, omit_defaults=True):
    """Compiled model of one member of a session group. Its files are artifacts of the result."""

    member: str
    source: ModelSignature
    file: str
    binaries: Mapping[str, str]
    """EP that wrote each context binary, by the binary's name."""
    data: tuple[str, ...]
    nodes: tuple[ContextNode, ...]
    fallback_nodes: int
    compatibility: Mapping[str, str]
    left: tuple[FallbackNode, ...] = ()
    """Fallback nodes. Results of older releases do not list all of them, so the list may be shorter than `fallback_nodes`."""
    output_shapes: Mapping[str, tuple[Any, ...] | None] = field(default_factory=dict)
    """Shapes of the compiled model's outputs, by name. Empty in results of older releases."""

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file, *self.binaries, *self.data)


class CompileResult(ActionResult, frozen=True, dict=True, omit_defaults=True):
    """Result of a session group."""

    models: tuple[ModelResult, ...]
    alone: Mapping[str, int] = field(default_factory=dict)
    """Total bytes of a member's artifacts when the member is compiled alone, by member. Empty if not measured."""
    shared_initializers: WeightBytes | None = None
    source_weights: WeightBytes | None = None
    diagnostics: tuple[str, ...] = ()
    """Artifacts that diagnostic options requested. They are kept beside the log, and are not emitted."""

    @property
    def names(self) -> Iterable[str]:
        return (name for model in self.models for name in model.files)

    def model(self, member: str) -> ModelResult:
        return self._by_member[member]

    @cached_property
    def _by_member(self) -> dict[str, ModelResult]:
        return {model.member: model for model in self.models}

    def size(self, names: Iterable[str]) -> int:
        """Return the total bytes of the named artifacts. Count each artifact only once."""
        return sum(self.artifacts[name].size for name in set(names))

    @property
    def total_bytes(self) -> int:
        """Total bytes of the models, their context binaries and their data."""
        return self.size(self.names)

    @property
    def context_bytes(self) -> int:
        """Total bytes of the context binaries and of the data that they need."""
        return self.size(name for model in self.models for name in (*model.binaries, *model.data))


class PreparedModel(Struct, frozen=True):
    """Names of the files of a prepared model."""

    file: str
    external: tuple[str, ...]
    subgraph_data: tuple[str, ...]


class PreparationResult(ActionResult, frozen=True):
    """Result of a preparation."""

    model: PreparedModel

    @property
    def names(self) -> Iterable[str]:
        return (self.model.file, *self.model.external)


class Figures(Struct, frozen=True):
    """Metrics of one output of a model, compared with its reference. A metric is None if it is undefined or not finite."""

    output: str
    kind: str
    """`float`, `steps` (8-bit and 16-bit integers, treated as quantized values) or `exact` (values that must be equal)."""
    bits: int
    """Bits of one element."""
    samples: int
    elements: int
    cosine: float | None
    snr_db: float | None
    max_abs: float | None
    max_rel: float | None
    top1: float | None
    largest: float
    """Largest finite magnitude of the reference."""
    largest_got: float
    """Largest finite magnitude of the output."""
    constant: bool
    """True if the reference has more than one element and all its elements are equal."""
    undefined: int
    """Number of reference elements that are NaN or infinite."""
    lost: int
    """Number of output elements that are NaN or infinite where the reference is finite."""


class Loss(Struct, frozen=True):
    """Metrics of one conversion. A metric is None if it is undefined."""

    cosine: float | None
    snr_db: float | None
    top1: float | None

    @classmethod
    def of(cls, figures: Figures) -> Loss:
        return cls(figures.cosine, figures.snr_db, figures.top1)


class Losses(Struct, frozen=True):
    """Losses of the two conversions between the source of a prepared model and its compiled model."""

    preparation: Loss
    """Prepared model on the CPU EP, compared with the source on the CPU EP."""
    ep: Loss
    """Compiled model, compared with the prepared model on the CPU EP."""


class FigureRow(Figures, frozen=True):
    """Metrics of one output of a member, with the inputs, the reference and the device of the comparison."""

    member: str
    evidence: str
    on: str
    reference: str
    at: str
    quantized: bool
    unshared: bool
    worst: str | None
    losses: Losses | None = None
    """Losses of the preparations and of the EP. None if the model is not prepared or is compared with the prepared model."""
    command_device: str | None = None
    """Name of the device on which a user's command ran the model. None if epbuild ran the model."""


class UnjudgedMember(Struct, frozen=True, omit_defaults=True):
    """Member whose accuracy could not be measured on this machine, and the reason."""

    member: str
    reason: str
    by_inputs: bool = False
    """True if the member's generated inputs are the cause. In that case, other machines cannot measure the member either."""


class TaskMetric(Struct, frozen=True):
    """Metric that a user's command computed for the source of a member and for the compiled model."""

    member: str
    name: str
    source: float
    compiled: float


class VerificationResult(ActionResult, frozen=True, omit_defaults=True):
    """Result of a verification."""

    figures: tuple[FigureRow, ...]
    unjudged: tuple[UnjudgedMember, ...]
    metrics: tuple[TaskMetric, ...] = ()

    def unjudged_member(self, name: str) -> UnjudgedMember | None:
        """Return the entry of a member whose accuracy could not be measured, or None if it was measured."""
        return next((item for item in self.unjudged if item.member == name), None)


class MeasuredModel(Struct, frozen=True, omit_defaults=True):
    """Figures of one model."""

    member: str
    figures: Mapping[str, int | float]
    """Values by name: `load_ms`, `latency_ms.first`, `latency_ms.p50`, `latency_ms.p95` and `peak_memory` (bytes)."""
    on: MeasuredOn
    """Runner of the model."""
    device: str | None = None
    """Name of the device. None if it is unknown."""


class MeasurementResult(ActionResult, frozen=True):
    """Result of a measurement."""

    models: tuple[MeasuredModel, ...]
    diagnostics: tuple[str, ...] = ()
    """Artifacts that the measurement wrote beside its figures. They are kept beside the log, and are not emitted."""

    def model(self, member: str) -> MeasuredModel:
        return next(model for model in self.models if model.member == member)


class _Named(Struct, frozen=True):
    name: str


class _SourceGraph(Struct, frozen=True):
    graph: str


class _Members(Struct, frozen=True):
    members: tuple[_Named, ...]


class _Sources(Struct, frozen=True):
    source: Mapping[str, _SourceGraph]


class _Record(Struct, Generic[_D, _R], frozen=True):
    document: _D
    result: _R


class _Kind(Struct, frozen=True):
    kind: str | None = None


class _AnyRecord(Struct, frozen=True):
    document: _Kind


_RECORDS: Mapping[str | None, Any] = {
    None: _Record[_Members, CompileResult],
    "verify": _Record[_Members, VerificationResult],
    "measure": _Record[_Members, MeasurementResult],
    "prepare": _Record[_Sources, PreparationResult],
}
"""Types of records, by the `kind` of the key document (None for session groups). They have only the fields that are validated."""


def open_action_records(root: Path) -> ActionRecords:
    """Return the action records of the store at `root`."""
    return ActionRecords(root, read_action_record)


def make_action_record(document: Mapping[str, Any], result: ActionResult) -> dict[str, Any]:
    """Return the action record of a result. `document` is the key document of the action."""
    return {"document": dict(document), "result": to_builtins(result)}


def get_diagnostics(result: ActionResult) -> tuple[str, ...]:
    """Return the names of the artifacts that are kept beside the log."""
    return result.diagnostics if isinstance(result, CompileResult | MeasurementResult) else ()


def find_result(records: ActionRecords, store: BlobStore, key: str, kind: type[_R]) -> _R | None:
    """Return the result of an action key, or None if the store lacks the result or any of its blobs.

    `records` are the action records of the store. A result of another type than `kind` counts as missing.
    """
    result = records.read(key, _parse_action_record)
    if not isinstance(result, kind):
        return None
    return result if all(store.has(blob.digest, blob.size) for blob in result.artifacts.values()) else None


def is_action_record(record: Mapping[str, Any]) -> bool:
    """Return whether `read_action_record` accepts a record."""
    return read_action_record(record) is not None


def read_action_record(record: Mapping[str, Any]) -> ActionResult | None:
    """Return the result in a record, or None if the record is invalid.

    A valid result has a model for each member, and all artifacts that the models refer to. The checksum of a record proves that its
    bytes are unchanged. This function checks that this release of epbuild understands the record.
    """
    return _read_record(lambda kind: convert(record, kind))


def _parse_action_record(record: Raw) -> ActionResult | None:
    """Return the result that `read_action_record` returns for the JSON of a record."""
    return _read_record(lambda kind: json.decode(record, type=prepare_type(kind)))


def _read_record(read: Callable[[type[Any]], Any]) -> ActionResult | None:
    """Return the result in a record, or None. `read` converts the record to a type, or raises ValidationError."""
    try:
        kind = read(_AnyRecord).document.kind
        found = read(_RECORDS[kind]) if kind in _RECORDS else None
    except ValidationError:
        return None
    if found is None:
        return None
    result: Any = found.result
    has_models = isinstance(result, CompileResult | MeasurementResult)
    if has_models and [model.member for model in result.models] != [member.name for member in found.document.members]:
        return None
    diagnostics = get_diagnostics(result)
    is_safe = all(name.startswith(f"{DIAGNOSTICS}/") and not is_outside(name) and not is_anchored(name) for name in diagnostics)
    return result if is_safe and {*result.names, *diagnostics} <= result.artifacts.keys() else None
