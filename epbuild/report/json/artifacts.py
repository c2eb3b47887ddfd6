"""JSON documents of commands that write artifacts: wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epbuild.report.json.documents import Document, View, build_view

if TYPE_CHECKING:
    from epbuild.onnxfile.edit.wrapping import Wrapped


class ValueView(View, frozen=True, kw_only=True):
    """Input or output of a model."""

    name: str
    """Name of the value."""
    type: str
    """Type of the elements."""
    shape: tuple[int | None, ...]
    """Sizes; null if a size can vary."""


class WrappedGraphView(View, frozen=True, kw_only=True):
    """EPContext model that was written for a graph."""

    name: str
    """Name of the graph in the binary."""
    model: str
    """Path of the model."""
    inputs: tuple[ValueView, ...]
    """Inputs of the model."""
    outputs: tuple[ValueView, ...]
    """Outputs of the model."""


class WrappedDocument(Document, frozen=True, kw_only=True):
    """Document that `wrap --json` prints."""

    binary: str
    """Path of the context binary that the models refer to."""
    sdk: str
    """Version of the SDK that wrote the binary."""
    graphs: tuple[WrappedGraphView, ...]
    """Graphs of the binary, in the order in the binary."""


def build_wrapped_document(made: Wrapped) -> WrappedDocument:
    """Return the document of `wrap --json`."""
    graphs = (
        build_view(
            WrappedGraphView,
            graph,
            model=graph.model.as_posix(),
            inputs=tuple(build_view(ValueView, value) for value in graph.inputs),
            outputs=tuple(build_view(ValueView, value) for value in graph.outputs),
        )
        for graph in made.graphs
    )
    return WrappedDocument(binary=made.binary.as_posix(), sdk=made.sdk, graphs=tuple(graphs))
