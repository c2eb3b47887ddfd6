"""`separate: true`: a group for each model, with its name in its texts, and refused where several models are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipe.texts import load_text, problems_of

RECIPE = """\
epbuild: 1
name: zoo
toolchains:
  qnn: {packages: [onnxruntime-qnn]}
models: {a: a.onnx, b: b.onnx, big: big.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider}
groups:
  zoo:
    models: [big, "?"]
    targets: [npu]
    separate: true
outputs:
  - {layout: directory, path: "dist/${group}", groups: ["zoo-*"]}
"""
EACH = "    separate: true\n"


def changed(old: str, new: str) -> str:
    assert old in RECIPE
    return RECIPE.replace(old, new)


def test_there_is_a_group_for_each_model_in_order(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, RECIPE)
    assert {name: [member.model.name for member in group.members] for name, group in recipe.groups.items()} == {
        "zoo-big": ["big"],
        "zoo-a": ["a"],
        "zoo-b": ["b"],
    }
    assert [reference.name for reference in recipe.outputs[0].groups or ()] == ["zoo-a", "zoo-b", "zoo-big"]


def test_texts_of_a_group_have_its_own_name(tmp_path: Path) -> None:
    text = changed(EACH, f'{EACH}    compile: {{node_name_prefix: "${{group}}_${{model}}_"}}\n')
    groups = load_text(tmp_path, text).groups
    assert [group.members[0].compile.node_name_prefix for group in groups.values()] == ["zoo-big_big_", "zoo-a_a_", "zoo-b_b_"]


def test_settings_of_a_model_stay_its_own_where_texts_have_the_name_of_its_group(tmp_path: Path) -> None:
    text = changed('models: [big, "?"]', 'models: [{model: big, compile: {graph_optimization_level: basic}}, {model: "?"}]')
    text = text.replace(EACH, f'{EACH}    compile: {{node_name_prefix: "${{group}}_"}}\n')
    members = [group.members for group in load_text(tmp_path, text).groups.values()]
    assert [[member.model.name for member in each] for each in members] == [["big"], ["a"], ["b"]]
    assert [each[0].compile.node_name_prefix for each in members] == ["zoo-big_", "zoo-a_", "zoo-b_"]
    assert [each[0].compile.graph_optimization_level for each in members] == ["basic", None, None]


def test_a_zoo_of_a_thousand_models_has_texts_with_the_names_of_its_groups(tmp_path: Path) -> None:
    """Check that globs are not expanded for each group: that would be a million names."""
    models = ", ".join(f"m{number}: m{number}.onnx" for number in range(1000))
    text = changed("models: {a: a.onnx, b: b.onnx, big: big.onnx}", f"models: {{{models}}}").replace('[big, "?"]', '["*"]')
    groups = load_text(tmp_path, text.replace(EACH, f'{EACH}    compile: {{node_name_prefix: "${{group}}_"}}\n')).groups
    assert len(groups) == 1000
    assert groups["zoo-m7"].members[0].compile.node_name_prefix == "zoo-m7_"


def test_a_member_is_called_by_its_name_there(tmp_path: Path) -> None:
    text = changed('models: [big, "?"]', "models: [{model: a, name: small}]").replace(
        "groups:\n", "groups:\n  default: none\n", 1
    )
    assert list(load_text(tmp_path, text).groups) == ["zoo-small"]


@pytest.mark.parametrize(
    "more", ["share_weights: true", "merge: {name: all}", "genai: {config: genai.json, roles: {prefill: a, decode: b}}"]
)
def test_what_takes_several_models_is_refused_at_its_place(tmp_path: Path, more: str) -> None:
    [problem] = problems_of(tmp_path, changed(EACH, f"{EACH}    {more}\n"))
    assert problem.code == "EPB106"
    assert "one model" in problem.message
    assert str(problem.where).endswith(f":13:{5 + more.index(':') + 2}")


def test_the_name_before_the_models_is_no_group(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, changed('["zoo-*"]', "[zoo]"))
    assert (problem.code, problem.hint) == ("EPB108", "Did you mean 'zoo-*'?")


def test_two_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    text = changed("groups:\n", "groups:\n  zoo-a: {models: [b], targets: [npu]}\n")
    assert [problem.code for problem in problems_of(tmp_path, text)] == ["EPB107"]
