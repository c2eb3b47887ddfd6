"""`epbuild import`: configurations of other tools become valid recipes, and every loss is reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import TensorProto, helper

from epbuild.catalog.catalog import entry
from epbuild.commands.importing.build import SkippedSetting
from epbuild.commands.importing.decoders import find_first_layers, read_assignments
from epbuild.commands.importing.importing import ImportedRecipe, ImportRequest, import_recipe
from epbuild.core.errors import EpbuildError, PlanError, Position
from epbuild.plan.planner import make_plan
from epbuild.recipe.load import load
from epbuild.report.json.build import build_imported_document
from epbuild.report.json.documents import format_json
from epbuild.report.terminal.recipes import print_imported
from tests.support.commands import write_model
from tests.support.plan_recipes import key_documents

REAL = Path(__file__).parent / "imported"
TOOL = "ep_weight_sharing_ctx_gen"
LONG = """\
epbuild: 1
name: NAME
toolchains:
  qnn:
    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]
models:
  model1: model1.onnx
  model2: model2.onnx
targets:
  SC8380XP:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      htp_graph_finalization_optimization_mode: 3
      soc_model: "60"
groups:
  main:
    models: [model1, model2]
    targets: [SC8380XP]
    share_weights: true
    expect: {fallback_nodes: any}
outputs:
  - layout: directory
    path: dist/${recipe.name}/${group}/${target}
"""
"""Recipe of the example in the tool's help, with its defaults written out."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("model1", "model2"):
        write_model(tmp_path / f"{name}.onnx")
    return tmp_path


def imported(*words: object, **changes: Any) -> tuple[Mapping[str, Any], ImportedRecipe]:
    """Import a configuration, and return the recipe as YAML. Fail if the planner refuses it."""
    done = import_recipe(replace(ImportRequest(tuple(map(str, words)), Path("epbuild.yaml")), **changes))
    make_plan(load(done.path))
    recipe: Mapping[str, Any] = yaml.safe_load(done.path.read_text(encoding="utf-8"))
    return recipe, done


def omitted_items(left: tuple[SkippedSetting, ...]) -> list[str]:
    return [item.what for item in left]


def refused(*words: object, **changes: Any) -> str:
    with pytest.raises(PlanError) as error:
        imported(*words, **changes)
    assert not Path("epbuild.yaml").exists()
    [problem] = error.value.problems
    assert problem.code == "EPB292"
    return str(problem)


def test_example_in_the_help_of_the_tool_is_imported(folder: Path) -> None:
    words = [
        f"./{TOOL}", "-e", "qnn", "-i", "soc_model|60 htp_graph_finalization_optimization_mode|3",
        "-C", "ep.context_node_name_prefix|_part1", "./model1.onnx,./model2.onnx",
    ]  # fmt: skip
    recipe, done = imported(*words)
    assert recipe["models"] == ["model1.onnx", "model2.onnx"]
    assert recipe["targets"] == {
        "SC8380XP": {"ep": "qnn", "soc": 60, "provider_options": {"htp_graph_finalization_optimization_mode": 3}}
    }
    assert recipe["groups"]["main"] == {
        "models": ["model1", "model2"],
        "share_weights": True,
        "expect": {"fallback_nodes": "any"},
    }
    (folder / "long.yaml").write_text(LONG.replace("NAME", done.path.absolute().parent.name), encoding="utf-8")
    assert key_documents(done.path.absolute()) == key_documents(folder / "long.yaml")
    assert omitted_items(done.left) == [
        "graph optimization level",
        "the location of the outputs",
        "ep.context_node_name_prefix=_part1",
    ]
    assert "# - the location of the outputs: the tool writes outputs beside its models." in Path("epbuild.yaml").read_text(
        encoding="utf-8"
    )


