"""Search for the faulty part of one model: the order of probes, and the result."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.facts import Thresholds
from epbuild.commands.bisect.probing import Prober, is_fault, judge
from epbuild.commands.bisect.search import find_first_failing, find_origin, find_smallest_failing, list_ancestors, list_nearest
from epbuild.core.errors import BuildError, EpbuildError, PlanError, Problem, StepId, VerifyError, suggest_nearest
from epbuild.core.shown import format_path
from epbuild.core.units import format_count
from epbuild.engine.events import Progress
from epbuild.onnxfile.edit.excerpts import ModelGraph, get_operator
from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.made import Made
from epbuild.plan.member import Member
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.plan.verification import CheckedMember, Verification, make_verification_id
from epbuild.recipe.model import MadeInputs
from epbuild.session.events import NotedLines
from epbuild.session.planning import read_plan
from epbuild.session.request import Request
from epbuild.session.runner import MissingResultError
from epbuild.session.session import Session, open_session
from epbuild.verify.expectations import find_advice
from epbuild.verify.fallback import FallbackNodes
from epbuild.verify.live.arrays import write_arrays
from epbuild.verify.live.comparison import OutputComparison
from epbuild.verify.live.inputs import BadInputs, NoInputs
from epbuild.verify.live.source import RunnableSource
from epbuild.verify.live.verdict import OutputVerdict, Rules

if TYPE_CHECKING:
    from epbuild.commands.bisect.probing import Arrays

Fault = Literal["compile", "fallback", "numbers", "source"]
"""`compile`: the part does not compile. `fallback`: the EP does not take the part. `numbers`: the part computes other values than on the
CPU EP. `source`: the part computes NaN on the CPU EP too."""

_MAX_OUTPUTS = 256
"""Maximum number of values that are compared with one compile."""
_MAX_ROWS = 12


class BisectRequest(Struct, frozen=True):
    """Compile step to examine, and the inputs and thresholds of its numbers."""

    recipe: Path
    step: str
    settings: tuple[str, ...] = ()
    inputs: Path | None = None
    made: MadeInputs | None = None
    """Settings of generated inputs. If this and `inputs` are None, the inputs in the recipe's `verify` or else the seed 0 apply."""
    asked: Thresholds = field(default_factory=Thresholds)


class PartNode(Struct, frozen=True):
    """Node of the faulty part."""

    node: str
    operator: str
    output: str
    reason: str | None = None
    """Reason that the EP reported for not taking the node."""


class TensorRow(Struct, frozen=True):
    """Value near the fault: its largest magnitudes on the CPU EP and on the target's EP, and its accuracy."""

    tensor: str
    operator: str
    expected: float
    got: float | None
    """None if the value was only computed on the CPU EP."""
    snr_db: float | None
    bad: bool


class Bisection(Struct, frozen=True):
    """Result of `bisect`. Without a fault, `part` is empty and no files were written."""

    step: str
    model: str
    target: str
    fault: Fault | None
    message: str
    compiles: int
    nodes: int
    """Nodes of the model that the search covered."""
    part: tuple[PartNode, ...] = ()
    tensors: tuple[TensorRow, ...] = ()
    reason: str = ""
    advice: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Files that reproduce the fault: the part as a model, its inputs, and the outputs of the CPU EP."""


def bisect(request: BisectRequest, progress: Progress) -> Bisection:
    """Find the smallest part of a step's model that does not compile, or else the first value that differs from the CPU EP's.

    Missing preparations are built first. `progress` receives a note for each compile. Raises EpbuildError, and Cancelled.
    """
    cancelled = threading.Event()
    _, plan = read_plan(Request(request.recipe, settings=request.settings))
    group, index = _find_step(plan, request.step)
    checked = _find_checked(plan, group, group.members[index])
    chosen = Request(request.recipe, (request.step,), settings=request.settings, emits=False)
    with open_session(chosen, progress, cancelled, builds=True) as session:
        group = _resolve(session, request.step)
        member = group.members[index]
        with session.workspace.staging("bisect") as scratch:
            prober = Prober(
                group,
                member,
                StepId(request.step),
                session.provisioning.environment(group),
                session.surveyor.store,
                scratch,
                NotedLines(progress).report,
                cancelled,
            )
            folder = session.workspace.directory / "bisect" / re.sub(r"[^A-Za-z0-9._-]", "+", request.step)
            return _Search(request, prober, checked, folder).run()


def _find_step(plan: Plan, name: str) -> tuple[SessionGroup, int]:
    """Return the session group of a compile step, and the number of the step's member. Raises PlanError (EPB240)."""
    known = {step.id: step.action for step in plan.steps if step.kind == "compile"}
    if name not in known:
        hint = suggest_nearest(name, known) or "List the steps with `epbuild plan`."
        raise PlanError(Problem("EPB240", f"no compile step is called '{name}'", None, hint))
    group = plan.session_groups[known[name]]
    return group, group.steps.index(name)


