"""Steps of a plan: stable ids, an order that satisfies all needs, and no more steps than were selected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from epbuild.core.errors import PlanError
from epbuild.plan.steps import Plan, Step
from tests.support.plan_recipes import RECIPE, codes, edited, plan_of, problems_of, write_model, write_models

SHARING = [
    Step("compile:decoder/phone/prefill", "compile", (), "share:decoder/phone"),
    Step("compile:decoder/phone/decode", "compile", (), "share:decoder/phone"),
    Step(
        "share:decoder/phone",
        "share",
        ("compile:decoder/phone/prefill", "compile:decoder/phone/decode"),
        "share:decoder/phone",
    ),
    Step("emit:decoder/phone/directory", "emit", ("share:decoder/phone",), "emit:decoder/phone/directory"),
]
SINGLE = [
    Step("compile:vision/cpu/classifier", "compile", (), "compile:vision/cpu/classifier"),
    Step("compile:vision/cpu/prefill", "compile", (), "compile:vision/cpu/prefill"),
    Step(
        "emit:vision/cpu/directory",
        "emit",
        ("compile:vision/cpu/classifier", "compile:vision/cpu/prefill"),
        "emit:vision/cpu/directory",
    ),
]


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    return tmp_path


def ids(plan: Plan) -> list[str]:
    return [step.id for step in plan.steps]


def test_a_recipe_has_the_expected_steps_in_order(workshop: Path) -> None:
    assert list(plan_of(workshop).steps) == SHARING + SINGLE


def test_every_step_follows_its_dependencies_and_belongs_to_an_action(workshop: Path) -> None:
    plan = plan_of(workshop)
    seen: set[str] = set()
    for step in plan.steps:
        assert seen.issuperset(step.needs)
        assert step.action in plan.session_groups or step.action in plan.emissions
        seen.add(step.id)


def test_a_sharing_group_is_one_process_and_keeps_the_order_of_its_models(workshop: Path) -> None:
    group = plan_of(workshop).session_groups["share:decoder/phone"]
    assert [member.name for member in group.members] == ["prefill", "decode"]
    assert group.share
    assert group.steps == ("compile:decoder/phone/prefill", "compile:decoder/phone/decode", "share:decoder/phone")


def test_models_without_sharing_have_one_process_each(workshop: Path) -> None:
    plan = plan_of(workshop)
    for name in ("classifier", "prefill"):
        group = plan.session_groups[f"compile:vision/cpu/{name}"]
        assert [member.name for member in group.members] == [name]
        assert not group.share
        assert group.steps == (f"compile:vision/cpu/{name}",)


def test_a_member_is_staged_under_names_that_do_not_depend_on_its_files(workshop: Path) -> None:
    _, decode = plan_of(workshop).session_groups["share:decoder/phone"].members
    assert decode.files == (workshop / "models" / "decode.onnx", workshop / "models" / "decode.bin")
    assert decode.external == {"decode.bin": workshop / "models" / "decode.bin"}
    assert (decode.source, decode.output) == ("in/decode/decode.onnx", "out/decode_ctx.onnx")


def test_a_sharing_group_is_emitted_with_one_binary_of_the_first_member(workshop: Path) -> None:
    emission = plan_of(workshop).emissions["emit:decoder/phone/directory"]
    assert emission.path == workshop / "dist" / "decoder" / "phone"
    assert emission.session_groups == ("share:decoder/phone",)
    assert emission.parts[0].models == {"prefill": "prefill_ctx.onnx", "decode": "decode_ctx.onnx"}
    assert emission.parts[0].binaries == {name: {"QNNExecutionProvider": "prefill_qnn.bin"} for name in ("prefill", "decode")}


def test_models_without_sharing_are_emitted_with_one_binary_each(workshop: Path) -> None:
    emission = plan_of(workshop).emissions["emit:vision/cpu/directory"]
    assert emission.session_groups == ("compile:vision/cpu/classifier", "compile:vision/cpu/prefill")
    assert emission.parts[0].binaries == {
        name: {"OpenVINOExecutionProvider": f"{name}_openvino.bin"} for name in ("classifier", "prefill")
    }


def test_a_shared_binary_has_one_name_even_if_the_recipe_names_it_after_each_model(workshop: Path) -> None:
    text = RECIPE + "    context_binary: ${model}.bin\n"
    binaries = plan_of(workshop, text).emissions["emit:decoder/phone/directory"].parts[0].binaries
    assert binaries == {name: {"QNNExecutionProvider": "prefill.bin"} for name in ("prefill", "decode")}


def test_an_embedded_context_is_emitted_without_a_binary(workshop: Path) -> None:
    text = edited(
        RECIPE, ("    models: [classifier, prefill]\n", "    models: [classifier, prefill]\n    compile: {embed: true}\n")
    )
    assert plan_of(workshop, text).emissions["emit:vision/cpu/directory"].parts[0].binaries == {}


def test_a_second_output_is_a_step_of_its_own_from_the_same_compile(workshop: Path) -> None:
    second_output = """\
  - layout: directory
    path: flat/${group}-${target}
    model: nested/${model}.onnx
    context_binary: nested/bin/${first_model}.bin
