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


def test_each_model_has_a_group_in_order(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, RECIPE)
    assert {name: [member.model.name for member in group.members] for name, group in recipe.groups.items()} == {
        "zoo-big": ["big"],
        "zoo-a": ["a"],
        "zoo-b": ["b"],
    }
    assert [reference.name for reference in recipe.outputs[0].groups or ()] == ["zoo-a", "zoo-b", "zoo-big"]


def test_texts_of_a_group_contain_its_own_name(tmp_path: Path) -> None:
    text = changed(EACH, f'{EACH}    compile: {{node_name_prefix: "${{group}}_${{model}}_"}}\n')
    groups = load_text(tmp_path, text).groups
    assert [group.members[0].compile.node_name_prefix for group in groups.values()] == ["zoo-big_big_", "zoo-a_a_", "zoo-b_b_"]


def test_settings_of_a_model_are_kept_in_its_separate_group(tmp_path: Path) -> None:
    text = changed('models: [big, "?"]', 'models: [{model: big, compile: {graph_optimization_level: basic}}, {model: "?"}]')
    text = text.replace(EACH, f'{EACH}    compile: {{node_name_prefix: "${{group}}_"}}\n')
    members = [group.members for group in load_text(tmp_path, text).groups.values()]
    assert [[member.model.name for member in each] for each in members] == [["big"], ["a"], ["b"]]
    assert [each[0].compile.node_name_prefix for each in members] == ["zoo-big_", "zoo-a_", "zoo-b_"]
    assert [each[0].compile.graph_optimization_level for each in members] == ["basic", None, None]


def test_texts_of_a_thousand_separate_groups_are_expanded_quickly(tmp_path: Path) -> None:
    """Check that globs are not expanded for each group: that would be a million names."""
    models = ", ".join(f"m{number}: m{number}.onnx" for number in range(1000))
    text = changed("models: {a: a.onnx, b: b.onnx, big: big.onnx}", f"models: {{{models}}}").replace('[big, "?"]', '["*"]')
    groups = load_text(tmp_path, text.replace(EACH, f'{EACH}    compile: {{node_name_prefix: "${{group}}_"}}\n')).groups
    assert len(groups) == 1000
    assert groups["zoo-m7"].members[0].compile.node_name_prefix == "zoo-m7_"


def test_a_separate_group_uses_the_members_name(tmp_path: Path) -> None:
    text = changed('models: [big, "?"]', "models: [{model: a, name: small}]").replace(
        "groups:\n", "groups:\n  default: none\n", 1
    )
    assert list(load_text(tmp_path, text).groups) == ["zoo-small"]


@pytest.mark.parametrize(
    "more", ["share_weights: true", "merge: {name: all}", "genai: {config: genai.json, roles: {prefill: a, decode: b}}"]
)
def test_settings_that_need_several_models_are_refused(tmp_path: Path, more: str) -> None:
    [problem] = problems_of(tmp_path, changed(EACH, f"{EACH}    {more}\n"))
    assert problem.code == "EPB106"
    assert "one model" in problem.message
    assert str(problem.where).endswith(f":13:{5 + more.index(':') + 2}")


def test_the_common_prefix_is_not_a_group(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, changed('["zoo-*"]', "[zoo]"))
    assert (problem.code, problem.hint) == ("EPB108", "Did you mean 'zoo-*'?")


def test_two_groups_with_the_same_name_are_refused(tmp_path: Path) -> None:
    text = changed("groups:\n", "groups:\n  zoo-a: {models: [b], targets: [npu]}\n")
    assert [problem.code for problem in problems_of(tmp_path, text)] == ["EPB107"]
