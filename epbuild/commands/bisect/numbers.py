"""Search for the first node with other values on the target than on the CPU EP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epbuild.commands.bisect.case import Case
from epbuild.commands.bisect.overflow import advise_overflow, get_largest
from epbuild.commands.bisect.probing import is_fault, judge
from epbuild.commands.bisect.search import find_origin, find_smallest_failing, list_ancestors, list_nearest
from epbuild.commands.bisect.values import Bisection, TensorRow
from epbuild.core.errors import EpbuildError
from epbuild.core.units import format_count
from epbuild.onnxfile.edit.excerpts import get_operator, get_types
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.result import CompileResult
from epbuild.verify.live.verdict import OutputVerdict, Rules

if TYPE_CHECKING:
    from epbuild.commands.bisect.probing import Arrays
    from epbuild.onnxfile.edit.excerpts import Types

_MAX_OUTPUTS = 256
"""Maximum number of values that are compared with one compile."""
_MAX_ROWS = 12


def compare_outputs(case: Case, whole: CompileResult) -> Bisection:
    """Compare the outputs of the compiled model, and find the node at which they begin to differ."""
    prober, graph = case.prober, case.graph
    samples = case.load_samples()
    prober.lines(f"running the model on the CPU EP and on {prober.title}")
    expected = prober.run_source(case.model, samples)
    got = prober.run_compiled(whole, samples)
    rules = case.rules
    unjudged: list[OutputVerdict] = []
    for inputs, left, right in zip(samples, expected, got, strict=True):
        for verdict in judge(graph.outputs, left, right, rules):
            output = verdict.figures.output
            if verdict.outcome == "failed" and (last := graph.get_maker(output)) is not None:
                return _WrongValues(case, inputs, case.capture(inputs), rules, {output: verdict}).explain(last)
            if verdict.outcome == "failed":
                return case.conclude("numbers", f"the constant output {output} differs: {verdict.reason}")
            if _has_nan(left[output]):
                return _find_nan(case, inputs, output)
            unjudged += [verdict] if verdict.outcome == "unjudgeable" else []
    message = f"the model compiles, and {prober.title} computes the same outputs as the CPU EP"
    if unjudged:
        message = f"the model compiles, but the output {unjudged[0].figures.output} cannot be judged: {unjudged[0].reason}"
    return case.conclude(None, message, advice=[hint for verdict in unjudged[:1] if (hint := verdict.hint)])


def _find_nan(case: Case, inputs: Arrays, output: str) -> Bisection:
    """Find the first node that computes NaN on the CPU EP itself."""
    graph, last = case.graph, case.graph.get_maker(output)
    if last is None:
        return case.conclude("source", f"the constant output {output} is NaN")
    values = case.capture(inputs)

    def measure(nodes: Sequence[int]) -> list[int]:
        return [index for index in nodes if any(_has_nan(values[name]) for name in graph.get_results(index))]

    part = [find_origin(last, graph.parents, measure, len(graph.nodes), lambda: True)]
    return case.conclude(
        "source",
        f"{case.count(1)} computes NaN on the CPU EP itself",
        part,
        advice=["Correct the model, or use inputs that it accepts."],
        files=case.write_part_and_values(part, values),
    )


@dataclass(frozen=True)
class _WrongValues:
    """Search in a model whose compiled form computes other outputs than the CPU EP."""

    case: Case
    inputs: Arrays
    values: Arrays
    """Every value of the model on the CPU EP."""
    rules: Rules
    found: dict[str, OutputVerdict]
    """Verdicts so far, by value. Initially the verdict on the wrong output."""

    @cached_property
    def types(self) -> Types:
        return get_types(self.values)

    def explain(self, last: int) -> Bisection:
        """Find the first node whose results differ, given that those of the node `last` do, and the smallest part that shows it.

        If no such part could be compiled alone, the part is the node and its ancestors, as the whole model shows it.
        """
        case, rules = self.case, self.rules
        origin = find_origin(last, case.graph.parents, self._measure, _MAX_OUTPUTS, case.may_compile)
        nearest = list_nearest(origin, [], case.graph.parents)
        alone: dict[int, bool] = {}

        def differs(size: int) -> bool:
            alone[size] = self._differs(nearest[:size])
            return alone[size]

        passing, size = find_smallest_failing(len(nearest), differs, case.may_compile)
        if size not in alone and case.may_compile():
            differs(size)
        part = sorted(nearest[:size])
        where = "" if alone.get(size) else "in the whole model, "
        wrong = [self.found[name] for name in self._list_results(origin) if self._is_wrong(name)]
        worst = (wrong or list(self.found.values()))[0]
        limit = rules.numbers.largest
        advice = [] if limit is None else advise_overflow(case, origin, self.values, limit)
        if worst.hint and not _overflows(worst, rules):
            advice.append(worst.hint)
        bisection = case.conclude(
            "numbers",
            f"{where}{case.count(size)} {'computes' if size == 1 else 'together compute'} other values on {case.prober.title} "
            "than on the CPU EP",
            part,
            complete=size - passing == 1 and size in alone,
            advice=advice,
            files=case.write_part_and_values(part, self.values),
        )
        return replace(bisection, tensors=self._make_rows(origin), reason=f"{worst.figures.output}: {_explain(worst, rules)}")

    def _list_results(self, index: int) -> list[str]:
        """Return the results of a node that the CPU EP has computed."""
        return [name for name in self.case.graph.get_results(index) if name in self.values]

    def _is_wrong(self, name: str) -> bool:
        return name in self.found and self.found[name].outcome == "failed"

    def _measure(self, nodes: Sequence[int]) -> list[int]:
        """Compile the model with the results of these nodes as outputs, and return the nodes with wrong results."""
        prober, listed = self.case.prober, [name for index in nodes for name in self._list_results(index)]
        path = prober.make_folder() / "model.onnx"
        self.case.graph.save_with_outputs(listed, path, self.types)
        compiled = prober.compile(path, f"the whole model with {format_count(len(listed), 'inner value')} as outputs")
        got = prober.run_compiled(compiled, [self.inputs])[0]
        self.found.update((item.figures.output, item) for item in judge(listed, self.values, got, self.rules))
        return [index for index in nodes if any(map(self._is_wrong, self._list_results(index)))]

    def _differs(self, nodes: Sequence[int]) -> bool:
        """Compile these nodes alone, with the CPU EP's values as inputs. Return whether the results of the first of them are wrong."""
        case, prober = self.case, self.case.prober
        path = case.save(nodes, self.types)
        needed = {value.name: self.values[value.name] for value in read_header(path).inputs}
        try:
            compiled = prober.compile(path, case.describe_end(len(nodes), nodes[0]))
            got = prober.run_compiled(compiled, [needed])[0]
        except EpbuildError as error:
            if not is_fault(error):
                raise
            return False
        wrong = [item for item in judge(self._list_results(nodes[0]), self.values, got, self.rules) if item.outcome == "failed"]
        self.found.update((item.figures.output, item) for item in wrong)
        return bool(wrong)

    def _make_rows(self, origin: int) -> tuple[TensorRow, ...]:
        """Return the values before and after a node, in topological order."""
        graph = self.case.graph
        before = sorted(list_ancestors(origin, graph.parents))[-_MAX_ROWS // 2 :]
        reached = {origin}
        for index in graph.nodes:
            if reached.intersection(graph.parents[index]):
                reached.add(index)
        after = sorted(reached - {origin})[: _MAX_ROWS // 2 - 1]
        return tuple(self._make_row(index, name) for index in (*before, origin, *after) for name in graph.get_results(index)[:1])

    def _make_row(self, index: int, name: str) -> TensorRow:
        figures = self.found[name].figures if name in self.found else None
        return TensorRow(
            name,
            get_operator(self.case.graph.node(index)),
            get_largest(self.values[name]),
            figures.largest_got if figures is not None else None,
            figures.snr_db if figures is not None else None,
            self._is_wrong(name),
        )


def _overflows(verdict: OutputVerdict, rules: Rules) -> bool:
    """Return whether an expected value exceeds the largest number of the EP's precision."""
    return rules.numbers.largest is not None and verdict.figures.largest > rules.numbers.largest


def _explain(verdict: OutputVerdict, rules: Rules) -> str:
    if not _overflows(verdict, rules):
        return verdict.reason
    return f"its values reach {verdict.figures.largest:,.0f}, but the largest number of the EP's precision is {rules.numbers.largest:,.0f}"


def _has_nan(value: Any) -> bool:
    import numpy as np

    return bool(value.dtype.kind == "f" and np.isnan(value).any())
