"""Documents of a model package.

tests/e2e/test_model_package.py shows that ONNX Runtime opens it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.archive.artifact import FileEntry, Role
from epbuild.core.digest import Blob
from epbuild.output.assets import move_weights, share_files
from epbuild.output.files import OutputFile
from epbuild.output.inference import select_inference_options
from epbuild.output.package_manifest import (
    DATA_FOLDER,
    MODEL_PATH,
    PackageVariant,
    build_package_manifest,
    check_package,
    make_asset_uri,
    resolve,
)

FOLDER = "decoder/snapdragon-SM8750"
CPU = "CPUExecutionProvider"
QNN = "QNNExecutionProvider"


def content(path: str, text: str = "", role: Role = "model") -> OutputFile:
    data = (text or path).encode()
    return OutputFile(path, role, Blob(hashlib.sha256(data).hexdigest(), len(data)))


def entries(*files: OutputFile) -> list[FileEntry]:
    return [file.entry for file in files]


def compiled(component: str, folder: str = FOLDER) -> PackageVariant:
    return PackageVariant(
        component,
        folder.rsplit("/", 1)[-1],
        folder,
        f"{component}_ctx.onnx",
        QNN,
        device="npu",
        compatibility="v2:6:2.51.0",
        session_options={"ep.share_ep_contexts": "1"},
        provider_options={"soc_model": "SM8750", "backend_type": "htp"},
        refers=(f"{folder}/prefill_qnn.bin",),
    )


def base(component: str, folder: str, *, data: tuple[str, ...] = ("weights.bin",), movable: bool = True) -> PackageVariant:
    refers = tuple(f"{folder}/{name}" for name in data)
    return PackageVariant(component, "base", folder, f"{component}.onnx", CPU, device="cpu", refers=refers, movable=movable)


NAMES = ("prefill_ctx.onnx", "decode_ctx.onnx", "prefill_qnn.bin", "manifest.json")
FILES = entries(*(content(f"{FOLDER}/{name}") for name in NAMES))


def written(*variants: PackageVariant, files: list[FileEntry] | None = None, **more: Any) -> dict[str, Any]:
    whole = FILES if files is None else files
    data = build_package_manifest(name="tiny", description="", variants=variants, recipe="tiny", files=whole, **more).data
    assert data.endswith(b"}\n")
    document: dict[str, Any] = json.loads(data)
    return document


def test_models_with_a_shared_binary_are_components_in_one_folder() -> None:
    document = written(compiled("prefill"), compiled("decode"))
    bodies = {name: component["variants"]["snapdragon-SM8750"] for name, component in document["components"].items()}
    assert {name: body["executor_info"]["ort"]["model_file"] for name, body in bodies.items()} == {
        "prefill": "prefill_ctx.onnx",
        "decode": "decode_ctx.onnx",
    }
    assert bodies["prefill"] == {
        "variant_directory": FOLDER,
        "ep": QNN,
        "device": "npu",
        "compatibility_string": "v2:6:2.51.0",
        "executor_info": {
            "ort": {
                "model_file": "prefill_ctx.onnx",
                "session_options": {"ep.share_ep_contexts": "1"},
                "provider_options": {"backend_type": "htp", "soc_model": "SM8750"},
            }
        },
    }


def test_variants_keep_the_preference_order_of_onnx_runtime() -> None:
    names = ["snapdragon-SM8750", "a-later-one", "base"]
    document = written(*(replace(compiled("prefill"), name=name) for name in names))
    assert list(document["components"]["prefill"]["variants"]) == names


def test_variant_for_the_cpu_ep_names_no_device() -> None:
    document = written(base("prefill", "decoder/base"), files=[])
    assert document["components"]["prefill"]["variants"]["base"] == {
        "variant_directory": "decoder/base",
        "ep": CPU,
        "executor_info": {"ort": {"model_file": "prefill.onnx"}},
    }


def test_manifest_has_only_onnx_runtime_keys_and_lists_every_file() -> None:
    document = written(compiled("prefill"), files=FILES[::-1], provenance="provenance.intoto.json")
    assert set(document) == {"schema_version", "package_name", "layout", "components", "additional_metadata"}
    assert (document["schema_version"], document["layout"]) == ("1.0", "portable")
    own = document["additional_metadata"]["epbuild"]
    assert (own["format"], own["recipe"], own["provenance"]) == (1, "tiny", "provenance.intoto.json")
    assert [file["path"] for file in own["files"]] == sorted(file.path for file in FILES)
    first = FILES[1]
    assert own["files"][0] == {"path": first.path, "role": "model", "size": first.size, "sha256": first.digest}


def test_rebuilt_package_has_the_same_manifest() -> None:
    def reordered(options: dict[str, str]) -> dict[str, str]:
        return dict(reversed(options.items()))

    one = compiled("prefill")
    other = replace(one, provider_options=reordered(dict(one.provider_options)))
    arguments: dict[str, Any] = {"name": "tiny", "description": "ü", "recipe": "tiny"}
    first = build_package_manifest(variants=[one], files=FILES, **arguments).data
    assert first == build_package_manifest(variants=[other], files=FILES[::-1], **arguments).data
    assert "ü".encode() in first


def test_session_options_exclude_options_that_break_the_package() -> None:
    options = {"session.disable_cpu_ep_fallback": "1", "session.collect_node_memory_stats_to_file": "stats.csv"}
    files = {"session.node_partition_config_file", "op_packages"}
    found = select_inference_options(
        {**options, "session.node_partition_config_file": "in/cuts"},
        {"soc_model": "69", "op_packages": "Op:options/libOp.so:Provider", "profiling_level": "basic"},
        share=True,
        files=files,
        only_compiling={"profiling_level", "profiling_file_path"},
    )
    assert found.session_options == {"session.disable_cpu_ep_fallback": "1", "ep.share_ep_contexts": "1"}
    assert found.provider_options == {"soc_model": "69"}
    assert found.left_out == {
        "session.collect_node_memory_stats_to_file": "ONNX Runtime rejects packages with options that write files",
        "op_packages": "its value is a file on the machine that compiled the model",
        "profiling_level": "it only affects compiling",
        "session.node_partition_config_file": "its value is a file on the machine that compiled the model",
    }
    assert select_inference_options({}, {}, share=False).session_options == {}


def test_complete_package_passes_the_check() -> None:
    assert check_package(FILES, [compiled("prefill"), compiled("decode")]) == []


PREFILL = compiled("prefill")
ABSENT = "which is not in the package"


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        (replace(PREFILL, model_file="pre_fill.onnx"), f"needs '{FOLDER}/pre_fill.onnx', {ABSENT}"),
        (replace(PREFILL, refers=(f"{FOLDER}/weights.bin",)), f"needs '{FOLDER}/weights.bin', {ABSENT}"),
        (replace(PREFILL, session_options={DATA_FOLDER: "there"}), f"needs '{FOLDER}/there/prefill_qnn.bin', {ABSENT}"),
        (replace(PREFILL, folder="decoder/other"), "has the folder 'decoder/other', which is empty"),
        (replace(PREFILL, model_file=None), f"needs '{FOLDER}/genai_config.json', {ABSENT}"),
        (replace(PREFILL, model_file="../x.onnx"), "refers to '../x.onnx', which is not a portable path inside the package"),
        (
            replace(PREFILL, session_options={"session.enable_profiling": "x"}),
            "has the session option session.enable_profiling; ONNX Runtime rejects packages with this option",
        ),
    ],
    ids=["model", "reference", "data folder", "folder", "genai", "path", "option"],
)
def test_package_mistake_is_reported_before_onnx_runtime_fails(variant: PackageVariant, told: str) -> None:
    sentence = f"the variant 'snapdragon-SM8750' of the component 'prefill' {told}"
    assert sentence in check_package(FILES, [compiled("decode"), variant])


def test_variants_with_equal_names_are_reported() -> None:
    sentence = "two variants of the component 'prefill' have the name 'snapdragon-SM8750'"
    assert check_package(FILES, [PREFILL, PREFILL]) == [sentence]


def test_genai_package_with_a_second_component_is_reported() -> None:
    whole = [*FILES, *entries(content(f"{FOLDER}/genai_config.json", role="genai-config"))]
    alone = replace(compiled("decoder"), model_file=None, refers=())
    assert check_package(whole, [alone]) == []
    sentence = "onnxruntime-genai opens only packages with one component; this package has decoder, prefill"
    assert check_package(whole, [alone, compiled("prefill")]) == [sentence]


def test_asset_is_named_after_its_file_names_and_contents() -> None:
    # As onnxruntime's model_package/README.md says: the digest of `<digest>  <path>` lines, sorted by path.
    first, second = hashlib.sha256(b"1").hexdigest(), hashlib.sha256(b"2").hexdigest()
    lines = f"{second}  a/b\n{first}  c\n".encode()
    uri = f"sha256:{hashlib.sha256(lines).hexdigest()}"
    assert make_asset_uri({"c": first, "a/b": second}) == uri
    assert make_asset_uri({"c": first, "a/c": second}) != uri
    assert resolve("decoder/base", f"{uri}/x.onnx") == f"shared_assets/{uri.replace(':', '-')}/x.onnx"
    assert resolve("decoder/base", "x.onnx") == "decoder/base/x.onnx"


def test_weights_of_two_groups_are_stored_once() -> None:
    contents = [
        content("left/base/prefill.onnx"),
        content("left/base/decode.onnx"),
        content("left/base/weights.bin", "weights", "base-data"),
        content("right/base/classifier.onnx"),
        content("right/base/weights.bin", "weights", "base-data"),
    ]
    variants = [base("prefill", "left/base"), base("decode", "left/base"), base("classifier", "right/base")]
    files, said = share_files(contents, variants)
    uri = make_asset_uri({"weights.bin": contents[2].content.identity})
    place = f"shared_assets/{uri.replace(':', '-')}/weights.bin"
    assert [file.path for file in files] == [
        "left/base/decode.onnx",
        "left/base/prefill.onnx",
        "right/base/classifier.onnx",
        place,
    ]
    assert (files[-1].role, files[-1].content.identity) == ("base-data", contents[2].content.identity)
    assert [(variant.folder, variant.model_file, variant.refers) for variant in said] == [
        ("left/base", "prefill.onnx", (place,)),
        ("left/base", "decode.onnx", (place,)),
        ("right/base", "classifier.onnx", (place,)),
    ]
    assert all(variant.session_options == {DATA_FOLDER: uri} for variant in said)
    assert check_package(entries(*files), said) == []


def test_model_of_two_groups_is_stored_once_with_variant_folders() -> None:
    contents = [content(f"{group}/base/{name}", name) for group in ("left", "right") for name in ("m.onnx", "w/weights.bin")]
    variants = [replace(base("m", f"{group}/base", data=("w/weights.bin",)), component=group) for group in ("left", "right")]
    files, said = share_files(contents, variants)
    model, weights = (
        make_asset_uri({"m.onnx": contents[0].content.identity}),
        make_asset_uri({"w/weights.bin": contents[1].content.identity}),
    )
    assert {file.path for file in files} == {resolve("", f"{model}/m.onnx"), resolve("", f"{weights}/w/weights.bin")}
    assert {variant.model_file for variant in said} == {f"{model}/m.onnx"}
    assert {variant.folder for variant in said} == {resolve("", model)}
    assert check_package(entries(*files), said) == []


def test_files_used_outside_the_package_keep_their_place() -> None:
    contents = [content(f"{group}/base/{name}", name) for group in ("left", "right") for name in ("m.onnx", "weights.bin")]
    variants = [replace(base("m", f"{group}/base", movable=group == "left"), component=group) for group in ("left", "right")]
    assert share_files(contents, variants) == (tuple(contents), tuple(variants))


def test_merely_similar_files_are_not_shared() -> None:
    contents = [
        content("left/base/m.onnx", "model"),
        content("left/base/weights.bin", "weights"),
        content("right/base/m.onnx", "model"),
        content("right/base/weights.bin", "other weights"),
        content("third/base/data.bin", "weights"),
        content("third/base/n.onnx", "another"),
    ]
    variants = [
        replace(base("m", "left/base"), component="left"),
        replace(base("m", "right/base"), component="right"),
        base("n", "third/base", data=("data.bin",)),
    ]
    # The models are equal, but each has its own weights beside it. Weights under another name are another file.
    assert share_files(contents, variants) == (tuple(contents), tuple(variants))


def test_shared_file_needed_beside_a_model_is_also_kept_there() -> None:
    contents = [
        content("left/base/a.onnx", "a"),
        content("left/base/b.onnx", "b"),
        content("left/base/more.bin", "more"),
        content("left/base/weights.bin", "weights"),
        content("right/base/c.onnx", "c"),
        content("right/base/weights.bin", "weights"),
    ]
    needy = base("b", "left/base", data=("weights.bin", "more.bin"))
    files, said = share_files(contents, [base("a", "left/base"), needy, base("c", "right/base")])
    paths = {file.path for file in files}
    assert "left/base/weights.bin" in paths
    assert "right/base/weights.bin" not in paths
    assert said[1] == needy
    assert check_package(entries(*files), said) == []


def weightless(folder: str, *names: str) -> PackageVariant:
    weights = tuple(f"{folder}/{name}" for name in names)
    variant = compiled("m", folder)
    return replace(variant, session_options={}, refers=(f"{folder}/m.bin", *weights), weights=weights)


def test_weights_of_weightless_contexts_are_stored_once() -> None:
    contents = [
        *(content(f"m/{target}/w.data", "weights", "external-data") for target in ("a", "b")),
        *(content(f"m/{target}/{target}.rest", target, "external-data") for target in ("a", "b")),
        content("m/base/m.onnx"),
        content("m/base/w.data", "weights", "base-data"),
    ]
    variants = [base("m", "m/base", data=("w.data",)), *(weightless(f"m/{name}", "w.data", f"{name}.rest") for name in "ab")]
    files, after = share_files(contents, variants)
    uri = make_asset_uri(
        {name: content("", text).content.identity for name, text in (("w.data", "weights"), ("a.rest", "a"), ("b.rest", "b"))}
    )
    places = [f"{resolve('', uri)}/{name}" for name in ("a.rest", "b.rest", "w.data")]
    assert [(file.path, file.role) for file in files] == [
        ("m/base/m.onnx", "model"),
        *((place, "external-data") for place in places),
    ]
    # Context binaries stay beside their models, where EPs find them by the path of the model.
    assert [variant.refers for variant in after] == [
        (places[2],),
        ("m/a/m.bin", places[2], places[0]),
        ("m/b/m.bin", places[2], places[1]),
    ]
    assert [variant.session_options for variant in after] == [
        {DATA_FOLDER: uri},
        *[{DATA_FOLDER: uri, MODEL_PATH: "m_ctx.onnx"}] * 2,
    ]
    models = [content(f"m/{target}/{name}") for target in ("a", "b") for name in ("m_ctx.onnx", "m.bin")]
    assert check_package(entries(*files, *models), after) == []
    assert move_weights(variants[1], dict(zip(variants[1].refers, after[1].refers, strict=True))) == after[1]


def test_weightless_contexts_with_different_files_of_one_name_share_none() -> None:
    contents = [
        *(content(f"m/{target}/w.data", "weights", "external-data") for target in ("a", "b")),
        *(content(f"m/{target}/{name}", target, "external-data") for target, name in (("a", "rest"), ("b", "REST"))),
    ]
    variants = [weightless("m/a", "w.data", "rest"), weightless("m/b", "w.data", "REST")]
    files, after = share_files(contents, variants)
    assert ({file.path for file in files}, after) == ({file.path for file in contents}, tuple(variants))


def test_asset_with_a_wrong_digest_name_is_reported() -> None:
    wrong = content(f"shared_assets/sha256-{'0' * 64}/weights.bin")
    sentence = f"the name of the shared asset 'sha256-{'0' * 64}' does not match its content"
    assert check_package([*FILES, *entries(wrong)], [compiled("prefill")]) == [sentence]