"""
    plan = plan_of(workshop, RECIPE + second_output)
    assert plan.steps[3:5] == (
        SHARING[3],
        Step("emit:decoder/phone/directory-2", "emit", ("share:decoder/phone",), "emit:decoder/phone/directory-2"),
    )
    assert len(plan.session_groups) == 3
    second = plan.emissions["emit:decoder/phone/directory-2"]
    assert second.path == workshop / "flat" / "decoder-phone"
    assert second.parts[0].models == {"prefill": "nested/prefill.onnx", "decode": "nested/decode.onnx"}
    assert second.parts[0].binaries == {
        name: {"QNNExecutionProvider": "nested/bin/prefill.bin"} for name in ("prefill", "decode")
    }


EPS = """    eps:
      - {ep: OpenVINOExecutionProvider, provider_options: {device_type: CPU}}
      - {ep: CPUExecutionProvider}
"""
ONE_EP = """    ep: OpenVINOExecutionProvider
    provider_options:
      device_type: CPU
"""
CONTOSO = """ep = "ContosoExecutionProvider"
short = "contoso"
kind = "provider"
origin = "doc Contoso EP 3.1"
graph_optimization_level = "extended"
"""


def test_the_catalog_sets_graph_optimization_unless_the_recipe_does(workshop: Path) -> None:
    said = edited(RECIPE, ("    targets: [cpu]\n", "    targets: [cpu]\n    compile: {graph_optimization_level: all}\n"))
    groups = plan_of(workshop, said).session_groups
    levels = {ident: {member.compile.graph_optimization_level for member in group.members} for ident, group in groups.items()}
    assert levels == {
        "share:decoder/phone": {"basic"},
        "compile:vision/cpu/classifier": {"all"},
        "compile:vision/cpu/prefill": {"all"},
    }


def test_the_first_ep_that_compiles_decides_the_graph_optimization(workshop: Path) -> None:
    (workshop / "contoso.toml").write_text(CONTOSO, encoding="utf-8")
    eps = EPS.replace("    eps:\n", "    eps:\n      - {ep: ContosoExecutionProvider}\n")
    text = edited(RECIPE, ("name: tiny\n", "name: tiny\ncatalogs: [contoso.toml]\n"), (ONE_EP, eps))
    [member] = plan_of(workshop, text).session_groups["compile:vision/cpu/prefill"].members
    assert member.compile.graph_optimization_level == "extended"


@pytest.mark.parametrize(
    ("ep", "expect", "most"),
    [
        (ONE_EP, "", 0),
        (ONE_EP, "{fallback_nodes: 3}", 3),
        (ONE_EP, "{fallback_nodes: any}", None),
        (EPS, "", None),
        (EPS, "{fallback_nodes: 3}", 3),
    ],
)
def test_cpu_fallback_is_allowed_only_if_the_recipe_says_so(workshop: Path, ep: str, expect: str, most: int | None) -> None:
    word = f"    expect: {expect}\n" if expect else ""
    group = plan_of(
        workshop, edited(RECIPE, (ONE_EP, ep), ("    targets: [cpu]\n", f"    targets: [cpu]\n{word}"))
    ).session_groups["compile:vision/cpu/prefill"]
    assert [group.max_fallback_nodes(member) for member in group.members] == [most]


def test_options_reach_the_plan_as_the_strings_that_onnx_runtime_takes(workshop: Path) -> None:
    changes = ("      soc_model: SM8750\n", "      soc_model: 69\n      enable_htp_fp16_precision: true\n")
    options = "    session_options: {session.disable_cpu_ep_fallback: true}\n"
    plan = plan_of(workshop, edited(RECIPE, changes, ("  cpu:\n", f"{options}  cpu:\n")))
    target = plan.session_groups["share:decoder/phone"].target
    (ep,) = target.eps
    assert ep.provider_options == {"backend_type": "htp", "soc_model": "SM8750", "enable_htp_fp16_precision": "1"}
    assert target.session_options == {"session.disable_cpu_ep_fallback": "1"}
    assert ep.binary_target == "SM8750"


@pytest.mark.parametrize(
    ("soc", "expected"),
    [
        ("SM8750", "SM8750"),
        ("69", "SM8750"),
        ("SM8250", "SM8250"),
        ("4711", None),
        ("SM4711", "SM4711"),
        ('"SM8750,60"', "SM8750,SC8380XP"),
        ('"SM8750,4711"', None),
    ],
    ids=[
        "name",
        "known number",
        "name that the EP takes as a number",
        "unknown number",
        "unknown name",
        "list",
        "list with an unknown number",
    ],
)
def test_a_binary_is_compared_with_its_socs_only_if_their_names_are_known(workshop: Path, soc: str, expected: str | None) -> None:
    text = edited(
        RECIPE, ("soc_model: SM8750", f"soc_model: {soc}\n    allow_unknown_options: true"), ("    share_weights: true\n", "")
    )
    (ep,) = plan_of(workshop, text).session_groups["compile:decoder/phone/prefill"].target.eps
    assert ep.binary_target == expected


def test_an_unknown_option_is_accepted_if_the_target_allows_it(workshop: Path) -> None:
    text = edited(
        RECIPE, ("      device_type: CPU\n", "      device_type: CPU\n      brand_new: true\n    allow_unknown_options: true\n")
    )
    target = plan_of(workshop, text).session_groups["compile:vision/cpu/prefill"].target
    assert target.eps[0].provider_options == {"device_type": "CPU", "brand_new": "1"}
    assert target.unchecked == ("brand_new",), "what went unchecked can be told"


def test_only_toolchains_of_selected_steps_are_required_with_their_eps(workshop: Path) -> None:
    every = plan_of(workshop).toolchains()
    assert {name: [entry.ep for entry in entries] for name, (_, entries, _) in every.items()} == {
        "qnn": ["QNNExecutionProvider"],
        "openvino": ["OpenVINOExecutionProvider"],
    }
    assert list(plan_of(workshop, selection=["*vision*"]).toolchains()) == ["openvino"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (["emit:decoder/*"], SHARING),
        (["share:*"], SHARING[:3]),
        (["compile:decoder/phone/decode"], SHARING[:3]),
        (["compile:vision/cpu/prefill"], [SINGLE[1]]),
        (["emit:vision/cpu/directory"], SINGLE),
        (["compile:*"], [*SHARING[:3], *SINGLE[:2]]),
        (["compile:*/prefill"], [*SHARING[:3], SINGLE[1]]),
        (["compile:vision/cpu/prefill", "share:decoder/phone"], [*SHARING[:3], SINGLE[1]]),
        (["*"], SHARING + SINGLE),
        ([], SHARING + SINGLE),
    ],
    ids=str,
)
def test_a_selection_contains_its_dependencies_in_plan_order(workshop: Path, selection: list[str], expected: list[Step]) -> None:
    plan = plan_of(workshop, selection=selection)
    assert list(plan.steps) == expected
    assert {*plan.session_groups, *plan.emissions} == {step.action for step in expected}


def test_an_unmatched_glob_is_reported_with_the_nearest_step(workshop: Path) -> None:
    (problem,) = problems_of(workshop, selection=["share:decoder/fone"])
    assert (problem.code, problem.message) == ("EPB240", "no step matches 'share:decoder/fone'")
    assert problem.hint == "Did you mean 'share:decoder/phone'?"


def test_an_unmatched_glob_without_a_near_step_says_how_to_list_steps(workshop: Path) -> None:
    (problem,) = problems_of(workshop, selection=["?"])
    assert (problem.code, problem.hint) == ("EPB240", "List the steps with `epbuild plan`.")


def test_steps_are_matched_case_sensitively(workshop: Path) -> None:
    assert codes(problems_of(workshop, selection=["SHARE:*"])) == ["EPB240"]


def test_every_unmatched_glob_is_reported_in_one_run(workshop: Path) -> None:
    found = problems_of(workshop, selection=["nothing:*", "share:*", "never:*"])
    assert [problem.message for problem in found] == ["no step matches 'nothing:*'", "no step matches 'never:*'"]


@pytest.mark.parametrize(
    ("old", "new", "selection", "code"),
    [
        ("ep: QNNExecutionProvider", "ep: QNNExecutionProvidr", "share:decoder/phone", "EPB210"),
        ("path: dist/${group}/${target}", "path: ../${group}/${target}", "emit:decoder/phone/directory", "EPB221"),
    ],
    ids=["a target", "an output"],
)
def test_a_selection_of_steps_lost_through_another_problem_is_not_reported(
    workshop: Path, old: str, new: str, selection: str, code: str
) -> None:
    assert set(codes(problems_of(workshop, edited(RECIPE, (old, new)), [selection]))) == {code}


def test_files_of_unselected_models_are_not_read(workshop: Path) -> None:
    (workshop / "models" / "classifier.onnx").unlink()
    assert codes(problems_of(workshop)) == ["EPB201"]
    assert ids(plan_of(workshop, selection=["emit:decoder/*"])) == [step.id for step in SHARING]


def test_a_member_without_common_weights_causes_one_warning(workshop: Path) -> None:
    write_model(workshop / "models" / "decode.onnx", weights={"shared": [5], "other": [2]}, value=1.0)
    laptop = "  laptop:\n    toolchain: qnn\n    ep: QNNExecutionProvider\n    provider_options: {soc_model: 60}\ngroups:\n"
    plan = plan_of(workshop, edited(RECIPE, ("groups:\n", laptop), ("targets: [phone]", "targets: [phone, laptop]")))
    assert [(warning.code, warning.message) for warning in plan.warnings] == [
        ("EPB233", f"the model '{name}' shares nothing: it has no weights in common with the other models of 'decoder'")
        for name in ("prefill", "decode")
    ]
    assert [str(warning.where).rsplit(":", 2)[1:] for warning in plan.warnings] == [["9", "12"], ["10", "11"]]


def constants(path: Path, values: Sequence[float]) -> None:
    """Write a model with one weight, in a Constant node, as Paddle's exporter does."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [len(values)], values)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(values)]) for name in "xy"]
    nodes = [helper.make_node("Constant", [], ["w"], value=weight), helper.make_node("Add", ["x", "w"], ["y"])]
    proto = helper.make_model(helper.make_graph(nodes, "graph", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 21)])
    path.write_bytes(proto.SerializeToString())


