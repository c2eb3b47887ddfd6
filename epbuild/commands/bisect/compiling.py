"""Search for nodes that the target's EPs cannot compile or do not take. It needs no run of the model if ONNX infers all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epbuild.commands.bisect.case import Case
from epbuild.commands.bisect.probing import is_fault
from epbuild.commands.bisect.search import find_failing_part
from epbuild.commands.bisect.values import Bisection, PartNode
from epbuild.core.errors import EpbuildError
from epbuild.onnxfile.edit.excerpts import get_types
from epbuild.verify.expectations import find_advice
from epbuild.verify.fallback import FallbackNodes

if TYPE_CHECKING:
    from epbuild.onnxfile.edit.excerpts import Types


def explain_failure(case: Case, error: EpbuildError) -> Bisection:
    """Find the smallest part that fails like the whole model, which failed with `error`."""
    graph, prober, problem = case.graph, case.prober, error.problems[0]
    reason = problem.reason or problem.message
    try:
        types = _find_types(case)
    except EpbuildError as cause:
        if not is_fault(cause):
            raise
        found = cause.problems[0]
        message = f"the model does not compile ({reason}), and the part at fault cannot be searched: {found.message}"
        raise type(cause)(replace(found, message=message)) from cause

    def fails(nodes: Sequence[int]) -> bool:
        return prober.fails(case.save(nodes, types), case.describe_end(len(nodes), max(nodes)), error)

    part, complete = find_failing_part(graph.nodes, graph.parents, fails, case.may_compile)
    bisection = case.conclude(
        "compile",
        f"{case.count(len(part))} cannot be compiled for {prober.title}",
        part,
        complete=complete,
        advice=[problem.hint.partition("See the whole log")[0].strip()] if problem.hint else [],
        files=case.write_part(part, types),
    )
    return replace(bisection, reason=reason)


def explain_fallback(case: Case, outside: FallbackNodes) -> Bisection:
    """List all nodes that the EPs did not take. The written model has only the first of them."""
    prober = case.prober
    found = (case.graph.find_node(left.node, left.operator) for left in outside.nodes)
    first = sorted(index for index in found if index is not None)[:1]
    advice = [text for group in outside.groups for text in find_advice(prober.group.target, prober.member, group)]
    bisection = case.conclude(
        "fallback",
        f"{prober.title} does not take {case.count(outside.count)}",
        advice=list(dict.fromkeys(advice)),
        files=_write_if_possible(case, first) if first else (),
    )
    part = tuple(PartNode(left.node, left.operator, "", left.reason) for left in outside.nodes)
    return replace(bisection, part=part, reason=f"the EP logged: {outside.why}" if outside.reasons else "")


def _write_if_possible(case: Case, part: Sequence[int]) -> tuple[str, ...]:
    """Write a part of the model, unless the sizes of its inputs are unknown."""
    try:
        return case.write_part(part, _find_types(case))
    except EpbuildError as error:
        if not is_fault(error):
            raise
        return ()


def _find_types(case: Case) -> Types:
    """Return the types and sizes of all values: inferred by ONNX, or else from a run on the CPU EP. Raises EpbuildError if both fail."""
    types = case.graph.infer_types()
    untyped = case.graph.find_untyped(types)
    if untyped is None:
        return types
    try:
        return {**types, **get_types(case.capture(case.load_samples()[0]))}
    except EpbuildError as error:
        if not is_fault(error):
            raise
        problem = error.problems[0]
        message = f"the size of the value '{untyped}' is known only from a run on the CPU EP, but {problem.message}"
        raise type(error)(replace(problem, message=message)) from error
