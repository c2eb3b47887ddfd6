"""YAML reader: it takes text as written, loses nothing, and limits expansion."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import yaml

from epbuild.core.errors import RecipeError
from epbuild.recipe.nodes import MAX_DEPTH, MAX_NODES, MappingNode, to_plain
from epbuild.recipe.source import read
from tests.recipe.texts import FULL, MINIMAL, load_text, problems_of, values
from tests.support.recipe_texts import codes_and_places


def parsed(text: str) -> object:
    return to_plain(read(text.encode(), "r.yaml").root)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *((text, text) for text in ["no", "No", "yes", "on", "OFF", "y", "n", "tRUE"]),
        *((text, text) for text in ["012", "0o14", "0x1F", "0b1", "1:30", "190:20:30", "1_000", "+1"]),
        *((text, text) for text in [".5", "1.", "1e", ".inf", "-.inf", ".nan"]),
        *((text, text) for text in ["2024-01-31", "2024-01-31T10:00:00Z", "1.31.1", "<<", "=", "0.1.0", "\uff11"]),
        ("true", True),
        ("TRUE", True),
        ("False", False),
        ("0", 0),
        ("-7", -7),
        ("9223372036854775807", 9223372036854775807),
        ("9223372036854775808", "9223372036854775808"),
        ("9" * 5000, "9" * 5000),
        ("1.50", 1.5),
        ("16e9", 16e9),
        ("-1.5E-3", -0.0015),
        ("1e999", "1e999"),
        ("null", None),
        ("~", None),
        ("", None),
        ("'true'", "true"),
        ('"12"', "12"),
        ("''", ""),
        ("|\n  12\n", "12\n"),
        ('"\\u00e9\\n"', "é\n"),
    ],
)  # fmt: skip
def test_scalars_are_parsed_without_the_conversions_of_yaml_1_1(written: str, value: object) -> None:
    found = parsed(f"key: {written}")
    assert isinstance(found, dict)
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


@pytest.mark.parametrize(
    ("written", "key"), [("yes", "yes"), ("012", "012"), ("1.0", "1.0"), ("True", "True"), ("''", ""), ("~", "~")]
)
def test_a_key_keeps_its_text(written: str, key: str) -> None:
    assert parsed(f"{written}: 1") == {key: 1}


def test_own_keys_override_merged_keys_and_earlier_merges_override_later() -> None:
    text = """\
a: &a {x: a, y: a, z: a}
b: &b {y: b, w: b}
one: {<<: *a, x: own}
own_first: {x: own, <<: *a}
many:
  <<: [*b, *a]
  z: own
nested: &n {<<: *b, v: n}
deep: {<<: *n}
quoted: {"<<": *a}
"""
    found = parsed(text)
    assert isinstance(found, dict)
    assert found["one"] == found["own_first"] == {"x": "own", "y": "a", "z": "a"}
    assert found["many"] == {"x": "a", "y": "b", "w": "b", "z": "own"}
    assert found["deep"] == {"v": "n", "y": "b", "w": "b"}
    assert found["quoted"] == {"<<": {"x": "a", "y": "a", "z": "a"}}


def test_a_later_anchor_replaces_an_earlier_anchor_of_the_same_name() -> None:
    assert parsed("a: &x 1\nb: *x\nc: &x 2\nd: *x") == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_a_mistake_in_a_merged_value_is_reported_at_its_definition(tmp_path: Path) -> None:
    text = MINIMAL.replace("  npu:\n", "  npu: &npu\n    ep: 3\n").replace(
        "    ep: QNNExecutionProvider\n", "  gpu: {<<: *npu}\n"
    )
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB105", 12, 9)]


def test_an_alias_bomb_is_refused_before_expansion(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    tracemalloc.start()
    problems = problems_of(tmp_path, "\n".join(lines))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(code, line) for code, line, _ in codes_and_places(problems)] == [("EPB110", 6)]
    assert peak < 20_000_000


def test_a_merge_bomb_is_refused(tmp_path: Path) -> None:
    keys = ", ".join(f"k{n}: 1" for n in range(1000))
    text = f"a: &a {{{keys}}}\nb:\n  <<: [{', '.join(['*a'] * 1000)}]\n"
    assert [problem.code for problem in problems_of(tmp_path, text)] == ["EPB110"]


@pytest.mark.slow
def test_the_limit_on_the_number_of_values_is_exact() -> None:
    spare = MAX_NODES - 3  # the root, the key and the list
    assert parsed(f"a: [{'x,' * spare}]")
    with pytest.raises(RecipeError, match="EPB110"):
        parsed(f"a: [{'x,' * (spare + 1)}]")


def test_deep_nesting_is_refused_without_a_crash() -> None:
    assert parsed("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for text in ("[" * 100_000, "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "- " * 100_000, "? " * 100_000):
        with pytest.raises(RecipeError, match=f"nested more than {MAX_DEPTH} levels deep.*EPB110"):
            parsed(text)


def test_nesting_by_aliases_counts_as_nesting() -> None:
    links = [f"a{n}: &a{n} [[[[[[[[[[*a{n - 1}]]]]]]]]]]" for n in range(1, 10)]
    with pytest.raises(RecipeError, match="EPB110"):
        parsed("a0: &a0 x\n" + "\n".join(links))


def test_a_file_too_large_for_a_recipe_is_refused(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, MINIMAL + "#" * (1 << 20))
    assert problem.code == "EPB110"


def test_the_pure_python_parser_reads_the_same_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_c = load_text(tmp_path, FULL)
    bad = ["name: ${a", "a:\n\tb: 1", "a: b: c", "a: [{b: ${c}}]", "a\nb: 1", "a: 'b", "a: @b", "a: [b", "*a", "a: &a [*a]"]
    told_with_c = [codes_and_places(problems_of(tmp_path, text)) for text in bad]
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert load_text(tmp_path, FULL) == with_c
    assert [codes_and_places(problems_of(tmp_path, text)) for text in bad] == told_with_c
    assert [code for code, _, _ in codes_and_places(problems_of(tmp_path, 'a: "\\UFFFFFFFF"'))] == ["EPB101"]
    assert [code for code, _, _ in codes_and_places(problems_of(tmp_path, MINIMAL.replace("prefill.onnx", '"\\ud800"')))] == [
        "EPB106"
    ]


def test_positions_of_keys_and_values_match_the_text() -> None:
    root = read(b"a:\n  - x\n  - {b:   'y'}\n", "r.yaml").root
    entry = root.entries["a"]
    assert (str(entry.name_where), str(entry.node.where)) == ("r.yaml:1:1", "r.yaml:2:3")
    second = entry.node.items[1]  # type: ignore[union-attr]
    assert isinstance(second, MappingNode)
    assert (str(second.where), str(second.entries["b"].name_where)) == ("r.yaml:3:5", "r.yaml:3:6")
    assert str(second.entries["b"].node.where) == "r.yaml:3:11"


def test_anchors_do_not_change_the_recipe(tmp_path: Path) -> None:
    short = FULL.replace("models: [prefill, decode]", "models: &both [prefill, decode]").replace(
        "models: [prefill]", "models: *both"
    )
    long = FULL.replace("models: [prefill]", "models: [prefill, decode]")
    assert values(load_text(tmp_path, short)) == values(load_text(tmp_path, long))