def test_weights_in_constant_nodes_count_as_common_weights(workshop: Path) -> None:
    constants(workshop / "models" / "prefill.onnx", [1.0, 2.0])
    constants(workshop / "models" / "decode.onnx", [1.0, 2.0])
    assert plan_of(workshop).warnings == ()
    constants(workshop / "models" / "decode.onnx", [1.0, 3.0])
    assert [warning.code for warning in plan_of(workshop).warnings] == ["EPB233", "EPB233"]


def test_equally_named_weights_with_other_values_are_not_common_weights(workshop: Path) -> None:
    write_model(workshop / "models" / "decode.onnx", weights={"shared": [4]}, value=1.0)
    assert [warning.code for warning in plan_of(workshop).warnings] == ["EPB233", "EPB233"]


def test_a_common_scalar_causes_a_warning(workshop: Path) -> None:
    write_model(workshop / "models" / "prefill.onnx", weights={"scale": [1], "weight": [200]}, value=1.0)
    write_model(workshop / "models" / "decode.onnx", weights={"factor": [1], "weight": [300]}, value=1.0)
    assert [warning.message for warning in plan_of(workshop).warnings] == [
        f"the model '{name}' shares almost nothing: it has less than 1% of its weights in common with the other models of 'decoder'"
        for name in ("prefill", "decode")
    ]


