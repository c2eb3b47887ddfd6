"""A source model that is run: its files where ONNX Runtime reads them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from epbuild.core.clone import copy_file
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.tables import table_sizes
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.member import ModelFiles
from epbuild.plan.result import ModelSignature
from epbuild.verify.signature import signature

_QUANTISING = {"QuantizeLinear", "DequantizeLinear"}


class RunnableSource(Struct, frozen=True, dict=True):
    """A source model that is the one in the manifest, as far as there is one."""

    graph: Path
    external: Mapping[str, Path]
    """Its external data files, by the locations that the graph names."""
    header: ModelHeader
    sizes: Mapping[str, int]
    """Sizes of free dimensions, by name."""
    prepared: ModelFiles | None = None
    """What was made of it before it was compiled, where that is another model, and is there."""

    @cached_property
    def is_quantised(self) -> bool:
        """Whether the model, or what was made of it, computes with quantised values."""
        headers = [self.header, *([read_header(self.prepared.graph)] if self.prepared is not None else [])]
        return any(name in _QUANTISING for header in headers for _, name in header.operators)

    @cached_property
    def tables(self) -> Mapping[str, int]:
        """Number of rows of the table that each input looks up, by its name; none of a file that ONNX Runtime will refuse."""
        try:
            return table_sizes(self.graph)
        except (MalformedModel, OSError):
            return {}

    def placed(self, scratch: Path) -> Path:
        """The graph with its data beside it: where it is, or copied to `scratch`, also where they are links that ONNX Runtime refuses."""
        linked = any(path.is_symlink() for path in (self.graph, *self.external.values()))
        linked = linked or any(self.external[location].stat().st_nlink > 1 for location in self.header.subgraph_data)
        beside = all(path == self.graph.parent / location for location, path in self.external.items())
        if beside and not linked:
            return self.graph
        for name, path in {self.graph.name: self.graph, **self.external}.items():
            target = scratch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(path, target)
        return scratch / self.graph.name


def other_values(source: ModelHeader, compiled: ModelSignature) -> str:
    """The inputs and outputs that a source has and the signature of a compiled model has not, or the other way, or of another type."""
    sides = [
        {(kind, value.name, value.type) for kind, values in (("in", side.inputs), ("out", side.outputs)) for value in values}
        for side in (signature(source), compiled)
    ]
    return ", ".join(sorted({name for _, name, _ in sides[0] ^ sides[1]}))
