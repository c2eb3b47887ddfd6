"""`Member`: one source model of a session group, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.core.errors import Position
from epbuild.onnxfile.read.model_header import Dimension
from epbuild.recipe.model import CompileSettings, Expectation, GraphOptimization, InputShape, ModelSpec
from epbuild.recipe.template import substitute


class ModelFiles(Struct, frozen=True):
    """The files of a model: its graph, and each external data file by the location that the graph names."""

    graph: Path
    external: Mapping[str, Path] = field(default_factory=dict)
    subgraph_data: frozenset[str] = frozenset()
    """The locations that a subgraph refers to: ONNX Runtime refuses these files where they have a second name."""

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.graph, *self.external.values())


class Member(Struct, frozen=True):
    """One source model of a session group: its files, the names under which it is staged and compiled, and how it is compiled.

    EPs write the staged names into their output, so they are part of the contract and of the key.
    """

    name: str
    model: ModelSpec
    compile: CompileSettings
    expect: Expectation
    compiled_from: ModelFiles | None = None
    """The files that are compiled; None until the model has been found, fetched or prepared."""
    asked: Mapping[str, InputShape] = field(default_factory=dict)
    """The sizes that the recipe gives to inputs of the source, by their names."""
    inputs: Mapping[str, tuple[Dimension, ...]] = field(default_factory=dict)
    """The inputs whose shapes change by that, with their shapes, of a model whose header is known: it is staged with these."""
    where: Position | None = None
    """Where the group names it."""
    prepared: str | None = None
    """The id of the last of its preparations, whose result is compiled: its files are known once that is. None: it is compiled as it is."""
    original: ModelFiles | None = None
    """The files of the model as the user has it, before any preparation; None while they are not known."""

    def with_files(self, files: ModelFiles) -> Member:
        """The member compiled from these files."""
        return replace(self, compiled_from=files)

    @property
    def fetched(self) -> bool:
        return self.compiled_from is not None

    @property
    def known(self) -> ModelFiles:
        """The files that are compiled. Raises ValueError while they are not known."""
        if self.compiled_from is None:
            raise ValueError(f"the files of {self.name} are not known yet")
        return self.compiled_from

    @property
    def graph(self) -> Path:
        return self.known.graph

    @property
    def external(self) -> Mapping[str, Path]:
        """Each external data file by the location that the graph names, as `known`."""
        return self.known.external

    @property
    def source(self) -> str:
        """The graph's path in the staging directory; external data lies below its folder."""
        return f"in/{self.name}/{self.name}.onnx"

    @property
    def output(self) -> str:
        """The EPContext model's path in the staging directory."""
        return f"out/{self.name}_ctx.onnx"

    @property
    def files(self) -> tuple[Path, ...]:
        return self.compiled_from.all if self.compiled_from is not None else ()

    @property
    def data_folder(self) -> str | None:
        """The folder of its external data as the recipe has it; None: it lies beside the graph, or there is none."""
        named = self.model.external_data
        return named.name if named is not None and self.compiled_from is not None and self.external else None

    @property
    def external_file(self) -> str | None:
        """The name of the file that receives the model's large initializers, beside its EPContext model; None: there is none."""
        name = self.compile.external_file
        return str(substitute(name, {"model": self.name})) if name else None


@lru_cache(maxsize=1024)  # most members have the same
def settings_at(level: GraphOptimization, own: CompileSettings) -> CompileSettings:
    """The settings of a member that are its `own` in the recipe, for a target that has this level where they have none."""
    return replace(own, graph_optimization_level=own.graph_optimization_level or level)