def test_tool_options_without_a_recipe_equivalent_are_listed(folder: Path) -> None:
    recipe, done = imported(
        f"C:\\ort\\{TOOL}.exe", "-v", "-i", "vtcm_mb|8 htp_arch|75 soc_model|60 backend_path|/opt/qnn/libQnnHtp.so nonsense|1",
        "-Cep.context_enable|1 ep.context_embed_mode|1 ep.context_file_path|x.onnx session.disable_quant_qdq|1 no.key|2",
        "model1.onnx", "model2.onnx",
    )  # fmt: skip
    assert recipe["targets"] == {
        "SC8380XP": {
            "ep": "qnn",
            "soc": 60,
            "provider_options": {"vtcm_mb": 8},
            "session_options": {"session.disable_quant_qdq": 1},
        }
    }
    assert recipe["groups"] == {"model1": {"expect": {"fallback_nodes": "any"}}}
    assert omitted_items(done.left) == [
        "-v",
        "-i backend_path=/opt/qnn/libQnnHtp.so",
        "-i nonsense=1",
        "-C ep.context_embed_mode=1",
        "-C ep.context_file_path=x.onnx",
        "-C no.key=2",
        "model2.onnx",
        "graph optimization level",
        "the location of the outputs",
        "the option htp_arch=75",
    ]
    assert all(item.why for item in done.left)


def test_plugin_file_names_the_ep_by_name_or_by_library(folder: Path) -> None:
    config: dict[str, Any] = {
        "ep_library_registration_name": "qnn_ep",
        "ep_library_path": "C:\\qnn\\onnxruntime_providers_qnn.dll",
        "selected_ep_device_indices": [1, 2],
        "default_ep_options": {"soc_model": "SM8750", "unknown": "x"},
    }
    (folder / "ep.json").write_text(json.dumps(config), encoding="utf-8")
    recipe, done = imported(TOOL, "-p", "ep.json", "-i", "soc_model|60", "model1.onnx,model2.onnx")
    assert list(recipe["targets"]) == ["SM8750"]
    assert omitted_items(done.left)[:4] == [
        "selected_ep_device_indices [1, 2]",
        "ep_library_path C:\\qnn\\onnxruntime_providers_qnn.dll",
        "default_ep_options unknown=x",
        "-i soc_model|60",
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-i", "soc_model|60"], "does not name any models"),
        (["-e", "openvino", "model1.onnx"], "although its help lists this EP"),
        (["-e", "npu", "model1.onnx"], "which the tool does not know"),
        (["-z", "model1.onnx"], "option -z not recognized"),
        (["-h"], "does not name any models"),
        (["-o", "x", "model1.onnx"], "shows its help"),
        (["-i", "soc_model", "model1.onnx"], "invalid option 'soc_model': expected KEY|VALUE"),
        (["model1.onnx"], "Set the target with --target: the SoC"),
        (["-i", "soc_model|0", "model1.onnx"], "Set the target with --target: the SoC"),
        (["-p", str(REAL / "weight_sharing/example_plugin_ep_config.json"), "model1.onnx"], "example_plugin_ep does not compile"),
        (["-p", "nowhere.json", "model1.onnx"], "cannot be read"),
    ],
)
def test_unsupported_commands_of_the_tool_are_refused(folder: Path, words: list[str], why: str) -> None:
    assert why in refused(TOOL, *words)


def test_missing_model_is_refused_and_nothing_is_written(folder: Path) -> None:
    with pytest.raises(EpbuildError):
        imported(TOOL, "-i", "soc_model|60", "nowhere.onnx")
    assert not Path("epbuild.yaml").exists()


@pytest.mark.parametrize("name", sorted(path.name for path in (REAL / "olive").iterdir()))
def test_real_configurations_of_olive_are_imported(folder: Path, name: str) -> None:
    source = json.loads((REAL / "olive" / name).read_text(encoding="utf-8"))
    [compiler] = [one for one in source["passes"].values() if one["type"] == "EPContextBinaryGenerator"]
    needs_soc = name != "phi3.5_gpu_ctxbin.json" and "soc_model" not in compiler.get("provider_options", {})
    targets = {"phone": "SM8750"} if needs_soc else None
    recipe, done = imported(REAL / "olive" / name, models=("model1.onnx", "model2.onnx"), targets=targets)
    [target] = load(done.path).targets.values()
    ep = target.eps[0]
    for option, value in compiler.get("provider_options", {}).items():
        names = entry(ep.ep.name).canonical_names(option)  # the recipe has the SoC's name, and the configuration its number
        written = str(ep.provider_options[option].value)
        assert names.get(written, written) == names.get(value, value)
    groups = recipe["groups"]["main"]
    assert groups.get("share_weights", False) is bool(compiler.get("weight_sharing"))
    told = " ".join(omitted_items(done.left))
    for key in source.keys() - {"input_model", "systems", "passes", "target", "host", "cache_dir"}:
        assert key in told or "severity" in key or key in {"clean_cache", "evaluate_input_model", "no_artifacts"}
    for key, one in source["passes"].items():
        assert one["type"] in ("EPContextBinaryGenerator", "CaptureSplitInfo") or f"pass {key} ({one['type']})" in told
    assert json.loads(format_json(build_imported_document(done)))["not_carried_over"]


