"""JSON documents of artifacts: diff and wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import field

from epbuild.report.json.documents import Document, View, build_view

if TYPE_CHECKING:
    from epbuild.diff.difference import Comparison
    from epbuild.onnxfile.edit.wrapping import Wrapped


class DifferenceView(View, frozen=True, kw_only=True):
    """Difference between two artifacts."""

    sense: str
    """Category: `graph`, `weights`, `graph or weights`, `target`, `settings`, `toolchain`, `context` or `names`."""
    what: str
    """Description of what differs."""
    kind: str
    """Kind of the change."""
    artifact: str
    """Folder of the artifact, relative to the compared paths; empty if only one pair of artifacts is compared."""
    place: tuple[str, ...]
    """Path of the value that differs, as a list of keys."""
    old: Any
    """Value in the old artifact; null if there is none."""
    new: Any
    """Value in the new artifact; null if there is none."""


class PartView(View, frozen=True, kw_only=True):
    """Size of a part of a file in two artifacts."""

    kind: str
    """`graph`, `shared weights` (of several graphs), `weights` (in a weights file) or `headers and padding`."""
    name: str
    """Model of the graph, with the number of its EPContext node if there are several, or the weights; empty for other kinds."""
    before: int | None = field(name="old")
    """Bytes in the old artifact; null if the part is not in it."""
    after: int | None = field(name="new")
    """Bytes in the new artifact; null if the part is not in it."""


class SizeView(View, frozen=True, kw_only=True):
    """Size of a file in two artifacts."""

    kind: str
    """Kind of the file."""
    name: str
    """Name of the file."""
    artifact: str
    """Folder of the artifact below the compared paths; empty if only one pair of artifacts is compared."""
    before: int | None = field(name="old")
    """Bytes in the old artifact; null if the file is not in it."""
    after: int | None = field(name="new")
    """Bytes in the new artifact; null if the file is not in it."""
    parts: tuple[PartView, ...]
    """Parts whose sizes differ, largest change first; empty if the size of the file is equal or the parts are unknown."""


class ComparisonDocument(Document, frozen=True, kw_only=True):
    """Document that `diff --json` prints: the verdict, all differences, and the sizes of all files."""

    a: str
    """Path of the old artifact."""
    b: str
    """Path of the new artifact."""
    equal: bool
    """True if there are no differences."""
    accepted: bool
    """True if only bytes of contexts differ, and both recipes accept such differences."""
    verdict: str
    """Result of the comparison, as a sentence."""
    senses: tuple[str, ...]
    """Categories that differ."""
    same: tuple[str, ...]
    """Categories that are known to be equal."""
    without_manifest: tuple[str, ...]
    """Artifacts without a manifest (`A`, `B` or both). Their settings are unknown."""
    differences: tuple[DifferenceView, ...]
    """All differences."""
    sizes: tuple[SizeView, ...]
    """Sizes of all models, context binaries and data files."""


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


def build_comparison_document(old: str, new: str, found: Comparison) -> ComparisonDocument:
    """Return the document of `diff --json`."""
    return build_view(ComparisonDocument, found, a=old, b=new, equal=not found.differences)


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
