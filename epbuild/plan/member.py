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
    """Files of a model: its graph, and each external data file by its location in the graph.

    If the model already has EPContext nodes, `external` includes their context binaries.
    """

    graph: Path
    external: Mapping[str, Path] = field(default_factory=dict)
    subgraph_data: frozenset[str] = frozenset()
    """Locations of the external data files of tensors in subgraphs. ONNX Runtime rejects such a file if it has a second hard link."""

    context_sources: tuple[str, ...] = ()
    """Values of `source` in the model's EPContext nodes. Empty for a model that is not compiled."""

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.graph, *self.external.values())


class Member(Struct, frozen=True):
    """One source model of a session group: its files, its names in the staging directory, and its compile settings.

    EPs write the staged names into their output. These names are therefore part of the contract and of the key.
    """

    name: str
    model: ModelSpec
    compile: CompileSettings
    expect: Expectation
    compiled_from: ModelFiles | None = None
    """Files to compile. None until the model has been found, fetched or prepared."""
    input_shapes: Mapping[str, InputShape] = field(default_factory=dict)
    """Sizes that the recipe sets for inputs of the source, by input name."""
    inputs: Mapping[str, tuple[Dimension, ...]] = field(default_factory=dict)
    """New shapes of the inputs in `input_shapes`, with which the model is staged. Empty while the model's header is unknown."""
    denotations: frozenset[str] = frozenset()
    """Keys of the model's `dimensions` that are denotations. All other keys are names. Empty while the model's header is unknown."""
    where: Position | None = None
    """Position in the recipe at which the group lists the model."""
    prepared: str | None = None
    """Id of the last preparation, whose result is compiled. None if the model is compiled unchanged."""
    maker: str | None = None
    """Id of the step that makes the original model. None if the original model is a user's file."""
    original: ModelFiles | None = None
    """Files of the model before any preparation. None while the files are unknown."""
    beginning: tuple[Path, ...] = ()
    """User files from which the original model is made. Their size is an estimate while the model's size is unknown."""

    def with_files(self, files: ModelFiles) -> Member:
        """Return a copy of the member that is compiled from `files`."""
        return replace(self, compiled_from=files)

    @property
    def has_files(self) -> bool:
        return self.compiled_from is not None

    @property
    def compiled_files(self) -> ModelFiles:
        """Files to compile. Raises ValueError while the files are unknown."""
        if self.compiled_from is None:
            raise ValueError(f"the files of {self.name} have not been located")
        return self.compiled_from

    @property
    def graph(self) -> Path:
        return self.compiled_files.graph

    @property
    def external(self) -> Mapping[str, Path]:
        """External data files by their locations in the graph. Raises ValueError while the files are unknown."""
        return self.compiled_files.external

    @property
    def source(self) -> str:
        """Path of the graph in the staging directory. External data is below the graph's folder."""
        return f"in/{self.name}/{self.name}.onnx"

    @property
    def output(self) -> str:
        """Path of the EPContext model in the staging directory."""
        return f"out/{self.name}_ctx.onnx"

    @property
    def files(self) -> tuple[Path, ...]:
        return self.compiled_from.all if self.compiled_from is not None else ()

    @property
    def data_folder(self) -> str | None:
        """Folder of the external data, as in the recipe. None if the data is beside the graph, or if the model has no external data."""
        named = self.model.origin.external_data
        return named.name if named is not None and self.compiled_from is not None and self.external else None

    @property
    def external_file(self) -> str | None:
        """Name of the file for large initializers beside the EPContext model. None if large initializers stay in the model."""
        name = self.compile.external_file
        return str(substitute(name, {"model": self.name})) if name else None


@lru_cache(maxsize=1024)  # most members have the same settings
def resolve_settings(level: GraphOptimization, own: CompileSettings) -> CompileSettings:
    """Return the compile settings of a member. If the recipe sets no optimization level, set the target's `level`."""
    return replace(own, graph_optimization_level=own.graph_optimization_level or level)
