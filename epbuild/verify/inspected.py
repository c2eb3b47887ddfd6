"""Types of the JSON document of `inspect --json`."""

from __future__ import annotations

from typing import Any, TypedDict


class InspectedValue(TypedDict):
    """Input or output of a model."""

    name: str
    """Name of the input or output."""
    type: str
    """Element type."""
    shape: list[int | str | None] | None
    """Dimensions: numbers, symbols, or null for unknown dimensions. Null if the rank is unknown."""


class InspectedPart(TypedDict):
    """Bytes of a weights file that belong to certain weights."""

    names: list[str]
    """Names of the weights with these bytes, as in the context."""
    offset: int
    """Position of the first byte in the file."""
    size: int
    """Number of bytes."""


class InspectedWeights(TypedDict):
    """File beside a context binary that contains the context's weights."""

    reference: str
    """Name of the file, relative to the model's folder."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Digest of the file."""
    parts: list[InspectedPart]
    """Parts of the file, largest first; empty if the context names no weights, or more than 100,000."""


class InspectedContextPart(TypedDict):
    """Bytes of a context that belong to a graph, or to several graphs."""

    kind: str
    """`graph`, or `shared weights` for weights of several graphs."""
    name: str
    """Name of the graph, as in the context; empty for shared weights."""
    size: int
    """Number of bytes."""


class InspectedNode(TypedDict):
    """EPContext node, with all attributes of the operator's schema."""

    name: str
    """Name of the node."""
    subgraph: bool
    """True if the node is in a subgraph."""
    source: str | None
    """Attribute `source`."""
    partition_name: str | None
    """Attribute `partition_name`."""
    main_context: int
    """Attribute `main_context`, or its default."""
    embed_mode: int
    """Attribute `embed_mode`, or its default."""
    ep_sdk_version: str | None
    """Attribute `ep_sdk_version`."""
    onnx_model_filename: str | None
    """Attribute `onnx_model_filename`."""
    hardware_architecture: str | None
    """Attribute `hardware_architecture`."""
    notes: str | None
    """Attribute `notes`."""
    max_size: int
    """Attribute `max_size`, or its default."""
    others: dict[str, Any]
    """Attributes that the EP added, if their values can be represented in JSON."""
    written: dict[str, str]
    """Type of each attribute that the node has, by name."""
    reference: str | None
    """File that contains the context; null if the node itself contains it."""
    size: int | None
    """Bytes of the context; null if it cannot be read."""
    sha256: str | None
    """Digest of the context; null if it cannot be read."""
    weights: InspectedWeights | None
    """File beside the context binary that contains the context's weights; null if there is none."""
    parts: list[InspectedContextPart]
    """Parts of the context, largest first. The other bytes are headers and padding. Empty if the EP's format lists no parts."""
    target: str | None
    """Target recorded in the context; null if the context records no target."""
    problem: str | None
    """Reason why the node's context is missing or unreadable; null if there is no problem."""


class InspectedFallbackNode(TypedDict):
    """Fallback node."""

    node: str
    """Name of the node."""
    operator: str
    """Operator, with its domain."""
    reason: str | None
    """Reason why the EPs did not take the node; null if it is unknown."""


class Initializers(TypedDict):
    """Initializers that remain in the model."""

    count: int
    """Number of initializers."""
    inline_bytes: int
    """Bytes of initializers inside the model's file."""


class InspectedModel(TypedDict):
    """Readable model, compiled or not."""

    format: int
    """Format version of the document."""
    file: str
    """Path of the model."""
    size: int
    """Bytes of the model's file."""
    ir_version: int
    """Version of the ONNX IR."""
    producer: str
    """Producer of the model."""
    opsets: dict[str, int]
    """Version of each operator set, by domain."""
    graph: str
    """Name of the graph."""
    inputs: list[InspectedValue]
    """Inputs."""
    outputs: list[InspectedValue]
    """Outputs."""
    ep_context_nodes: list[InspectedNode]
    """EPContext nodes of the model."""
    other_operators: dict[str, int]
    """Number of other nodes, by operator."""
    left: list[InspectedFallbackNode]
    """Fallback nodes."""
    initializers: Initializers
    """Initializers."""
    external_data: list[str]
    """Files with external data."""
    compatibility: dict[str, str]
    """Compatibility string of each EP, as written in the model's metadata."""


class BrokenModel(TypedDict):
    """File that is not a complete model."""

    file: str
    """Path of the file."""
    problem: str
    """Description of the problem."""


class SharedFile(TypedDict):
    """File that several models refer to."""

    file: str
    """Path of the file."""
    size: int
    """Size of the file in bytes."""
    models: list[str]
    """Models that refer to the file."""
    saved: int
    """Number of bytes that sharing saves, compared with separate copies."""


class Inspection(TypedDict):
    """Document that describes several models."""

    format: int
    """Format version of the document."""
    models: list[InspectedModel | BrokenModel]
    """Inspected models, and files that are not complete models."""
    shared: list[SharedFile]
    """Files that several models refer to."""