def test_no_warning_is_emitted_if_weights_are_shared_or_sharing_is_off(workshop: Path) -> None:
    assert plan_of(workshop).warnings == ()


def test_no_warning_is_emitted_about_an_unselected_group(workshop: Path) -> None:
    write_model(workshop / "models" / "decode.onnx", weights={"other": [2]}, value=1.0)
    text = edited(RECIPE, ("[classifier, prefill]", "[classifier, prefill, decode]"))
    assert len(plan_of(workshop, text).warnings) == 2
    assert plan_of(workshop, text, ["*vision*"]).warnings == ()


def test_a_light_model_of_the_onnx_package_is_found_by_its_package_path(workshop: Path) -> None:
    name = "backend/test/data/light/light_squeezenet.onnx"
    plan = plan_of(workshop, edited(RECIPE, ("models/classifier.onnx", f"package:onnx/{name}")))
    (member,) = plan.session_groups["compile:vision/cpu/classifier"].members
    assert member.graph.as_posix().endswith(f"/onnx/{name}")
    assert member.graph.is_file()
    assert member.external == {}


def test_planning_writes_nothing(workshop: Path) -> None:
    plan_of(workshop)
    before = sorted(workshop.rglob("*"))
    plan_of(workshop)
    assert sorted(workshop.rglob("*")) == before


def test_plans_of_equal_recipes_are_equal(workshop: Path) -> None:
    assert plan_of(workshop) == plan_of(workshop)
    assert plan_of(workshop) != plan_of(workshop, edited(RECIPE, ("SM8750", "SM8650")))


def test_a_plan_error_has_the_exit_code_of_an_invalid_recipe(workshop: Path) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(workshop, selection=["nothing"])
    assert caught.value.exit_code == 2