def test_olive_configuration_that_starts_from_onnx_needs_no_model(folder: Path) -> None:
    document = {
        "input_model": {
            "type": "CompositeModel",
            "config": {
                "model_component_names": ["a", "b"],
                "model_components": [
                    {"type": "ONNXModel", "model_path": "model1.onnx"},
                    {"type": "ONNXModel", "config": {"model_path": "model2.onnx"}},
                ],
            },
        },
        "systems": {
            "npu": {"type": "Docker", "config": {"accelerators": [{"execution_providers": [["QNNExecutionProvider", []]]}]}}
        },
        "passes": {
            "cb": [
                {
                    "type": "EPContextBinaryGenerator",
                    "config": {
                        "weight_sharing": False,
                        "embed_context": True,
                        "disable_cpu_fallback": True,
                        "provider_options": {"soc_model": "60", "backend_path": "QnnHtp.dll", "enable_htp_fp16_precision": True},
                        "session_options": {
                            "graph_optimization_level": 99,
                            "intra_op_num_threads": 4,
                            "extra_session_config": {"session.disable_quant_qdq": "1"},
                        },
                    },
                }
            ]
        },
        "target": "npu",
    }
    (folder / "olive.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    recipe, done = imported("olive.yaml")
    assert recipe["models"] == ["model1.onnx", "model2.onnx"]
    [target] = recipe["targets"].values()
    assert (target["soc"], target["provider_options"]) == (60, {"enable_htp_fp16_precision": 1})
    assert target["session_options"] == {"session.disable_quant_qdq": 1}
    group = recipe["groups"]["main"]
    assert group["compile"] == {"embed": True, "graph_optimization_level": "all"}
    assert "expect" not in group
    assert sorted(omitted_items(done.left)) == ["session_options intra_op_num_threads=4", "system npu (Docker)"]


def write_decoder(path: str, layers: int = 5, inputs: tuple[str, ...] = ("input_ids",), assignments: str = "") -> str:
    """Write the interface of a decoder that onnxruntime-genai's model builder exports."""
    info = helper.make_tensor_value_info
    caches = [info(f"past_key_values.{n}.key", TensorProto.FLOAT, ["batch_size", 2, "past", 8]) for n in range(layers)]
    values = [info(name, TensorProto.INT64, ["batch_size", "sequence_length"]) for name in inputs]
    node = helper.make_node("Identity", [values[0].name], ["logits"])
    output = info("logits", TensorProto.INT64, ["batch_size", "sequence_length"])
    model = helper.make_model(helper.make_graph([node], "g", [*values, *caches], [output]), ir_version=8)
    helper.set_model_props(model, {"split_assignments": assignments} if assignments else {})
    onnx.save(model, path)
    return path


def import_decoder(*models: str, device: str = "npu", **settings: Mapping[str, Any] | None) -> tuple[Any, ImportedRecipe]:
    """Import the passes of Olive's published recipes for language models, with changed settings or, for None, without a pass."""
    passes: dict[str, Any] = {
        "cs": {"type": "CaptureSplitInfo", "num_splits": 3, "unique_embeds_lm_head_splits": True},
        "sp": {"type": "SplitModel"},
        "st": {"type": "StaticLLM", "batch_size": 1, "context_length": 64},
        "cb": {"type": "EPContextBinaryGenerator", "provider_options": {"soc_model": "60"}, "weight_sharing": True},
        "cp": {"type": "ComposeOnnxModels"},
    }
    passes = {name: {**one, **(settings.get(name) or {})} for name, one in passes.items() if settings.get(name, {}) is not None}
    system = {"type": "LocalSystem", "accelerators": [{"device": device, "execution_providers": ["QNNExecutionProvider"]}]}
    Path("olive.json").write_text(json.dumps({"systems": {"qnn": system}, "passes": passes, "target": "qnn"}), encoding="utf-8")
    return imported("olive.json", models=models, force=True)


PROMPT, TOKEN = ({"dimensions": {"batch_size": 1, "sequence_length": tokens}} for tokens in (64, 1))


def test_decoder_is_split_and_built_at_two_sizes_as_in_olive(folder: Path) -> None:
    recipe, done = import_decoder(write_decoder("llm.onnx"))
    assert recipe["models"] == {"llm": {"path": "llm.onnx", "split": {"layers": [0, 2, 4, 5]}}}
    assert recipe["groups"]["main"] == {
        "models": [
            {"model": "llm_0", "name": "embeddings", "compile": "none"},
            *({"model": f"llm_{part + 1}", "name": f"prefill_{part}", **PROMPT} for part in range(3)),
            *({"model": f"llm_{part + 1}", "name": f"decode_{part}", **TOKEN} for part in range(3)),
            {"model": "llm_4", "name": "lm_head", "compile": "none"},
        ],
        "share_weights": [["prefill_0", "decode_0"], ["prefill_1", "decode_1"], ["prefill_2", "decode_2"]],
        "expect": {"fallback_nodes": "any"},
    }
    assert omitted_items(done.left) == ["input_model", "pass cp (ComposeOnnxModels)", "genai_config.json"]


def test_assignments_in_the_model_replace_equal_parts(folder: Path) -> None:
    names = [f"model.layers.{layer}={1 + (layer > 0)}" for layer in range(5)]
    model = write_decoder("llm.onnx", assignments=";".join(["model.embed_tokens=0", *names, "lm_head=3"]))
    recipe, _ = import_decoder(model)
    assert recipe["models"]["llm"]["split"] == {"layers": [0, 1, 5]}


def test_models_that_olive_split_become_stages(folder: Path) -> None:
    parts = [write_decoder(f"split_{part}.onnx") for part in range(3)]
    recipe, done = import_decoder(*parts)
    assert recipe["models"] == parts
    group = recipe["groups"]["main"]
    assert [member["name"] for member in group["models"]] == ["embeddings", "prefill", "decode", "lm_head"]
    assert group["share_weights"] == [["prefill", "decode"]]
    assert "pass sp (SplitModel)" in omitted_items(done.left)


def test_models_with_static_shapes_from_olive_share_in_pairs(folder: Path) -> None:
    for name in ("context_0", "iterator_0", "context_1", "iterator_1", "embeddings", "lm_head"):
        write_model(folder / f"{name}.onnx")
    recipe, _ = import_decoder("*_*.onnx", "embeddings.onnx")
    group = recipe["groups"]["main"]
    assert group["models"][1] == {"model": "context_0", "name": "prefill_0"}
    assert group["share_weights"] == [["prefill_0", "decode_0"], ["prefill_1", "decode_1"]]


def test_decoder_for_a_gpu_is_built_whole(folder: Path) -> None:
    recipe, _ = import_decoder(write_decoder("llm.onnx"), device="gpu", cs=None, sp=None, cp=None)
    assert recipe["groups"]["main"]["models"] == [
        {"model": "llm", "name": "prefill", **PROMPT}, {"model": "llm", "name": "decode", **TOKEN},
    ]  # fmt: skip
    single = {"prefill_decode_models": False}
    recipe, _ = import_decoder(Path("llm.onnx").name, device="gpu", cs=None, sp=None, cp=None, st=single)
    assert recipe["groups"]["main"]["models"] == [{"model": "llm", "name": "decoder", **PROMPT}]


def test_genai_configuration_with_the_window_adds_roles(folder: Path) -> None:
    model = {"context_length": 128, "vocab_size": 256, "eos_token_id": 1, "decoder": {"sliding_window": {"window_size": 64}}}
    Path("genai_config.json").write_text(json.dumps({"model": model}), encoding="utf-8")
    recipe, _ = import_decoder(write_decoder("llm.onnx"), cs={"num_splits": 1})
    roles = {"embeddings": ["embeddings"], "prefill": ["prefill"], "decode": ["decode"], "lm_head": ["lm_head"]}
    assert recipe["groups"]["main"]["genai"] == {"config": "genai_config.json", "roles": roles}


def test_passes_that_do_not_fit_the_model_are_listed(folder: Path) -> None:
    model = write_decoder("llm.onnx", inputs=("tokens",))
    recipe, done = import_decoder(model, cs={"num_splits": None, "cost_model": "costs.csv"})
    assert "split" not in recipe["models"]["llm"]
    assert {"pass sp (SplitModel)", "pass st (StaticLLM)"} <= set(omitted_items(done.left))
    recipe, _ = import_decoder(model, st=None, sp={"split_assignments": "model.layers.0=0;model.layers.1=1"})
    assert recipe["groups"]["main"]["share_weights"] == [["llm_0", "llm_1"]]
    assert list(recipe["models"]["llm"]) == ["path", "split", "input_shapes"]


@pytest.mark.parametrize(
    ("assignments", "layers"),
    [
        ("model.embed_tokens=0;model.layers.0=1;lm_head=2", [0, 1]),
        ("model.embed_tokens=0;model.layers.0=0;model.layers.1=1;lm_head=1", [1]),
        ("transformer.h.0=0;transformer.h.1=0", []),
        ("model.layers.0.mlp=0;model.layers.1=1", []),
        ("model.layers.0=1;model.layers.1=0", []),
        ("model.layers.0=0;model.layers.2=1", []),
        ("model.embed_tokens=0;model.norm=1;model.layers.0=2", []),
        ("nonsense", []),
    ],
)
def test_assignments_of_whole_layers_become_boundaries(assignments: str, layers: list[int]) -> None:
    assert find_first_layers(read_assignments(assignments)) == layers


@pytest.mark.parametrize("name", ["reference_full.json", "config_and_build.json"])
def test_real_configurations_of_winml_are_imported(folder: Path, name: str) -> None:
    recipe, done = imported(REAL / "winml" / name, models=("model1.onnx",), targets={"laptop": "SC8380XP"})
    assert recipe["targets"] == {"laptop": {"ep": "qnn", "soc": "SC8380XP"}}
    assert {"loader", "quant", "export"} <= set(omitted_items(done.left))
    assert "which EP it compiles for" not in (done.left[0].why)


def test_winml_configuration_without_a_compile_section_needs_an_ep(folder: Path) -> None:
    source = REAL / "winml/bge_m3_w8a16.json"
    assert "the section `compile` is missing or null" in refused(source, models=("model1.onnx",))
    recipe, done = imported(source, models=("model1.onnx",), ep="qnn", targets={"laptop": "60"})
    assert list(recipe["targets"]) == ["laptop"]
    assert {"eval", "quant", "export"} <= set(omitted_items(done.left))


def test_compile_section_written_by_winml_is_imported(folder: Path) -> None:
    section = {
        "execution_provider": "openvino",
        "provider_options": {"device_type": "GPU", "nonsense": "1"},
        "provider_option_file_keys": [],
        "enable_ep_context": True,
        "embed_context": True,
        "compiler": "qairt",
        "qnn_sdk_root": "C:/qnn",
        "device": "gpu",
        "ep_device": None,
        "validate": False,
        "other": 1,
    }
    export = {"input_tensors": [{"name": "x", "shape": [1, 4]}, {"name": "unknown", "shape": [1, 2]}]}
    (folder / "winml.json").write_text("\ufeff" + json.dumps({"compile": section, "export": export}), encoding="utf-8")
    recipe, done = imported("winml.json", models=("model1.onnx",))
    assert recipe["targets"] == {"GPU": {"ep": "openvino", "device": "GPU"}}
    assert recipe["groups"]["model1"]["compile"] == {"embed": True}
    assert omitted_items(done.left) == [
        "provider_options nonsense=1", "compiler qairt", "qnn_sdk_root C:/qnn", "compile other=1", "export",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "invalid JSON"),
        ("[]", "a list of configurations"),
        ("3", "no object"),
        ("{}", "neither a configuration of Olive nor a configuration of winml"),
        (
            '{"passes": {"q": {"type": "OnnxQuantization"}}}',
            "the pass EPContextBinaryGenerator, which compiles for an EP, is missing",
        ),
        ('{"passes": {"q": {"type": "EPContextBinaryGenerator"}}}', "does not name an ONNX model"),
        ('{"compile": {"execution_provider": "dml"}}', "DmlExecutionProvider does not compile ahead of time"),
        ('{"compile": {}}', "winml chooses an EP that the machine supports"),
        ('{"compile": {"execution_provider": "qnn", "enable_ep_context": false}}', "enable_ep_context is false"),
        ('{"compile": {"execution_provider": "qnn"}}', "does not name an ONNX model"),
        (
            '{"passes": {"a": {"type": "EPContextBinaryGenerator"}}, "systems": {"x": {"accelerators": 5}}}',
            "does not name an ONNX model",
        ),
        ('{"compile": {"execution_provider": "qnn"}, "export": {"input_tensors": 5}}', "does not name an ONNX model"),
    ],
)
def test_unsupported_configuration_is_refused(folder: Path, text: str, why: str) -> None:
    (folder / "config.json").write_text(text, encoding="utf-8")
    assert why in refused("config.json")


