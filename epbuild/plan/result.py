"""`CompileResult` and the results of other actions, whose JSON the cache keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, UnsetType, ValidationError, field

from epbuild.cache.records import ActionRecords
from epbuild.core.digest import Blob
from epbuild.core.records import convert
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.weights import WeightBytes


class Measurements(Struct, frozen=True):
    """What an action cost, and what each member of a session group took; the seconds of those, by name."""

    seconds: float
    members: Mapping[str, float]
    peak_memory: int | None


class ActionResult(Struct, frozen=True):
    """What every action comes to: its artifacts by name, its log and its cost."""

    artifacts: Mapping[str, Blob]
    log: Blob
    measured: Measurements

    @property
    def names(self) -> Iterable[str]:
        """The artifacts that it refers to."""
        return ()

    @property
    def digests(self) -> dict[str, str]:
        """Those of its artifacts, by name."""
        return {name: blob.digest for name, blob in self.artifacts.items()}


class ValueType(Struct, frozen=True, omit_defaults=True):
    """An input or an output of a model. A dimension is a size, a symbol's name, or None; a shape is None where the rank is unknown."""

    name: str
    type: str
    shape: tuple[Any, ...] | None
    computed: tuple[Any, ...] | UnsetType | None = UNSET
    """Of a source's output that is declared with a shape which its graph does not compute: what ONNX Runtime made of it."""


class ModelSignature(Struct, frozen=True, omit_defaults=True):
    """The inputs and outputs of what was compiled, and the weights file beside it that it shares."""

    inputs: tuple[ValueType, ...]
    outputs: tuple[ValueType, ...]
    weights_file: str | None = None


class ContextNode(Struct, frozen=True, omit_defaults=True):
    """An EPContext node; attributes that are absent, or at the schema's default, are None."""

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


class LeftNode(Struct, frozen=True):
    """A node outside the EPs: its name (empty where it has none), its operator with its domain, and why; None: no EP reported it."""

    node: str
    operator: str
    reason: str | None


class ModelResult(Struct, frozen=True, omit_defaults=True):
    """What a member of a session group was compiled to: files are artifacts of the result."""

    member: str
    source: ModelSignature
    file: str
    binaries: Mapping[str, str]
    """The EP that made each context binary, by the binary's name."""
    data: tuple[str, ...]
    nodes: tuple[ContextNode, ...]
    fallback_nodes: int
    compatibility: Mapping[str, str]
    left: tuple[LeftNode, ...] = ()
    """The nodes outside the EPs; fewer than `fallback_nodes` in results of releases that did not list them."""
    output_shapes: Mapping[str, tuple[Any, ...] | None] = field(default_factory=dict)
    """The shapes of the compiled model's outputs, by name; none in results of releases that did not record them."""

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file, *self.binaries, *self.data)


class CompileResult(ActionResult, frozen=True, dict=True, omit_defaults=True):
    """What a session group came to."""

    models: tuple[ModelResult, ...]
    alone: Mapping[str, int] = field(default_factory=dict)
    """The bytes of each member compiled alone, by name, where that was measured."""
    shared_initializers: WeightBytes | None = None
    source_weights: WeightBytes | None = None

    @property
    def names(self) -> Iterable[str]:
        return (name for model in self.models for name in model.files)

    def model(self, member: str) -> ModelResult:
        return self._by_member[member]

    @cached_property
    def _by_member(self) -> dict[str, ModelResult]:
        return {model.member: model for model in self.models}

    def size(self, names: Iterable[str]) -> int:
        """The bytes of some of its artifacts, each once."""
        return sum(self.artifacts[name].size for name in set(names))


class PreparedModel(Struct, frozen=True):
    """The files of a prepared model."""

    file: str
    external: tuple[str, ...]
    subgraph_data: tuple[str, ...]


class PreparationResult(ActionResult, frozen=True):
    """What a preparation came to."""

    model: PreparedModel

    @property
    def names(self) -> Iterable[str]:
        return (self.model.file, *self.model.external)


class Figures(Struct, frozen=True):
    """What one output of a model comes to. None: not defined, or no finite number."""

    output: str
    kind: str
    """`float`; `steps`: integers of 8 and 16 bits, which are taken for quantised values; `exact`: what has to be equal."""
    bits: int
    """Of an element."""
    samples: int
    elements: int
    cosine: float | None
    snr_db: float | None
    max_abs: float | None
    max_rel: float | None
    top1: float | None
    largest: float
    """The largest finite magnitude that is expected."""
    largest_got: float
    """The largest finite magnitude that came out."""
    constant: bool
    """Whether the same number is expected everywhere, of more than one."""
    undefined: int
    """How many of the expected elements are not a number, or infinite."""
    lost: int
    """How many of those that came out are, where a number is expected."""


class FigureRow(Figures, frozen=True):
    """The figures of one output of a member, and what they are from."""

    member: str
    evidence: str
    on: str
    reference: str
    at: str
    quantised: bool
    unshared: bool
    worst: str | None


class UnjudgedMember(Struct, frozen=True, omit_defaults=True):
    """A member whose numbers could not be found here, and why."""

    member: str
    reason: str
    by_inputs: bool = False
    """Whether its made inputs are to blame, so that no other machine can judge it either."""


class VerificationResult(ActionResult, frozen=True):
    """What a check of numbers came to."""

    figures: tuple[FigureRow, ...]
    unjudged: tuple[UnjudgedMember, ...]

    def unjudged_member(self, name: str) -> UnjudgedMember | None:
        """A member by its name, if it could not be judged."""
        return next((item for item in self.unjudged if item.member == name), None)


class _Named(Struct, frozen=True):
    name: str


class _SourceGraph(Struct, frozen=True):
    graph: str


_KINDS: Mapping[str | None, tuple[str, Any, type[ActionResult]]] = {
    None: ("members", tuple[_Named, ...], CompileResult),
    "verify": ("members", tuple[_Named, ...], VerificationResult),
    "prepare": ("source", Mapping[str, _SourceGraph], PreparationResult),
}
"""By the `kind` in the key document, of which that of a session group has none: what is read of the document, and the result."""


def action_records(root: Path) -> ActionRecords:
    """The action records in the store at `root`."""
    return ActionRecords(root, read_action_record)


def is_action_record(record: Mapping[str, Any]) -> bool:
    """Whether a record is one that `read_action_record` reads."""
    return read_action_record(record) is not None


def read_action_record(record: Mapping[str, Any]) -> ActionResult | None:
    """The result in a record; None unless it has its shape, a model for each member, and the artifacts that they name.

    A record's checksum holds that its bytes are those that were written; this holds that they mean what is read here.
    """
    document = record.get("document")
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(kind, str | None) or kind not in _KINDS:
        return None
    part, part_kind, result_kind = _KINDS[kind]
    try:
        known = convert(document.get(part), part_kind)
        result = convert(record.get("result"), result_kind)
    except ValidationError:
        return None
    if isinstance(result, CompileResult) and [model.member for model in result.models] != [item.name for item in known]:
        return None
    return result if set(result.names) <= result.artifacts.keys() else None
