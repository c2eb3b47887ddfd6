"""Loading of recipes: the order of keys does not matter, and invalid recipes raise RecipeError."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import Position, RecipeError
from epbuild.recipe.model import Recipe
from tests.recipe.texts import FULL, MINIMAL, load_text, problems_of, values
from tests.support.recipe_texts import places

MODEL = "models/tiny-llm"


def target(soc: str) -> dict[str, Any]:
    return {
        "name": f"snapdragon-{soc}",
        "toolchain": {"name": "qnn"},
        "eps": [
            {
                "ep": {"name": "QNNExecutionProvider"},
                "device": {"type": "npu", "vendor": "Qualcomm", "metadata": {"arch": "73"}, "virtual": True},
                "provider_options": {
                    "backend_type": {"value": "htp"},
                    "soc_model": {"value": soc},
                    "htp_graph_finalization_optimization_mode": {"value": 3},
                    "enable_htp_fp16_precision": {"value": True},
                },
                "library": None,
            }
        ],
        "session_options": {},
        "environment": {},
        "run_options": {},
        "allow_unknown_options": False,
        "allow_unknown_session_keys": False,
        "allow_nondeterminism": False,
        "measure": None,
        "whole": True,
    }


def model(name: str, path: str, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "sha256": None,
        "data_sha256": {},
        "dimensions": {},
        "load_from": "file",
    }
    return (
        {
            "name": name,
            "path": path,
            "external_data": None,
            "input_shapes": {},
            "dimension_places": {},
            "make": None,
            "prepare": [],
            "parent": None,
            "root": None,
            "verify": None,
        }
        | plain
        | more
    )


COMPILE: dict[str, Any] = {
    "embed": False,
    "graph_optimization_level": None,
    "initializers": "inline",
    "external_file": None,
    "external_threshold": 1024,
    "node_name_prefix": None,
    "initializer_names": [],
}
NOTHING_EXPECTED: dict[str, Any] = {
    **dict.fromkeys(("ep_context_nodes", "fallback_nodes", "min_shared_ratio", "max_bytes", "max_growth", "baseline")),
    "figures": [],
    "figure_growth": [],
}


def member(name: str, compile_: dict[str, Any] | None = None, expect: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "input_shapes": {},
        "model": {"name": name},
        "compile": COMPILE | (compile_ or {}),
        "expect": NOTHING_EXPECTED | (expect or {}),
        "verify": None,
        "compiled": True,
        "dimensions": {},
        "dimension_places": {},
    }


def group(name: str, members: list[dict[str, Any]], targets: list[str], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "members": members,
        "targets": [{"name": target} for target in targets],
        "share_weights": False,
        "share_initializers": None,
        "timeout": None,
        "memory": None,
        "merge": None,
        "genai": None,
        "allow_nondeterminism": False,
        "measure": None,
        "allow_failure": frozenset(),
        "sharing_sets": [],
        "adapters": [],
    } | more


def output(path: str) -> dict[str, Any]:
    texts = {"path": path, "model": "${model}_ctx.onnx", "context_binary": "${first_model}_${ep.short}.bin"}
    return {
        "layout": "directory",
        **{name: {"value": text} for name, text in texts.items()},
        **dict.fromkeys(("include_source", "component_name", "groups", "targets", "archive", "registry")),
        "provenance": False,
        "sbom": False,
        "encryption": None,
    }


EXPECTED = {
    "name": "tiny-llm",
    "description": "The prefill and decode graphs of one small decoder, sharing one context binary per NPU.",
    "toolchains": {
        "qnn": {
            "name": "qnn",
            "python": "3.11",
            "packages": ["onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"],
            "interpreter": None,
            "platforms": [],
            "custom_ops": [],
        },
        "ryzen": {
            "name": "ryzen",
            "python": None,
            "packages": [],
            "interpreter": "C:/ryzen-ai/python.exe",
            "platforms": [],
            "custom_ops": [{"name": "ryzen_ops"}, {"name": "ops/libmine.so"}],
        },
    },
    "models": {
        "prefill": model("prefill", f"{MODEL}/prefill.onnx"),
        "decode": model("decode", f"{MODEL}/decode.onnx", sha256="3f5a" + "0" * 59 + "1"),
    },
    "targets": {
        "snapdragon-SC8380XP": target("SC8380XP"),
        "snapdragon-SM8750": target("SM8750"),
        "strix": {
            "name": "strix",
            "toolchain": {"name": "ryzen"},
            "eps": [
                {
                    "ep": {"name": "VitisAIExecutionProvider"},
                    "device": {"type": None, "vendor": None, "metadata": {}, "virtual": False},
                    "provider_options": {},
                    "library": None,
                }
            ],
            "session_options": {},
            "environment": {},
            "run_options": {},
            "allow_unknown_options": True,
            "allow_unknown_session_keys": False,
            "allow_nondeterminism": False,
            "measure": None,
            "whole": True,
        },
    },
    "groups": {
        "decoder": group(
            "decoder",
            [
                member(name, {"graph_optimization_level": "disable_all"}, {"ep_context_nodes": 1, "fallback_nodes": 0})
                for name in ("prefill", "decode")
            ],
            ["snapdragon-SC8380XP", "snapdragon-SM8750"],
            share_weights=True,
            timeout=90.0,
        ),
        "single": group(
            "single",
            [
                member(
                    "prefill",
                    {"initializers": "external", "external_file": "${model}.weights", "external_threshold": 64},
                )
            ],
            ["strix", "snapdragon-SM8750"],
        ),
    },
    "outputs": [output("dist/tiny-llm/${group}/${target}"), output("flat/${group}-${target}-q3")],
    "catalogs": [],
    "cache": None,
}


def test_a_full_recipe_loads_into_the_expected_values(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, FULL)
    assert values(recipe) == EXPECTED
    assert recipe.file == tmp_path / "epbuild.yaml"
    assert recipe.directory == tmp_path


def test_every_part_of_a_recipe_has_its_position(tmp_path: Path) -> None:
    text = FULL
    for old, new in [
        ("  qnn:\n", "  ‸qnn:\n"),
        ("  prefill: models", "  ‸prefill: ‸models"),
        ("  decode:\n    path: models", "  ‸decode:\n    path: ‸models"),
        ("  snapdragon:\n", "  ‸snapdragon:\n"),
        ("toolchain: qnn\n    ep: QNN", "toolchain: ‸qnn\n    ep: ‸QNN"),
        ("soc_model: ${", "‸soc_model: ‸${"),
        ("  decoder:\n    models: [prefill, decode]", "  ‸decoder:\n    models: [‸prefill, ‸decode]"),
        ("[snapdragon-*]", "[‸snapdragon-*]"),
        ("embed: false", "embed: ‸false"),
        ("expect: {", "expect: ‸{"),
        ("  - layout: directory\n    path: dist", "  - ‸layout: directory\n    path: ‸dist"),
        ("model: ${model}", "model: ‸${model}"),
        ("context_binary: ${", "context_binary: ‸${"),
        ("  - layout: directory\n    path: flat", "  - ‸layout: directory\n    path: flat"),
    ]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    text, expected = places(text)
    recipe = load_text(tmp_path, text)
    row, decoder = recipe.targets["snapdragon-SM8750"], recipe.groups["decoder"]
    [choice] = row.eps
    soc = choice.provider_options["soc_model"]
    first, second = recipe.outputs
    prefill, decode = recipe.models["prefill"], recipe.models["decode"]
    found = [recipe.toolchains["qnn"].where, prefill.where, prefill.path_where, decode.where, decode.path_where]
    found += [row.where, row.toolchain.where, choice.ep.where, soc.name_where, soc.where]
    found += [decoder.where, *(member.model.where for member in decoder.members), decoder.targets[1].where]
    found += [place for place in (decoder.members[1].compile.embed_where, decoder.members[1].expect.where) if place]
    found += [first.where, first.path.where, first.model.where, first.context_binary.where, second.model.where]
    assert found == [Position(str(tmp_path / "epbuild.yaml"), *place) for place in expected]


def test_key_order_and_comments_do_not_change_a_recipe(tmp_path: Path) -> None:
    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        return [reversed_keys(item) for item in value] if isinstance(value, list) else value

    text = yaml.safe_dump(reversed_keys(yaml.safe_load(FULL)), sort_keys=False, width=1000)
    assert text.startswith("outputs:")
    assert text.endswith("epbuild: 1\n")
    assert values(load_text(tmp_path, text)) == EXPECTED
    assert values(load_text(tmp_path, text.replace("\n", "  # why\n"))) == EXPECTED


def test_a_matrix_expands_to_one_target_per_combination(tmp_path: Path) -> None:
    matrix = "    matrix: {soc: [60, '69'], mode: [fast, '${vars.quality}', true]}\n    device: {metadata: {mode: 'm${matrix.mode}'}}\n"
    text = MINIMAL.replace("    toolchain: qnn\n", matrix + "    toolchain: qnn\n").replace(
        "[npu]", "['npu-60-*', npu-69-3, 'npu-*-fast']"
    )
    recipe = load_text(tmp_path, text)
    assert list(recipe.targets) == [f"npu-{soc}-{mode}" for soc in ("60", "69") for mode in ("fast", "3", "true")]
    assert recipe.targets["npu-69-true"].eps[0].device.metadata == {"mode": "mtrue"}
    assert [reference.name for reference in recipe.groups["decoder"].targets] == [
        "npu-60-3",
        "npu-60-fast",
        "npu-60-true",
        "npu-69-3",
        "npu-69-fast",
    ]


def test_a_value_keeps_its_type_through_a_variable_and_an_axis(tmp_path: Path) -> None:
    text = MINIMAL.replace("  quality: 3\n", "  a: '3'\n  b: 3\n  c: 16e9\n  d: no\n  e: true\n")
    options = "".join(f"      {name}: ${{vars.{name}}}\n" for name in "abcde")
    more = f"    matrix: {{x: [1.5]}}\n    session_options:\n{options}      x: ${{matrix.x}}\n"
    text = text.replace("    toolchain: qnn\n", f"    toolchain: qnn\n{more}").replace("[npu]", "[npu-1.5]")
    found = [setting.value for setting in load_text(tmp_path, text).targets["npu-1.5"].session_options.values()]
    assert found == ["3", 3, 16e9, "no", True, 1.5]
    assert [type(value) for value in found] == [str, int, float, str, bool, float]


def test_variables_reach_paths_packages_and_timeouts(tmp_path: Path) -> None:
    text = MINIMAL.replace("[onnxruntime-qnn==2.7.0]", "['onnxruntime-qnn==${vars.quality}.0']").replace(
        "prefill.onnx", "'${recipe.name}/$${x}'"
    )
    recipe = load_text(tmp_path, text.replace("    targets: [npu]", "    targets: [npu]\n    timeout: ${vars.quality}"))
    assert recipe.toolchains["qnn"].packages == ("onnxruntime-qnn==3.0",)
    assert recipe.models["prefill"].path == "tiny/${x}"
    assert recipe.groups["decoder"].timeout == 3.0


def test_a_merge_section_is_parsed_completely(tmp_path: Path) -> None:
    settings = '{name: "${group}-whole", connect: {a.y: b.x, a.z: [b.u, c.u]}, prefixes: {a: "${vars.quality}_", b: ""}}'
    recipe = load_text(tmp_path, MINIMAL.replace("targets: [npu]", f"targets: [npu]\n    merge: {settings}"))
    found = recipe.groups["decoder"].merge
    assert found is not None
    assert found.connect is not None
    assert found.name == "decoder-whole"
    assert [(output.name, value.name) for output, value in found.connect] == [("a.y", "b.x"), ("a.z", "b.u"), ("a.z", "c.u")]
    assert {name: prefix.value for name, prefix in found.prefixes.items()} == {"a": "3_", "b": ""}


@pytest.mark.parametrize(("text", "expected"), [("{name: m}", None), ("{name: m, connect: {}}", ())])
def test_omitted_connections_differ_from_empty_connections(tmp_path: Path, text: str, expected: object) -> None:
    recipe = load_text(tmp_path, MINIMAL.replace("targets: [npu]", f"targets: [npu]\n    merge: {text}"))
    found = recipe.groups["decoder"].merge
    assert found is not None
    assert found.connect == expected


@pytest.mark.parametrize(
    ("of_group", "own"),
    [
        ("max_growth: 0.05, latency_ms: 4", "max_growth: {latency_ms: {p95: 0.1}}, latency_ms: {p95: 5}"),
        ("max_growth: {latency_ms: {p95: 0.1}}, latency_ms: {p95: 5}", "max_growth: 0.05, latency_ms: 4"),
    ],
)
def test_a_single_number_is_merged_like_the_mapping_that_it_is_short_for(tmp_path: Path, of_group: str, own: str) -> None:
    text = MINIMAL.replace("targets: [npu]", f"targets: [npu]\n    expect: {{baseline: last.json, {of_group}}}")
    recipe = load_text(tmp_path, text.replace("models: [prefill]", f"models: [{{model: prefill, expect: {{{own}}}}}]"))
    [member] = recipe.groups["decoder"].members
    found = member.expect
    assert (found.max_growth, found.figure_growth) == (0.05, (("latency_ms.p95", 0.1),))
    assert found.figures == (("latency_ms.p50", 4), ("latency_ms.p95", 5))


def test_a_valid_recipe_does_not_load_the_explaining_validator(tmp_path: Path) -> None:
    (tmp_path / "epbuild.yaml").write_text(MINIMAL, encoding="utf-8")
    code = (
        "import sys, pathlib, epbuild.recipe.load as r\nr.load(pathlib.Path(sys.argv[1]))\nassert 'jsonschema' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "epbuild.yaml")], check=True)


def assert_recipe_or_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        problems = problems_of(Path(folder), content)
    assert all("\n" not in str(problem) for problem in problems)
    "".join(map(str, problems)).encode()


@given(st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode))
def test_any_bytes_are_a_recipe_or_a_recipe_error(content: bytes) -> None:
    assert_recipe_or_error(content)


YAML_PIECES = ["<<: *a", "&a ", "*a", "!!x ", "\t", "\n  ", ": ", "- ", "[", "}", "'", '"', "~", "? ", "> ", "1", "\0", "\n---\n"]
TEMPLATES = st.sampled_from(["${vars.quality}", "${matrix.soc}", "${x", "snapdragon-*", "${model}"])
CHARACTERS = st.characters(exclude_categories=["Cs"])


@pytest.mark.slow
@given(data=st.data())
def test_any_damage_leads_to_a_recipe_or_a_recipe_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(FULL)))
    end = data.draw(st.integers(start, min(len(FULL), start + 40)))
    pieces = data.draw(st.lists(st.sampled_from(YAML_PIECES) | TEMPLATES | CHARACTERS, max_size=4))
    assert_recipe_or_error((FULL[:start] + "".join(pieces) + FULL[end:]).encode())


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab.$*{}é-")
VALUES = st.recursive(
    SCALARS | TEMPLATES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.$", max_size=2), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(data=st.data(), value=VALUES)
def test_any_value_at_any_key_leads_to_a_recipe_or_a_recipe_error(data: st.DataObject, value: object) -> None:
    root = yaml.safe_load(FULL)
    node = root
    while True:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 3)) == 0:
            break
        node = node[key]
    node[key] = value
    assert_recipe_or_error(yaml.safe_dump(root).encode())


def test_two_mistakes_in_one_mapping_are_two_problems(tmp_path: Path) -> None:
    text = MINIMAL.replace("    ep: QNNExecutionProvider\n", "    provider_options: {a: [1], b: }\n")
    assert [problem.code for problem in problems_of(tmp_path, text)] == ["EPB106", "EPB105", "EPB105"]


TYPED = {
    "a flag of a group": (
        "targets: [npu]",
        "targets: [npu]\n    share_weights: ${vars.it}",
        "true",
        lambda r: r.groups["decoder"].share_weights,
        True,
    ),
    "a flag of an output": (
        "layout: directory",
        "layout: directory\n    sbom: ${vars.it}",
        "true",
        lambda r: r.outputs[0].sbom,
        True,
    ),
    "a flag of a target": (
        "toolchain: qnn",
        "toolchain: qnn\n    allow_unknown_options: ${vars.it}",
        "true",
        lambda r: r.targets["npu"].allow_unknown_options,
        True,
    ),
    "embed": (
        "targets: [npu]",
        "targets: [npu]\n    compile: {embed: '${vars.it}'}",
        "true",
        lambda r: r.groups["decoder"].members[0].compile.embed,
        True,
    ),
    "a level": (
        "targets: [npu]",
        "targets: [npu]\n    compile: {graph_optimization_level: '${vars.it}'}",
        "basic",
        lambda r: r.groups["decoder"].members[0].compile.graph_optimization_level,
        "basic",
    ),
    "a threshold of a check of numbers": (
        "targets: [npu]",
        "targets: [npu]\n    verify: {metrics: {cosine: '${vars.it}'}}",
        "0.9",
        lambda r: r.groups["decoder"].members[0].verify.metrics,
        {"cosine": 0.9},
    ),
    "a bound of a range": (
        "targets: [npu]",
        "targets: [npu]\n    verify: {data: {ranges: {ids: [0, '${vars.it}']}}}",
        "99",
        lambda r: r.groups["decoder"].members[0].verify.made.ranges,
        {"ids": (0.0, 99.0)},
    ),
    "a threshold, with the file of an external store": (
        "targets: [npu]",
        "targets: [npu]\n    compile: {initializers: {store: '${vars.store}', file: w, threshold: '${vars.it}'}}",
        "7",
        lambda r: r.groups["decoder"].members[0].compile.external_threshold,
        7,
    ),
    "an expectation": (
        "targets: [npu]",
        "targets: [npu]\n    expect: {ep_context_nodes: '${vars.it}'}",
        "0",
        lambda r: r.groups["decoder"].members[0].expect.ep_context_nodes,
        0,
    ),
    "a layout": (
        "layout: directory",
        "layout: ${vars.it}",
        "ort-model-package",
        lambda r: r.outputs[0].layout,
        "ort-model-package",
    ),
    "a pin": (
        "prefill: prefill.onnx",
        "prefill: {path: prefill.onnx, sha256: '${vars.it}'}",
        "ab" * 32,
        lambda r: r.models["prefill"].sha256,
        "ab" * 32,
    ),
}


@pytest.mark.parametrize(("old", "new", "value", "found", "expected"), TYPED.values(), ids=TYPED)
def test_a_variable_can_have_a_value_of_any_type(
    tmp_path: Path, old: str, new: str, value: str, found: Callable[[Recipe], object], expected: object
) -> None:
    text = MINIMAL.replace("quality: 3", f"quality: 3\n  store: external\n  it: {value}").replace(old, new, 1)
    recipe = load_text(tmp_path, text)
    assert found(recipe) == expected
    # The schema's verdict depends on the variables.
    assert recipe.digest != load_text(tmp_path, MINIMAL).digest


@pytest.mark.parametrize(("old", "new"), [row[:2] for row in TYPED.values()], ids=TYPED)
def test_a_variable_of_the_wrong_type_is_refused_where_it_is_used(tmp_path: Path, old: str, new: str) -> None:
    text = MINIMAL.replace("quality: 3", "quality: 3\n  store: external\n  it: wrong").replace(old, new, 1)
    with pytest.raises(RecipeError) as error:
        load_text(tmp_path, text)
    [problem] = error.value.problems
    assert problem.code in ("EPB105", "EPB106")
    assert isinstance(problem.where, Position)
    assert "${vars.it}" in text.splitlines()[problem.where.line - 1]
    assert "'wrong'" in problem.message or "64 hexadecimal digits" in problem.message
