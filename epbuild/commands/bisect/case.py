"""Model that `bisect` examines, and the files and the result of its search."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.catalog.facts import Thresholds
from epbuild.commands.bisect.probing import Prober
from epbuild.commands.bisect.search import get_max_compiles
from epbuild.commands.bisect.values import Bisection, BisectRequest, Fault, PartNode
from epbuild.core.errors import BuildError, Problem, VerifyError
from epbuild.core.shown import format_path
from epbuild.core.units import format_count
from epbuild.onnxfile.edit.excerpts import ModelGraph, get_operator, get_types
from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.verification import CheckedMember
from epbuild.verify.live.comparison import OutputComparison
from epbuild.verify.live.inputs import BadInputs, NoInputs, write_arrays
from epbuild.verify.live.source import RunnableSource
from epbuild.verify.live.verdict import Rules

if TYPE_CHECKING:
    from epbuild.commands.bisect.probing import Arrays
    from epbuild.onnxfile.edit.excerpts import Types


@dataclass(frozen=True)
class Case:
    """Model of a compile step, with the recipe's input sizes."""

    request: BisectRequest
    prober: Prober
    checked: CheckedMember | None
    """The recipe's settings for checking the model's numbers, or None if the recipe does not check them."""
    folder: Path
    """Folder for the files that reproduce the fault."""
    model: Path
    graph: ModelGraph

    @property
    def source(self) -> RunnableSource:
        return RunnableSource(self.model, {}, read_header(self.model), self.prober.member.model.dimensions)

    @property
    def rules(self) -> Rules:
        """Rules for judging values: the user's thresholds, or else the recipe's, or else the catalog's."""
        asked, checked = self.request.asked, self.checked
        chosen = checked.user_thresholds if checked is not None and asked == Thresholds() else asked
        return Rules(self.prober.group.target.eps[0].entry.numbers, self.source.is_quantized, chosen)

    def may_compile(self) -> bool:
        """Return whether the search for a smaller part may compile once more."""
        return self.prober.compiles < (self.request.max_compiles or get_max_compiles(len(self.graph.nodes)))

    def load_samples(self) -> list[Arrays]:
        """Return the sets of inputs that the user or the recipe requests, or one generated set. Raises VerifyError."""
        request, member, source = self.request, self.prober.member, self.source
        named = {"": request.inputs} if request.inputs is not None else {}
        try:
            samples = OutputComparison(named, request.made).load_samples(member.name, source.header.inputs, source, self.checked)
        except (BadInputs, NoInputs) as error:
            message = f"the inputs of the model '{member.name}' are invalid: {error}"
            raise VerifyError(Problem("EPB648", message, self.prober.step, "Pass suitable inputs with --inputs.")) from error
        names = [value.name for value in source.header.inputs]
        return [{name: sample.arrays[name] for name in names} for sample in samples]

    def capture(self, inputs: Arrays) -> dict[str, Any]:
        """Return every value of the model on the CPU EP, by name. Raises BuildError."""
        self.prober.lines("running the model on the CPU EP")
        path = self.prober.make_folder() / "model.onnx"
        self.graph.save_with_outputs(self.graph.list_inner_values(), path)
        return {**inputs, **self.prober.run_source(path, [inputs])[0]}

    def save(self, nodes: Sequence[int], types: Types) -> Path:
        """Write a part of the model to a new folder."""
        path = self.prober.make_folder() / "part.onnx"
        self.graph.save_excerpt(nodes, types, path)
        return path

    def describe(self, index: int) -> PartNode:
        """Return a node as the result shows it."""
        node, result = self.graph.node(index), self.graph.get_results(index)[0]
        return PartNode(node.name or result, get_operator(node), result)

    def count(self, nodes: int) -> str:
        return f"{nodes} of {format_count(len(self.graph.nodes), 'node')}"

    def describe_end(self, nodes: int, last: int) -> str:
        """Describe a part of some nodes by its last node."""
        name = self.describe(last).node
        return f"the node {name}" if nodes == 1 else f"{nodes} nodes that end with {name}"

    def conclude(
        self,
        fault: Fault | None,
        message: str,
        part: Sequence[int] = (),
        *,
        complete: bool = True,
        advice: Sequence[str] = (),
        files: tuple[str, ...] = (),
    ) -> Bisection:
        """Return the result of the search."""
        prober = self.prober
        if not complete:
            message = f"smallest part after {format_count(prober.compiles, 'compile')}: {message}"
            advice = [*advice, f"To search for a smaller part, pass --max-compiles {2 * prober.compiles}."]
        return Bisection(
            prober.step,
            prober.member.name,
            prober.group.target.name,
            fault,
            message,
            prober.compiles,
            len(self.graph.nodes),
            tuple(map(self.describe, part)),
            complete,
            advice=tuple(advice),
            files=files,
        )

    def write_part(self, part: Sequence[int], types: Types) -> tuple[str, ...]:
        """Write the faulty part as a model, and return the file."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.graph.save_excerpt(part, types, self.folder / "part.onnx")
        return self._list_files()

    def write_part_and_values(self, part: Sequence[int], values: Arrays) -> tuple[str, ...]:
        """Write the faulty part as a model, its inputs and the outputs of the CPU EP, and return the files."""
        self.write_part(part, get_types(values))
        header = read_header(self.folder / "part.onnx")
        for name, listed in (("inputs.npz", header.inputs), ("expected.npz", header.outputs)):
            write_arrays(self.folder / name, {value.name: values[value.name] for value in listed})
        return self._list_files()

    def _list_files(self) -> tuple[str, ...]:
        return tuple(format_path(path) for path in sorted(self.folder.iterdir()))


def open_case(request: BisectRequest, prober: Prober, checked: CheckedMember | None, folder: Path) -> Case:
    """Read the model of a step, and give it the recipe's input sizes. Raises BuildError (EPB649) if it cannot be read."""
    member, scratch = prober.member, prober.make_folder()
    files = member.compiled_files
    try:
        path = RunnableSource(files.graph, files.external, read_header(files.graph), member.model.dimensions).place_files(scratch)
        if member.inputs:
            placed, path = path, scratch / "sized" / path.name
            path.parent.mkdir()
            fix_sizes(placed, path, member.inputs)
            for location, data in files.external.items():
                target = path.parent / location
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(data, target)
        return Case(request, prober, checked, folder, path, ModelGraph(path, member.model.dimensions))
    except (OSError, MalformedModel) as error:
        raise BuildError(Problem("EPB649", f"the model '{member.name}' cannot be read: {error}", prober.step)) from error
