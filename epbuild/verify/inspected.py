"""What is in an ONNX model, as typed JSON: `inspect --json`."""

from __future__ import annotations

from typing import Any, TypedDict


class InspectedValue(TypedDict):
    """An input or an output: a dimension is a number, a symbol, or None; `shape` is None where not even their number is known."""

    name: str
    type: str
    shape: list[int | str | None] | None


class InspectedNode(TypedDict):
    """An EPContext node: every attribute of the operator's schema, at its default where it is not `written`."""

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
    """The EP's own attributes, as far as they can be shown."""
    written: dict[str, str]
    """The types of the attributes that are written."""
    reference: str | None
    """The file that has the context; None where it is in the node."""
    size: int | None
    sha256: str | None
    target: str | None
    """What the context was compiled for, as it has that itself."""
    problem: str | None


class NodeOutside(TypedDict):
    """A node that no EP took, and why, where that is known."""

    node: str
    operator: str
    reason: str | None


class Initializers(TypedDict):
    """The weights that are left."""

    count: int
    inline_bytes: int


class InspectedModel(TypedDict):
    """A model that could be read, compiled or not."""

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
    """A file that is no whole model."""

    file: str
    problem: str


class SharedFile(TypedDict):
    """A file that several models refer to; `saved` are the bytes that a copy of its own for each of them would take more."""

    file: str
    size: int
    models: list[str]
    saved: int


class Inspection(TypedDict):
    """Several models."""

    format: int
    models: list[InspectedModel | BrokenModel]
    shared: list[SharedFile]