def _find_checked(plan: Plan, group: SessionGroup, member: Member) -> CheckedMember | None:
    """Return the recipe's settings for checking a model's numbers, or None if the recipe does not check them."""
    verification = plan.actions.get(make_verification_id(group.group, group.target.name))
    members = verification.members if isinstance(verification, Verification) else ()
    return next((checked for checked in members if checked.name == member.name), None)


def _resolve(session: Session, name: str) -> SessionGroup:
    """Return the session group of a step with all its files. Build its preparations. Raises BuildError if one of them fails."""
    found = session.survey()
    group = next(group for group in found.plan.session_groups.values() if name in group.steps)
    if group.needs:
        made = session.build(replace(found, todo=tuple(ident for ident in found.todo if ident != group.id))).made
    else:
        made = dict[str, Made]()
    for ident in group.needs:
        if ident not in made:
            raise MissingResultError(found.plan.actions[ident])
    environment = session.provisioning.environment(group)
    resolved, _ = session.surveyor.keyed(group, [made[ident] for ident in group.needs], environment)
    return cast("SessionGroup", resolved)


@dataclass
class _Search:
    """Search in one model."""

    request: BisectRequest
    prober: Prober
    checked: CheckedMember | None
    folder: Path
    """Folder for the files that reproduce the fault."""

    def run(self) -> Bisection:
        prober, member = self.prober, self.prober.member
        self.model, self.graph = self._read_graph()
        try:
            whole = prober.compile(None, f"the whole model, {format_count(len(self.graph.nodes), 'node')}")
        except EpbuildError as error:
            if not is_fault(error):
                raise
            return self._find_failing_part(error)
        allowed, outside = prober.group.max_fallback_nodes(member), FallbackNodes.of(whole.model(member.name))
        if allowed is not None and outside.count > allowed:
            return self._explain_fallback(outside)
        return self._compare(whole)

    # -- Inputs --------------------------------------------------------------------------------------------------------

    def _read_graph(self) -> tuple[Path, ModelGraph]:
        """Return the model with the recipe's input sizes, and its graph."""
        member, folder = self.prober.member, self.prober.make_folder()
        files = member.compiled_files
        try:
            source = RunnableSource(files.graph, files.external, read_header(files.graph), member.model.dimensions)
            path = source.place_files(folder)
            if member.inputs:
                placed, path = path, folder / "sized" / path.name
                path.parent.mkdir()
                fix_sizes(placed, path, member.inputs)
                for location, data in files.external.items():
                    target = path.parent / location
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(data, target)
            return path, ModelGraph(path, member.model.dimensions)
        except (OSError, MalformedModel) as error:
            raise BuildError(Problem("EPB649", f"the model '{member.name}' cannot be read: {error}", self.prober.step)) from error

    def _load_samples(self) -> list[Arrays]:
        """Return the sets of inputs that the user or the recipe requests, or one generated set. Raises VerifyError."""
        request, member = self.request, self.prober.member
        header = read_header(self.model)
        source = RunnableSource(self.model, {}, header, member.model.dimensions)
        named = {"": request.inputs} if request.inputs is not None else {}
        comparison = OutputComparison(named, request.made)
        try:
            samples = comparison.load_samples(member.name, header.inputs, source, self.checked)
        except (BadInputs, NoInputs) as error:
            message = f"the inputs of the model '{member.name}' are invalid: {error}"
            raise VerifyError(Problem("EPB648", message, self.prober.step, "Pass suitable inputs with --inputs.")) from error
        return [{name: sample.arrays[name] for name in (value.name for value in header.inputs)} for sample in samples]

    def _capture(self, inputs: Arrays) -> dict[str, Any]:
        """Return every value of the model on the CPU EP, by name."""
        self.prober.lines("running the model on the CPU EP")
        path = self.prober.make_folder() / "model.onnx"
        self.graph.save_with_outputs(self.graph.list_inner_values(), path)
        return {**inputs, **self.prober.run_source(path, [inputs])[0]}

    # -- Compiles that fail --------------------------------------------------------------------------------------------

    def _find_failing_part(self, error: EpbuildError) -> Bisection:
        """Find the smallest part that fails like the whole model."""
        graph, prober = self.graph, self.prober
        values = self._capture(self._load_samples()[0])

        def fails(nodes: Sequence[int], what: str) -> bool:
            return prober.fails(self._save(nodes, values), what, error)

        total = len(graph.nodes)
        count = find_first_failing(total, lambda size: fails(graph.nodes[:size], f"the first {size} of {total} nodes"))
        last = graph.nodes[count - 1]
        nearest = list_nearest(last, graph.nodes[:count], graph.parents)
        name = self._describe(last).node
        size = find_smallest_failing(count, lambda size: fails(nearest[:size], _describe_end(size, name)))
        part = sorted(nearest[:size])
        problem = error.problems[0]
        return self._conclude(
            "compile",
            f"{_count_nodes(size, total)} cannot be compiled for {prober.title}",
            part,
            values,
            reason=problem.reason or problem.message,
            advice=[problem.hint.partition("See the whole log")[0].strip()] if problem.hint else [],
        )

    def _explain_fallback(self, outside: FallbackNodes) -> Bisection:
        """Report all nodes that the EP did not take. The written files have only the first of them."""
        prober, graph = self.prober, self.graph
        advice = [text for group in outside.groups for text in find_advice(prober.group.target, prober.member, group)]
        found = {index: left for left in outside.nodes if (index := graph.find_node(left.node, left.operator)) is not None}
        first = [min(found)] if found else []
        values = self._capture(self._load_samples()[0]) if first else {}
        bisection = self._conclude(
            "fallback",
            f"{prober.title} does not take {_count_nodes(outside.count, len(graph.nodes))}",
            first,
            values,
            reason=f"the EP logged: {outside.why}" if outside.reasons else "",
            advice=list(dict.fromkeys(advice)),
        )
        listed = [PartNode(left.node, left.operator, "", left.reason) for left in outside.nodes]
        return replace(bisection, part=tuple(listed))

    # -- Numbers that differ -------------------------------------------------------------------------------------------

    def _compare(self, whole: CompileResult) -> Bisection:
        """Compare the outputs, and find the node at which they begin to differ."""
        prober, graph = self.prober, self.graph
        samples = self._load_samples()
        prober.lines(f"running the model on the CPU EP and on {prober.title}")
        expected = prober.run_source(self.model, samples)
        got = prober.run_compiled(whole, samples)
        rules = self._make_rules()
        unjudged: list[OutputVerdict] = []
        for inputs, left, right in zip(samples, expected, got, strict=True):
            for verdict in judge(graph.outputs, left, right, rules):
                if verdict.outcome == "failed":
                    return self._find_wrong_node(inputs, verdict, rules)
                if _has_nan(left[verdict.figures.output]):
                    return self._find_nan(inputs, verdict.figures.output)
                unjudged += [verdict] if verdict.outcome == "unjudgeable" else []
        message = f"the model compiles, and {prober.title} computes the same outputs as the CPU EP"
        if unjudged:
            message = f"the model compiles, but the output {unjudged[0].figures.output} cannot be judged: {unjudged[0].reason}"
        return self._conclude(None, message, [], {}, advice=[hint for verdict in unjudged[:1] if (hint := verdict.hint)])

    def _make_rules(self) -> Rules:
        member, asked = self.prober.member, self.request.asked
        if asked == Thresholds() and self.checked is not None:
            asked = self.checked.user_thresholds
        source = RunnableSource(self.model, {}, read_header(self.model), member.model.dimensions)
        return Rules(self.prober.group.target.eps[0].entry.numbers, source.is_quantized, asked)

    def _find_nan(self, inputs: Arrays, output: str) -> Bisection:
        """Find the first node that computes NaN on the CPU EP itself."""
        graph, values = self.graph, self._capture(inputs)

        def measure(nodes: Sequence[int]) -> list[int]:
            return [index for index in nodes if any(_has_nan(values[name]) for name in graph.get_results(index))]

        if (last := graph.get_maker(output)) is None:
            return self._conclude("source", f"the constant output {output} is NaN", [], {})
        origin = find_origin(last, graph.parents, measure, len(graph.nodes))
        message = f"{_count_nodes(1, len(graph.nodes))} computes NaN on the CPU EP itself"
        return self._conclude("source", message, [origin], values, advice=["Correct the model, or use inputs that it accepts."])

    def _find_wrong_node(self, inputs: Arrays, verdict: OutputVerdict, rules: Rules) -> Bisection:
        """Find the first node whose results differ, and the smallest part that shows the difference."""
        graph, prober = self.graph, self.prober
        values = self._capture(inputs)
        found: dict[str, OutputVerdict] = {verdict.figures.output: verdict}
        last = graph.get_maker(verdict.figures.output)
        if last is None:
            return self._conclude("numbers", f"the constant output {verdict.figures.output} differs", [], {}, verdict.reason)

        def measure(nodes: Sequence[int]) -> list[int]:
            names = {index: [name for name in graph.get_results(index) if name in values] for index in nodes}
            listed = [name for index in nodes for name in names[index]]
            path = prober.make_folder() / "model.onnx"
            graph.save_with_outputs(listed, path, values)
            compiled = prober.compile(path, f"the whole model with {format_count(len(listed), 'inner value')} as outputs")
            got = prober.run_compiled(compiled, [inputs])[0]
            found.update((item.figures.output, item) for item in judge(listed, values, got, rules))
            return [index for index in nodes if any(found[name].outcome == "failed" for name in names[index])]

        origin = find_origin(last, graph.parents, measure, _MAX_OUTPUTS)
        results = [name for name in graph.get_results(origin) if name in values]
        nearest = list_nearest(origin, [], graph.parents)

        def differs(size: int) -> bool:
            path = self._save(nearest[:size], values)
            needed = {value.name: values[value.name] for value in read_header(path).inputs}
            try:
                compiled = prober.compile(path, _describe_end(size, self._describe(origin).node))
                got = prober.run_compiled(compiled, [needed])[0]
            except EpbuildError as error:
                if not is_fault(error):
                    raise
                return False
            verdicts = judge(results, values, got, rules)
            bad = any(item.outcome == "failed" for item in verdicts)
            found.update((item.figures.output, item) for item in verdicts if bad)
            return bad

        size = find_smallest_failing(len(nearest), differs)
        worst = next((found[name] for name in results if name in found and found[name].outcome == "failed"), verdict)
        hint = rules.numbers.overflow if _overflows(worst, rules) else worst.hint
        bisection = self._conclude(
            "numbers",
            f"{_count_nodes(size, len(graph.nodes))} computes other values on {prober.title} than on the CPU EP"
            if size == 1
            else f"{_count_nodes(size, len(graph.nodes))} together compute other values on {prober.title} than on the CPU EP",
            sorted(nearest[:size]),
            values,
            reason=f"{worst.figures.output}: {_explain(worst, rules)}",
            advice=[*self._list_large(values, rules), *([hint] if hint else [])],
        )
        return replace(bisection, tensors=self._make_rows(origin, values, found))

    def _list_large(self, values: Arrays, rules: Rules) -> list[str]:
        """Return a sentence with the nodes whose results exceed the largest number of the EP's precision."""
        limit = rules.numbers.largest
        if limit is None:
            return []
        large = [
            self._describe(index).node
            for index in self.graph.nodes
            if any(_get_largest(values[name]) > limit for name in self.graph.get_results(index) if name in values)
        ]
        if not large:
            return []
        named = ", ".join(large[:_MAX_ROWS]) + (f" and {len(large) - _MAX_ROWS} more" if len(large) > _MAX_ROWS else "")
        return [
            f"Values above {limit:,.0f} on the CPU EP: {named}. Rescale or quantize these nodes, or cut the model before them."
        ]

    def _make_rows(self, origin: int, values: Arrays, found: Mapping[str, OutputVerdict]) -> tuple[TensorRow, ...]:
        """Return the values before and after a node, in topological order."""
        graph = self.graph
        before = sorted(list_ancestors(origin, graph.parents))[-_MAX_ROWS // 2 :]
        reached = {origin}
        for index in graph.nodes:
            if reached.intersection(graph.parents[index]):
                reached.add(index)
        after = sorted(reached - {origin})[: _MAX_ROWS // 2 - 1]
        rows = []
        for index in (*before, origin, *after):
            for name in graph.get_results(index)[:1]:
                verdict = found.get(name)
                figures = verdict.figures if verdict is not None else None
                rows.append(
                    TensorRow(
                        name,
                        get_operator(graph.node(index)),
                        _get_largest(values[name]),
                        figures.largest_got if figures is not None else None,
                        figures.snr_db if figures is not None else None,
                        verdict is not None and verdict.outcome == "failed",
                    )
                )
        return tuple(rows)

    # -- Results -------------------------------------------------------------------------------------------------------

    def _save(self, nodes: Sequence[int], values: Arrays) -> Path:
        path = self.prober.make_folder() / "part.onnx"
        self.graph.save_excerpt(nodes, values, path)
        return path

    def _describe(self, index: int) -> PartNode:
        node = self.graph.node(index)
        result = self.graph.get_results(index)[0]
        return PartNode(node.name or result, get_operator(node), result)

    def _conclude(
        self,
        fault: Fault | None,
        message: str,
        part: Sequence[int],
        values: Arrays,
        reason: str = "",
        advice: Sequence[str] = (),
    ) -> Bisection:
        """Return the result. Write the files that reproduce the fault."""
        prober = self.prober
        return Bisection(
            prober.step,
            prober.member.name,
            prober.group.target.name,
            fault,
            message,
            prober.compiles,
            len(self.graph.nodes),
            tuple(map(self._describe, part)),
            reason=reason,
            advice=tuple(advice),
            files=self._write_files(part, values) if part else (),
        )

    def _write_files(self, part: Sequence[int], values: Arrays) -> tuple[str, ...]:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.graph.save_excerpt(part, values, self.folder / "part.onnx")
        header = read_header(self.folder / "part.onnx")
        for name, listed in (("inputs.npz", header.inputs), ("expected.npz", header.outputs)):
            write_arrays(self.folder / name, {value.name: values[value.name] for value in listed})
        return tuple(format_path(path) for path in sorted(self.folder.iterdir()))


def _count_nodes(count: int, total: int) -> str:
    return f"{count} of {format_count(total, 'node')}"


def _describe_end(size: int, name: str) -> str:
    return f"the node {name}" if size == 1 else f"{size} nodes that end with {name}"


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


def _get_largest(value: Any) -> float:
    """Return the largest finite magnitude of numbers, or 0 for other values."""
    import numpy as np

    if value.dtype.kind not in "fiu" or not value.size:
        return 0.0
    return float(np.abs(value.astype(np.float64), where=np.isfinite(value), out=np.zeros(value.shape)).max())
