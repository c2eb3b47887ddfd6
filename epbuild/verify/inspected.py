"""Types of the JSON document of `inspect --json`."""

from __future__ import annotations

from typing import Any, TypedDict


class InspectedValue(TypedDict):
    """Input or output: a dimension is a number, a symbol, or None; `shape` is None if the rank is unknown."""

    name: str
    type: str
    shape: list[int | str | None] | None


class InspectedNode(TypedDict):
    """EPContext node, with all attributes of the operator's schema, including defaults that are not `written`."""

    name: str
    subgraph: bool
    source: str | None
    partition_name: str | None
    main_context: int
    embed_mode: int
    ep_sdk_version: str | None
    onnx_model_filename: str | None
    hardware_architecture: str | None
    notes: str | None
    max_size: int
    others: dict[str, Any]
    """Attributes of the EP, as far as they can be shown."""
    written: dict[str, str]
    """Types of the attributes that are written."""
    reference: str | None
    """File of the context; None if the node holds it."""
    size: int | None
    sha256: str | None
    target: str | None
    """Target that the context itself names."""
    problem: str | None


class NodeOutside(TypedDict):
    """Fallback node, and its reason, if that is known."""

    node: str
    operator: str
    reason: str | None


class Initializers(TypedDict):
    """Initializers that the model still has."""

    count: int
    inline_bytes: int


class InspectedModel(TypedDict):
    """Model that could be read, compiled or not."""

    format: int
    file: str
    size: int
    ir_version: int
    producer: str
    opsets: dict[str, int]
    graph: str
    inputs: list[InspectedValue]
    outputs: list[InspectedValue]
    ep_context_nodes: list[InspectedNode]
    other_operators: dict[str, int]
    left: list[NodeOutside]
    initializers: Initializers
    external_data: list[str]
    compatibility: dict[str, str]


class BrokenModel(TypedDict):
    """File that is not a whole model."""

    file: str
    problem: str


class SharedFile(TypedDict):
    """File that several models refer to; `saved` are the bytes that separate copies would need in addition."""

    file: str
    size: int
    models: list[str]
    saved: int


class Inspection(TypedDict):
    """Several models."""

    format: int
    models: list[InspectedModel | BrokenModel]
    shared: list[SharedFile]
