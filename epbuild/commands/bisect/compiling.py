"""Search for nodes that the target's EPs cannot compile or do not take.

If ONNX infers all sizes, the search needs no run of the model.
"""

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
    types, untyped = _find_types(case)

    def fails(nodes: Sequence[int]) -> bool:
        part = graph.add_untyped(nodes, types)
        return prober.fails(case.save(part, types), case.describe_end(len(part), part[-1]), error)

    found, complete = find_failing_part(graph.nodes, graph.parents, fails, case.may_compile)
    part = graph.add_untyped(found, types)
    advice = [problem.hint.partition("See the whole log")[0].strip()] if problem.hint else []
    if part != found:
        advice.append(
            f"A smaller part was not compiled, because the CPU EP cannot run the model to find the sizes of '{untyped}'."
        )
    bisection = case.conclude(
        "compile",
        f"{case.count(len(part))} cannot be compiled for {prober.title}",
        part,
        complete=complete,
        advice=advice,
        files=case.write_part(part, types),
    )
    return replace(bisection, reason=problem.reason or problem.message)


def explain_fallback(case: Case, outside: FallbackNodes) -> Bisection:
    """List all nodes that the EPs did not take. The written model has only the first of them."""
    prober, graph = case.prober, case.graph
    found = (graph.find_node(left.node, left.operator) for left in outside.nodes)
    first = sorted(index for index in found if index is not None)[:1]
    types, _ = _find_types(case)
    advice = [text for group in outside.groups for text in find_advice(prober.group.target, prober.member, group)]
    bisection = case.conclude(
        "fallback",
        f"{prober.title} does not take {case.count(outside.count)}",
        advice=list(dict.fromkeys(advice)),
        files=case.write_part(graph.add_untyped(first, types), types) if first else (),
    )
    part = tuple(PartNode(left.node, left.operator, "", left.reason) for left in outside.nodes)
    return replace(bisection, part=part, reason=f"the EP logged: {outside.why}" if outside.reasons else "")


def _find_types(case: Case) -> tuple[Types, str | None]:
    """Return the types and sizes of values, and the first value of unknown type, or None.

    ONNX infers them. If it cannot, they are taken from a run on the CPU EP, unless that fails too. Raises VerifyError if the inputs for
    this run are invalid.
    """
    types = case.graph.infer_types()
    untyped = case.graph.find_untyped(types)
    if untyped is not None:
        inputs = case.load_samples()[0]
        try:
            return {**types, **get_types(case.capture(inputs))}, None
        except EpbuildError as error:
            if not is_fault(error):
                raise
    return types, untyped