def test_json_mistake_is_reported_with_its_position(folder: Path) -> None:
    (folder / "config.json").write_text('{\n  "compile": nothing}', encoding="utf-8")
    with pytest.raises(PlanError) as error:
        imported("config.json")
    assert error.value.problems[0].where == Position("config.json", 2, 14)


def test_existing_recipe_is_not_overwritten(folder: Path) -> None:
    words = [TOOL, "-i", "soc_model|60", "model1.onnx"]
    Path("epbuild.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(PlanError, match="already exists"):
        imported(*words)
    assert Path("epbuild.yaml").read_text(encoding="utf-8") == "mine"
    assert imported(*words, force=True)[0]["epbuild"] == 1


def test_summary_of_an_import_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_imported(imported(TOOL, "-v", "-i", "soc_model|60", "model1.onnx")[1])
    shown = capsys.readouterr()
    assert shown.out == "Wrote epbuild.yaml: 1 model for 1 target. Next: epbuild run\n"
    assert shown.err.splitlines()[:2] == [
        "Not imported:",
        "  -v: the EP's log is always kept. Print it with `epbuild log STEP`.",
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["execution_provider", "provider_options", "device", "embed_context", "ep_config", "ep_device", "compiler"]
)
OLIVE = st.sampled_from(
    [
        *("weight_sharing", "provider_options", "session_options", "config", "embed_context"),
        *("num_splits", "split_assignments", "context_length", "batch_size"),
    ]
)


@given(st.dictionaries(KEYS, VALUES), st.dictionaries(OLIVE, VALUES), VALUES, st.booleans())
def test_malformed_configuration_raises_no_internal_error(
    compile_section: dict[str, Any], settings: dict[str, Any], other: object, is_olive: bool
) -> None:
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        before = Path.cwd()
        os.chdir(name)
        try:
            write_model(Path("model1.onnx"))
            kinds = ("EPContextBinaryGenerator", "CaptureSplitInfo", "SplitModel", "StaticLLM")
            passes = {kind: {**settings, "type": kind} for kind in kinds}
            olive = {"passes": passes, "input_model": other, "systems": other, "target": "t"}
            document = olive if is_olive else {"compile": compile_section, "export": other, "quant": other}
            Path("config.json").write_text(json.dumps(document), encoding="utf-8")
            try:
                imported("config.json", models=("model1.onnx",), targets={"a": "SM8750"})
            except EpbuildError:
                assert not Path("epbuild.yaml").exists()
        finally:
            os.chdir(before)


def test_next_command_quotes_a_path_with_spaces(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, done = imported(TOOL, "-i", "soc_model|60", "./model1.onnx", output=Path("my recipe.yaml"))
    print_imported(done)
    assert capsys.readouterr().out.endswith('Next: epbuild run "my recipe.yaml"\n')
