"""Graph of a plan: its nodes, its edges, and the groups that it forms if there are many nodes."""

from __future__ import annotations

from collections.abc import Sequence

from epbuild.commands.graph import StepGraph, build_step_graph
from epbuild.plan.steps import Step
from epbuild.survey.action_status import StepState
from epbuild.survey.status import StepStatus


def status(ident: str, *needs: str, state: StepState = "current", remote: bool = False) -> StepStatus:
    kind = ident.partition(":")[0]
    return StepStatus(Step(ident, kind, needs, ident), state, ("because",), None, (), remote)  # type: ignore[arg-type]


DECODER = (
    status("prepare:decoder/1-quantize"),
    status("compile:decoder/phone/prefill", "prepare:decoder/1-quantize", state="new"),
    status("compile:decoder/phone/decode", "prepare:decoder/1-quantize", state="failed"),
    status("share:decoder/phone", "compile:decoder/phone/prefill", "compile:decoder/phone/decode"),
    status("emit:decoder/phone/directory", "share:decoder/phone", state="restorable", remote=True),
    status("emit:ort-model-package", "share:decoder/phone"),
)


def many(groups: int, targets: int) -> Sequence[StepStatus]:
    found = []
    for group in range(groups):
        for target in range(targets):
            place = f"g{group}/t{target}"
            found += [status(f"compile:{place}/m"), status(f"emit:{place}/directory", f"compile:{place}/m", state="new")]
    return found


def named_edges(graph: StepGraph) -> list[tuple[str, str]]:
    return [(graph.nodes[start].name, graph.nodes[end].name) for start, end in graph.edges]


def test_graph_has_a_node_per_step_and_an_edge_per_dependency() -> None:
    graph = build_step_graph("epbuild.yaml", DECODER)
    assert [node.name for node in graph.nodes] == [found.step.id for found in DECODER]
    assert sorted(named_edges(graph)) == sorted((need, found.step.id) for found in DECODER for need in found.step.needs)
    assert [node.state for node in graph.nodes] == ["current", "new", "failed", "current", "restorable (remote)", "current"]
    assert graph.states == {"failed": 1, "new": 1, "restorable (remote)": 1, "current": 3}
    assert graph.grouped_by is None
    assert graph.nodes[1].reasons == ("because",)


def test_box_holds_steps_of_one_group_and_target_or_of_one_model() -> None:
    nodes = build_step_graph("epbuild.yaml", DECODER).nodes
    assert [(node.box, node.title) for node in nodes] == [
        ("prepare decoder", "1-quantize"),
        ("decoder / phone", "compile prefill"),
        ("decoder / phone", "compile decode"),
        ("decoder / phone", "share"),
        ("decoder / phone", "emit directory"),
        ("", "emit ort-model-package"),
    ]


def test_unselected_steps_have_no_edges() -> None:
    assert build_step_graph("epbuild.yaml", DECODER[3:4]).edges == ()


def test_two_hundred_steps_are_shown_individually() -> None:
    graph = build_step_graph("epbuild.yaml", many(50, 2))
    assert (len(graph.nodes), graph.grouped_by) == (200, None)


def test_larger_graphs_are_grouped_as_finely_as_is_readable() -> None:
    by = {
        size: (found.grouped_by, len(found.nodes), found.steps)
        for size in ((11, 1), (10, 3), (3, 21), (21, 3), (21, 21))
        for found in [build_step_graph("epbuild.yaml", many(*size), most=20)]
    }
    assert by == {
        (11, 1): ("group and target", 11, 22),
        (10, 3): ("group", 10, 60),
        (3, 21): ("group", 3, 126),
        (21, 3): ("target", 3, 126),
        (21, 21): ("kind", 2, 882),
    }


def test_grouped_node_lists_states_worst_first_and_merges_edges() -> None:
    graph = build_step_graph("epbuild.yaml", DECODER, most=4)
    assert [(node.name, dict(node.states)) for node in graph.nodes] == [
        ("prepare:decoder/1-quantize", {"current": 1}),
        ("decoder / phone", {"failed": 1, "new": 1, "restorable (remote)": 1, "current": 1}),
        ("emit:ort-model-package", {"current": 1}),
    ]
    assert named_edges(graph) == [
        ("prepare:decoder/1-quantize", "decoder / phone"),
        ("decoder / phone", "emit:ort-model-package"),
    ]
    assert graph.nodes[1].state == "failed"


def test_groups_are_boxes_when_targets_are_nodes() -> None:
    nodes = build_step_graph("epbuild.yaml", [*DECODER, *many(1, 2)], most=6).nodes
    assert [(node.box, node.title) for node in nodes] == [
        ("", "prepare:decoder/1-quantize"),
        ("decoder", "phone"),
        ("", "emit:ort-model-package"),
        ("g0", "t0"),
        ("g0", "t1"),
    ]
