"""Refusals before anything runs: each has its code, its position in the recipe, and a hint."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.catalog.catalog import get_short_name, known_eps
from tests.support.plan_recipes import RECIPE, codes, document_of, edited, plan_of, problems_of, write_model, write_models
from tests.support.recipe_texts import MARK, codes_and_places, places

PREFILL = "prefill: models/prefill.onnx"
OUTPUT = "path: dist/${group}/${target}\n"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    return tmp_path


def check(folder: Path, text: str, *expected: tuple[str, str]) -> None:
    """Check that `text` is refused with these codes and parts of sentences, at its marks in their order."""
    text, marks = places(text)
    found = problems_of(folder, text)
    assert codes_and_places(found) == [(code, *mark) for (code, _), mark in zip(expected, marks, strict=True)]
    for problem, (_, words) in zip(found, expected, strict=True):
        assert words in problem.text


def link(path: Path, target: Path) -> None:
    """Create a symbolic link, or skip the test if this system does not permit it."""
    try:
        path.symlink_to(target)
    except OSError:
        pytest.skip("this user may not make symbolic links, as is usual on Windows")


# -- Models ------------------------------------------------------------------------------------------------------------


def test_a_missing_model_is_reported_at_its_path_with_the_base_of_paths(workshop: Path) -> None:
    text = edited(RECIPE, (PREFILL, f"prefill: {MARK}models/prefil.onnx"))
    check(workshop, text, ("EPB201", "the model 'prefill' does not exist: models/prefil.onnx. Paths are relative to the recipe."))


def test_each_of_many_models_with_mistakes_is_reported(workshop: Path) -> None:
    names = [f"m{number}" for number in range(30)]
    models = "".join(f"  {name}: {{path: models/prefill.onnx, input_shapes: {{nothing: [1]}}}}\n" for name in names)
    text = edited(RECIPE, ("targets:\n  phone", f"{models}targets:\n  phone"), ("[classifier, prefill]", f"[{', '.join(names)}]"))
    assert codes(problems_of(workshop, text)) == ["EPB260"] * len(names)


@pytest.mark.parametrize("path", ["models", "x" * 300 + ".onnx", "models/prefill.onnx/inside.onnx"])
def test_an_impossible_model_path_is_reported_as_a_missing_model(workshop: Path, path: str) -> None:
    assert codes(problems_of(workshop, edited(RECIPE, ("models/prefill.onnx", path)))) == ["EPB201"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>404</html>", "is not a complete ONNX file"),
        (b"PK\x03\x04" + bytes(range(256)), "is not a complete ONNX file"),
    ],
    ids=["empty", "git lfs pointer", "web page", "archive"],
)
def test_a_file_that_is_not_a_model_is_refused_with_its_kind(workshop: Path, content: bytes, words: str) -> None:
    (workshop / "models" / "prefill.onnx").write_bytes(content)
    check(workshop, edited(RECIPE, (PREFILL, f"prefill: {MARK}models/prefill.onnx")), ("EPB202", words))


def test_a_model_whose_copy_was_cut_short_is_refused(workshop: Path) -> None:
    model = workshop / "models" / "prefill.onnx"
    model.write_bytes(model.read_bytes()[:-7])
    text = edited(RECIPE, (PREFILL, f"prefill: {MARK}models/prefill.onnx"))
    check(workshop, text, ("EPB202", "the model 'prefill' is not a complete ONNX file"))


def test_a_model_with_converted_line_endings_gets_a_gitattributes_hint(workshop: Path) -> None:
    model = workshop / "models" / "prefill.onnx"
    model.write_bytes(model.read_bytes().replace(b"\n", b"\r\n"))
    text = edited(RECIPE, (PREFILL, f"prefill: {MARK}models/prefill.onnx"))
    check(workshop, text, ("EPB202", "add `*.onnx binary` to .gitattributes"))


def test_a_compiled_model_is_refused_as_a_source(workshop: Path) -> None:
    write_model(workshop / "models" / "classifier.onnx", compiled=True)
    text = edited(RECIPE, ("classifier: models/classifier.onnx", f"classifier: {MARK}models/classifier.onnx"))
    check(workshop, text, ("EPB205", "the model 'classifier' is already compiled"))


def save_with_overridable_weights(path: Path, ir_version: int) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "w", "v", "y")]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [4], [1.0] * 4) for name in ("w", "v")]
    nodes = [helper.make_node("Sum", ["x", "w", "v"], ["y"])]
    graph = helper.make_graph(nodes, "g", values[:3], values[3:], weights)
    onnx.save(helper.make_model(graph, ir_version=ir_version), path)


def test_overridable_weights_are_refused_if_the_ep_cannot_open_the_result(workshop: Path) -> None:
    save_with_overridable_weights(workshop / "models" / "decode.onnx", 8)
    words = "'decode' has initializers that are also inputs ('w' and 1 more)"
    check(workshop, edited(RECIPE, ("decode: models/decode.onnx", f"decode: {MARK}models/decode.onnx")), ("EPB259", words))
    save_with_overridable_weights(workshop / "models" / "decode.onnx", 3)  # it had no other way to store weights
    plan_of(workshop, RECIPE)
    save_with_overridable_weights(workshop / "models" / "classifier.onnx", 8)  # for an EP without a known limitation of that kind
    plan_of(workshop, RECIPE)


def test_missing_external_data_is_reported_with_its_name_and_location(workshop: Path) -> None:
    (workshop / "models" / "decode.bin").unlink()
    text = edited(RECIPE, (DECODE, f"decode: {MARK}models/decode.onnx"))
    check(workshop, text, ("EPB203", "the model 'decode' refers to the external data file decode.bin, which does not exist"))


def test_each_missing_file_of_a_model_is_reported(workshop: Path) -> None:
    write_model(workshop / "models" / "decode.onnx", external={name: (f"{name}.bin", [4]) for name in ("shared", "a", "b")})
    found = problems_of(workshop)
    assert codes(found) == ["EPB203"] * 3
    assert [word for problem in found for word in problem.message.split() if word.endswith(".bin,")] == [
        "shared.bin,",
        "a.bin,",
        "b.bin,",
    ]


@pytest.mark.parametrize("location", ["a\0b", "x" * 5000, "models", "sub/../nothing.bin"])
def test_an_impossible_location_is_reported_as_missing_data(workshop: Path, location: str) -> None:
    write_model(workshop / "models" / "decode.onnx", external={"shared": (location, [4])})
    assert codes(problems_of(workshop)) == ["EPB203"]


@pytest.mark.parametrize(
    "location",
    ["../outside.bin", "sub/../../outside.bin", "..\\outside.bin", "/outside.bin", "C:\\outside.bin", "C:/outside.bin"],
)
def test_external_data_outside_the_models_folder_is_refused_as_onnx_runtime_does(workshop: Path, location: str) -> None:
    (workshop / "outside.bin").write_bytes(bytes(16))
    (workshop / "models" / "sub").mkdir()
    write_model(workshop / "models" / "decode.onnx", external={"shared": (location, [4])})
    text = edited(RECIPE, (DECODE, f"decode: {MARK}models/decode.onnx"))
    check(workshop, text, ("EPB204", f"has external data outside its own folder: {location}"))


def test_an_absolute_location_in_the_models_own_folder_is_refused(workshop: Path) -> None:
    location = str(workshop / "models" / "decode.bin")
    write_model(workshop / "models" / "decode.onnx", external={"shared": (location, [4])})
    assert codes(problems_of(workshop)) == ["EPB204"]


def test_external_data_that_a_link_leads_out_of_the_models_folder_is_refused(workshop: Path) -> None:
    (workshop / "models" / "decode.bin").unlink()
    (workshop / "outside.bin").write_bytes(bytes(16))
    link(workshop / "models" / "decode.bin", workshop / "outside.bin")
    assert codes(problems_of(workshop)) == ["EPB204"]


def test_external_data_that_would_be_staged_over_the_graph_is_refused(workshop: Path) -> None:
    (workshop / "models" / "graph.onnx").write_bytes((workshop / "models" / "decode.onnx").read_bytes())
    (workshop / "models" / "decode.onnx").write_bytes(bytes(16))
    write_model(workshop / "models" / "graph.onnx", external={"shared": ("decode.onnx", [4])})
    text = edited(RECIPE, (DECODE, f"decode: {MARK}models/graph.onnx"))
    check(workshop, text, ("EPB204", "but its external data file"))


def test_a_folder_of_links_into_a_content_store_is_a_model_as_in_hub_caches(workshop: Path) -> None:
    blobs = workshop / "blobs"
    blobs.mkdir()
    for name in ("decode.onnx", "decode.bin"):
        (workshop / "models" / name).rename(blobs / name)
        link(workshop / "models" / name, blobs / name)
    assert problems_of(workshop) == ()


def test_external_data_in_a_folder_below_the_model_is_found(workshop: Path) -> None:
    write_model(workshop / "models" / "decode.onnx", external={"shared": ("./data/x/../decode.bin", [4])})
    (workshop / "models" / "data" / "x").mkdir(parents=True)
    (workshop / "models" / "data" / "decode.bin").write_bytes(bytes(16))
    assert problems_of(workshop) == ()


DECODE = "decode: models/decode.onnx"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    share_weights: true\n", f"    share_weights: true\n    compile: {{node_name_prefix: {MARK}'${{model}}_'}}\n"),
        ("models: [prefill, decode]", f"models: [prefill, {{model: decode, compile: {{node_name_prefix: {MARK}d_}}}}]"),
    ],
)
def test_node_prefixes_are_refused_for_shared_contexts_of_such_eps(workshop: Path, old: str, new: str) -> None:
    words = "the nodes of 'decoder' share a context for 'phone' and cannot have a prefix: QNN finds each graph"
    check(workshop, edited(RECIPE, (old, new)), ("EPB250", words))


def test_nodes_of_models_that_share_no_context_may_have_a_prefix(workshop: Path) -> None:
    assert problems_of(workshop, edited(RECIPE, ("  vision:\n", "  vision:\n    compile: {node_name_prefix: p_}\n"))) == ()
    alone = edited(
        RECIPE,
        ("[prefill, decode]", "[prefill]"),
        ("    share_weights: true\n", "    share_weights: true\n    compile: {node_name_prefix: p_}\n"),
    )
    assert problems_of(workshop, alone) == ()


def elsewhere(folder: str, *, mark: str = MARK) -> str:
    """Return the recipe with the external data of `decode` in another folder."""
    return edited(RECIPE, (DECODE, f"decode: {{path: models/decode.onnx, external_data: {mark}{folder}}}"))


def test_external_data_in_another_folder_is_found_under_its_location(workshop: Path) -> None:
    (workshop / "data" / "sub").mkdir(parents=True)
    beside = plan_of(workshop).session_groups["share:decoder/phone"]
    (workshop / "models" / "decode.bin").rename(workshop / "data" / "decode.bin")
    there = plan_of(workshop, elsewhere("data", mark="")).session_groups["share:decoder/phone"]
    assert there.members[1].external == {"decode.bin": workshop / "data" / "decode.bin"}
    assert workshop / "data" / "decode.bin" in there.files
    (workshop / "models" / "decode.bin").write_bytes((workshop / "data" / "decode.bin").read_bytes())
    assert document_of(there) == document_of(beside)  # it is staged under the same names, so it is the same compile


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("nosuch", "does not exist: nosuch"),
        ("models/decode.onnx", "not a folder: models/decode.onnx"),
        ("x" * 300, "does not exist" if os.name == "nt" else "is not a valid path"),
    ],
)
def test_a_missing_folder_of_external_data_is_refused(workshop: Path, folder: str, words: str) -> None:
    check(workshop, elsewhere(folder), ("EPB249", words))


def test_data_beside_the_model_is_ignored_if_another_folder_is_named(workshop: Path) -> None:
    (workshop / "data").mkdir()
    check(workshop, elsewhere("data"), ("EPB203", "refers to the external data file decode.bin, which does not exist in data"))


@pytest.mark.parametrize("location", ["../outside.bin", "sub/../../outside.bin", "/outside.bin", "C:\\outside.bin"])
def test_no_location_escapes_the_folder_of_external_data(workshop: Path, location: str) -> None:
    (workshop / "data").mkdir()
    (workshop / "outside.bin").write_bytes(bytes(16))
    write_model(workshop / "models" / "decode.onnx", external={"shared": (location, [4])})
    check(workshop, elsewhere("data"), ("EPB204", f"has external data outside the folder data: {location}"))


def test_no_link_escapes_the_folder_of_external_data(workshop: Path) -> None:
    (workshop / "data").mkdir()
    link(workshop / "data" / "decode.bin", workshop / "models" / "decode.bin")
    check(workshop, elsewhere("data"), ("EPB204", "has external data outside the folder data: decode.bin"))


def test_the_folder_of_the_external_data_may_be_reached_through_a_link(workshop: Path) -> None:
    link(workshop / "data", workshop / "models")
    assert problems_of(workshop, elsewhere("data", mark="")) == ()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("package:nosuch_package_xyz/a.onnx", "'nosuch_package_xyz', which is not installed in epbuild's environment"),
        ("package:onnx.nosuch.deeper/a.onnx", "'onnx.nosuch.deeper', which is not installed"),
        ("package:os/a.onnx", "'os', which is not installed"),
        ("package:.onnx/a.onnx", "'.onnx', which is not installed"),
        ("package:/a.onnx", "'', which is not installed"),
        ("package:onnx", "does not name a file inside the package 'onnx'"),
        ("package:onnx/", "does not name a file inside the package 'onnx'"),
        ("package:onnx/../secret.onnx", "does not name a file inside the package 'onnx'"),
        ("package:onnx/backend/../../secret.onnx", "does not name a file inside the package 'onnx'"),
        ("package:onnx//etc/secret.onnx", "does not name a file inside the package 'onnx'"),
        ("package:onnx/C:/secret.onnx", "does not name a file inside the package 'onnx'"),
    ],
)
def test_a_package_model_must_be_a_file_inside_an_installed_package(workshop: Path, path: str, words: str) -> None:
    text = edited(RECIPE, (PREFILL, f"prefill: {MARK}{path}"))
    check(workshop, text, ("EPB206", words))


@pytest.mark.parametrize("path", ["C://nosuch/a.onnx", "./models://a.onnx"])
def test_a_path_that_looks_like_an_address_is_a_missing_model(workshop: Path, path: str) -> None:
    check(workshop, edited(RECIPE, (PREFILL, f"prefill: {MARK}{path}")), ("EPB201", f"does not exist: {path}"))


def test_a_missing_file_of_a_package_is_a_missing_model(workshop: Path) -> None:
    text = edited(RECIPE, (PREFILL, f"prefill: {MARK}package:onnx/nosuch.onnx"))
    check(workshop, text, ("EPB201", "the model 'prefill' does not exist: package:onnx/nosuch.onnx"))


# -- Targets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        (
            "ep: QNNExecutionProvider",
            f"ep: {MARK}QNNExecutionProvidr",
            "EPB210",
            "unknown EP 'QNNExecutionProvidr'. Did you mean 'QNNExecutionProvider'?",
        ),
        (
            "ep: QNNExecutionProvider",
            f"ep: {MARK}Zzz",
            "EPB210",
            f"unknown EP 'Zzz'. Known EPs: {', '.join(map(get_short_name, known_eps()))}. To add an EP, list a catalog",
        ),
        (
            "backend_type: htp",
            f"{MARK}backend_typ: htp",
            "EPB211",
            "QNNExecutionProvider has no option 'backend_typ'. Did you mean 'backend_type'?",
        ),
        (
            "backend_type: htp",
            f"{MARK}zzz: htp",
            "EPB211",
            "QNNExecutionProvider has no option 'zzz'. Set allow_unknown_options on the target",
        ),
        (
            "    provider_options:\n      device_type",
            f"    session_options: {{{MARK}session.disable_quant_qd: 1}}\n    provider_options:\n      device_type",
            "EPB211",
            "has no session key 'session.disable_quant_qd'. Did you mean 'session.disable_quant_qdq'?",
        ),
        (
            "backend_type: htp",
            f"backend_type: {MARK}htpp",
            "EPB212",
            "option 'backend_type': 'htpp' is not one of cpu, gpu, htp, saver, ir",
        ),
        (
            "device_type: CPU",
            f"device_type: CPU\n      enable_qdq_optimizer: {MARK}maybe",
            "EPB212",
            "option 'enable_qdq_optimizer': 'maybe' is not a boolean",
        ),
        (
            "    provider_options:\n      device_type",
            f"    session_options: {{session.qdq_matmulnbits_accuracy_level: {MARK}5}}\n    provider_options:\n      device_type",
            "EPB212",
            "session key 'session.qdq_matmulnbits_accuracy_level': 5 is more than 4",
        ),
        (
            "    provider_options:\n      device_type",
            f"    session_options: {{{MARK}ep.context_embed_mode: 1}}\n    provider_options:\n      device_type",
            "EPB213",
            "'ep.context_embed_mode' is set by epbuild itself: set the group's compile.embed",
        ),
    ],
    ids=lambda value: value if value.startswith("EPB") else "",
)
def test_settings_that_an_ep_would_ignore_silently_are_refused(workshop: Path, old: str, new: str, code: str, words: str) -> None:
    check(workshop, edited(RECIPE, (old, new)), (code, words))


def test_a_key_that_epbuild_sets_is_refused_despite_allow_unknown_options(workshop: Path) -> None:
    old = "    provider_options:\n      device_type"
    new = f"    allow_unknown_options: true\n    session_options: {{{MARK}ep.share_ep_contexts: 1}}\n{old}"
    check(workshop, edited(RECIPE, (old, new)), ("EPB213", "set the group's share_weights"))


# -- Groups ------------------------------------------------------------------------------------------------------------


def test_a_sharing_group_cannot_embed(workshop: Path) -> None:
    text = edited(RECIPE, ("    share_weights: true\n", f"    share_weights: true\n    compile: {{embed: {MARK}true}}\n"))
    check(workshop, text, ("EPB230", "the group 'decoder' shares weights and embeds"))


def test_sharing_is_refused_if_openvino_would_ignore_the_option(workshop: Path) -> None:
    text = edited(RECIPE, ("    targets: [cpu]\n", f"    targets: [{MARK}cpu]\n    share_weights: true\n"))
    check(
        workshop, text, ("EPB231", "the group 'vision' cannot share weights for 'cpu': this OpenVINO EP accepts weight sharing")
    )


def test_sharing_is_refused_for_a_list_of_socs(workshop: Path) -> None:
    text = edited(RECIPE, ("soc_model: SM8750", 'soc_model: "SM8750,60"'), ("targets: [phone]", f"targets: [{MARK}phone]"))
    check(workshop, text, ("EPB231", "soc_model is 'SM8750,SC8380XP', and the EP cannot share weights"))


def test_a_list_of_socs_is_accepted_without_sharing(workshop: Path) -> None:
    text = edited(RECIPE, ("soc_model: SM8750", 'soc_model: "SM8750,60"'), ("    share_weights: true\n", ""))
    assert problems_of(workshop, text) == ()


def test_sharing_initializers_in_a_group_of_one_model_is_refused(workshop: Path) -> None:
    lines = f"    share_weights: true\n    share_initializers: {MARK}true\n"
    text = edited(RECIPE, ("[prefill, decode]", "[prefill]"), ("    share_weights: true\n", lines))
    check(workshop, text, ("EPB238", "the group 'decoder' has only one model, so it cannot share initializers"))


def test_a_model_cannot_be_in_a_group_twice(workshop: Path) -> None:
    text = edited(RECIPE, ("[prefill, decode]", f"[prefill, decode, {MARK}prefill]"))
    check(workshop, text, ("EPB232", "the group 'decoder' lists the model 'prefill' twice"))


# -- Outputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../dist/${group}",
        "dist/../../${group}",
        "dist/${group}/../../..",
        "..",
        "/dist/${group}",
        "//server/share/${group}",
        "C:/dist/${group}",
        "C:dist/${group}",
    ],
)
def test_no_output_path_escapes_the_recipes_folder(workshop: Path, path: str) -> None:
    text, (mark,) = places(edited(RECIPE, (OUTPUT, f"path: {MARK}{path}\n")))
    found = problems_of(workshop, text)
    assert set(codes_and_places(found)) == {("EPB221", *mark)}
    assert "is outside the recipe's folder" in found[0].message


@pytest.mark.parametrize("path", [".", "dist/..", "./"])
def test_the_recipes_folder_is_refused_as_an_output(workshop: Path, path: str) -> None:
    text, (mark,) = places(edited(RECIPE, (OUTPUT, f"path: {MARK}{path}\n")))
    (problem, *_) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB221", *mark)]
    assert "is the recipe's folder itself" in problem.message


@pytest.mark.parametrize("path", [".epbuild", ".epbuild/${group}", "x/../.EPBUILD/tmp"])
def test_an_output_in_epbuilds_state_folder_is_refused(workshop: Path, path: str) -> None:
    text, (mark,) = places(edited(RECIPE, (OUTPUT, f"path: {MARK}{path}\n")))
    found = problems_of(workshop, text)
    assert set(codes_and_places(found)) == {("EPB221", *mark)}
    assert "is in the folder of epbuild's workspace" in found[0].message


@pytest.mark.parametrize("word", ["model", "context_binary"])
@pytest.mark.parametrize("path", ["../${model}", "/${model}", "C:${model}", "a/.."])
def test_no_file_of_an_output_escapes_its_folder(workshop: Path, word: str, path: str) -> None:
    text, (mark,) = places(RECIPE + f"    {word}: {MARK}{path}\n")
    assert set(codes_and_places(problems_of(workshop, text))) == {("EPB221", *mark)}


@pytest.mark.parametrize("path", ["dist/./${group}//${target}/", "x/../dist/${group}/${target}"])
def test_an_unusual_spelling_of_a_path_is_normalized(workshop: Path, path: str) -> None:
    plan = plan_of(workshop, edited(RECIPE, (OUTPUT, f"path: {path}\n")))
    assert plan.emissions["emit:vision/cpu/directory"].path == workshop / "dist" / "vision" / "cpu"


@pytest.mark.parametrize(("path", "name"), [("dist/same", "same"), ("dist/${ep.short}/..", "dist")])
def test_two_outputs_with_the_same_path_are_refused(workshop: Path, path: str, name: str) -> None:
    steps = "emit:decoder/phone/directory and emit:vision/cpu/directory"
    text = edited(RECIPE, (OUTPUT, f"path: {MARK}{path}\n"))
    check(workshop, text, ("EPB222", f"two outputs have the same path, {name}: {steps}"))


def test_an_output_at_the_path_of_an_archives_statement_is_refused(workshop: Path) -> None:
    archive = "layout: directory\n    groups: [decoder]\n    archive: zip\n    provenance: true\n    path: dist/a.zip\n"
    text = edited(RECIPE, ("layout: directory\n    path: dist/${group}/${target}\n", archive))
    text += f"  - layout: ort-model-package\n    groups: [decoder]\n    path: {MARK}dist/a.zip.intoto.json\n"
    check(
        workshop,
        text,
        ("EPB222", "two outputs have the same path, a.zip.intoto.json: emit:decoder/phone/zip and emit:ort-model-package"),
    )


@pytest.mark.parametrize("push", ["registry.example/models", "registry.example/models:latest", "Registry.example/models"])
def test_two_outputs_with_the_same_registry_tag_are_refused(workshop: Path, push: str) -> None:
    steps = "emit:decoder/phone/oci and emit:vision/cpu/oci"
    text = edited(RECIPE, (OUTPUT, f"path: {MARK}dist/${{group}}/${{target}}\n    archive: oci\n    registry: {push}\n"))
    check(workshop, text, ("EPB222", f"two outputs would be pushed to registry.example/models:latest: {steps}"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("dist/aux/${group}/${target}", "aux"),
        ("dist/${group}/${target}/NUL.onnx", "NUL.onnx"),
        ("'dist/${group}: ${target}'", "decoder: phone"),
        ("dist/${group}/${target}?", "phone?"),
        ("dist/${group}/${target}.", "phone."),
        ("'dist/${group} /${target}'", "decoder "),
        ("dist/com1/${group}/${target}", "com1"),
    ],
)
def test_a_path_that_is_invalid_on_windows_is_refused_everywhere(workshop: Path, path: str, name: str) -> None:
    text, (mark,) = places(edited(RECIPE, (OUTPUT, f"path: {MARK}{path}\n")))
    found = [problem for problem in problems_of(workshop, text) if f"'{name}' is not a valid name on Windows" in problem.message]
    assert codes_and_places(found) == [("EPB229", *mark)]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (f"path: {MARK}dist/{'x' * 256}/${{group}}/${{target}}\n", "is too long: 256 bytes. Shorten it to at most 255 bytes"),
        (f"path: {MARK}dist/{'ä' * 130}/${{group}}/${{target}}\n", "is too long: 260 bytes"),
        (f"path: dist/${{group}}/${{target}}\n    model: {MARK}{'x' * 251}.onnx\n", "is too long: 256 bytes"),
        (f"path: {MARK}dist/{'deep/' * 700}${{group}}/${{target}}\n", "or move the recipe to a folder with a shorter path"),
        (
            f"archive: zip\n    provenance: true\n    path: {MARK}dist/${{group}}-${{target}}-{'x' * 230}.zip\n",
            "at most 255 bytes",
        ),
    ],
    ids=["name", "bytes", "model", "path", "statement"],
)
def test_a_path_that_is_invalid_on_every_file_system_is_refused(workshop: Path, output: str, words: str) -> None:
    text, (mark,) = places(edited(RECIPE, (OUTPUT, output)))
    found = [problem for problem in problems_of(workshop, text) if problem.code == "EPB229"]
    assert {(*codes_and_places([problem])[0],) for problem in found} == {("EPB229", *mark)}
    assert all(words in problem.text for problem in found)


def test_a_file_of_initializers_with_too_long_a_name_is_refused(workshop: Path) -> None:
    initializers = f"    compile: {{initializers: {{store: external, file: '{'x' * 300}'}}}}\n"
    text = edited(
        RECIPE, ("    models: [prefill, decode]\n", f"    models: [prefill]\n{initializers}"), ("    share_weights: true\n", "")
    )
    assert codes(problems_of(workshop, text)) == ["EPB229"]


def test_a_file_name_of_the_maximum_length_is_accepted(workshop: Path) -> None:
    assert codes(problems_of(workshop, edited(RECIPE, (OUTPUT, f"path: dist/{'x' * 255}/${{group}}/${{target}}\n")))) == []


@pytest.mark.parametrize(
    "path", ["dist/auxiliary/${group}/${target}", "dist/.hidden/${group}/${target}.v1", "dist/com/${group} ${target}"]
)
def test_names_that_resemble_reserved_windows_names_are_accepted(workshop: Path, path: str) -> None:
    assert codes(problems_of(workshop, edited(RECIPE, (OUTPUT, f"path: {path}\n")))) == []


def test_paths_that_differ_only_in_letter_case_are_refused(workshop: Path) -> None:
    second = f"  - layout: directory\n    path: {MARK}DIST/${{group}}/${{target}}\n"
    text, (mark,) = places(RECIPE + second)
    assert codes_and_places(problems_of(workshop, text)) == [("EPB222", *mark)] * 2


@pytest.mark.parametrize("inner_first", [False, True])
def test_an_output_inside_another_is_refused(
    workshop: Path,
    inner_first: bool,
) -> None:
    outer, inner = "dist/${group}/${target}", "dist/${group}/${target}/deep/down"
    first, second = (inner, outer) if inner_first else (outer, inner)
    text = edited(RECIPE, (OUTPUT, f"path: {first}\n")) + f"  - layout: directory\n    path: {second}\n"
    found = problems_of(workshop, text)
    assert codes(found) == ["EPB222"] * 2
    assert all("is inside the output" in problem.message for problem in found)
    line = 1 + text.splitlines().index(f"    path: {inner}")
    assert {place[1] for place in codes_and_places(found)} == {line}, "the inner output is reported"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f"    model: {MARK}fixed.onnx\n", "the model 'prefill' and the model 'decode' would both be written to 'fixed.onnx'"),
        (
            f"    context_binary: {MARK}${{first_model}}_CTX.onnx\n",
            "the model 'prefill' and the context binary of 'prefill' by QNNExecutionProvider would both be written to 'prefill_CTX.onnx'",
        ),
        (
            f"    context_binary: {MARK}Manifest.JSON\n",
            "the manifest and the context binary of 'prefill' by QNNExecutionProvider",
        ),
        (f"    model: {MARK}manifest.json\n", "the manifest and the model 'prefill'"),
        (
            "    context_binary: ${first_model}_ctx.onnx/${first_model}.bin\n",
            (
                "'prefill_ctx.onnx' would be both the model 'prefill' and the folder of the context binary of 'prefill' "
                "by QNNExecutionProvider"
            ),
        ),
    ],
    ids=["two models", "letter case", "binary over manifest", "model over manifest", "a file below a file"],
)
def test_two_files_of_an_output_with_the_same_name_are_refused(workshop: Path, lines: str, words: str) -> None:
    text, marks = places(RECIPE + lines)
    found = [problem for problem in problems_of(workshop, text) if words in problem.message]
    assert codes(found) == ["EPB222"]
    if marks:
        assert codes_and_places(found) == [("EPB222", *marks[0])]


@pytest.mark.parametrize("name", ["manifest.json", "provenance.intoto.json", "bom.cdx.json", "shared_assets", "Shared_Assets"])
def test_a_group_cannot_have_the_name_of_a_packages_own_file_or_folder(workshop: Path, name: str) -> None:
    output = "path: dist/all.ortpackage\n    targets: [phone]\n"
    package = edited(RECIPE, ("layout: directory", f"{MARK}layout: ort-model-package"), (OUTPUT, output))
    assert not problems_of(workshop, package.replace(MARK, ""))
    check(workshop, edited(package, ("  decoder:", f"  {name}:")), ("EPB222", f"the folder of the group '{name}' would collide"))


def test_a_package_that_no_onnx_runtime_with_the_ep_opens_is_refused(workshop: Path) -> None:
    package = edited(RECIPE, ("layout: directory", f"{MARK}layout: ort-model-package"), (OUTPUT, "path: dist/all.ortpackage\n"))
    words = (
        "no ONNX Runtime opens the target 'cpu' in a model package: the last release of onnxruntime-openvino, 1.24.1, does not"
    )
    check(workshop, package, ("EPB228", words))


def test_every_model_of_an_unshared_group_needs_its_own_binary(workshop: Path) -> None:
    text, (mark,) = places(RECIPE + f"    context_binary: {MARK}fixed.bin\n")
    (problem,) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB222", *mark)]
    assert problem.message == (
        "the context binary of 'classifier' by OpenVINOExecutionProvider and the context binary of 'prefill' by "
        "OpenVINOExecutionProvider would both be written to 'fixed.bin'"
    )


@pytest.mark.parametrize(
    "lines",
    [
        f"    model: sub/${{model}}.onnx\n    context_binary: {MARK}bin/${{first_model}}.bin\n",
        f"    model: sub/${{model}}.onnx\n    context_binary: {MARK}subway/${{first_model}}.bin\n",
        f"    model: a/b/${{model}}.onnx\n    context_binary: {MARK}a/${{first_model}}.bin\n",
    ],
)
def test_a_binary_outside_its_models_folder_is_refused(workshop: Path, lines: str) -> None:
    text, (mark,) = places(RECIPE + lines)
    found = problems_of(workshop, text)
    assert set(codes_and_places(found)) == {("EPB223", *mark)}
    assert "is not below the folder of its model" in found[0].message


def test_one_binary_cannot_serve_models_in_different_folders(workshop: Path) -> None:
    text, (mark,) = places(RECIPE + f"    model: ${{model}}/model.onnx\n    context_binary: {MARK}${{model}}/context.bin\n")
    (problem,) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB223", *mark)]
    assert "the context binary 'prefill/context.bin' is not below the folder of its model 'decode/model.onnx'" in (
        problem.message
    )


@pytest.mark.parametrize(
    ("file", "code", "words"),
    [
        ("weights.bin", "EPB222", "would write their external initializers to the same file, 'weights.bin'"),
        ("${model}_ctx.onnx", "EPB222", "the model 'classifier' and the external initializers of 'classifier'"),
        ("../${model}.weights", "EPB221", "of the group 'vision' is a path: '../${model}.weights'"),
        ("sub/${model}.weights", "EPB221", "is a path:"),
        (r"..\${model}.weights", "EPB221", "is a path:"),
        ("/${model}.weights", "EPB221", "is a path:"),
        ("C:${model}.weights", "EPB221", "is a path:"),
    ],
)
def test_invalid_files_for_external_initializers_are_refused(workshop: Path, file: str, code: str, words: str) -> None:
    compile_ = f"    compile: {{initializers: {{store: external, file: '{file}'}}}}\n    expect: {{fallback_nodes: 0}}\n"
    text = edited(RECIPE, ("  vision:\n", f"  {MARK}vision:\n{compile_}"))
    text, (mark,) = places(text)
    found = problems_of(workshop, text)
    assert codes_and_places(found[:1]) == [(code, *mark)]
    assert words in found[0].message


def test_external_initializers_can_have_a_file_name_per_model(workshop: Path) -> None:
    compile_ = "    compile: {initializers: {store: external, file: '${model}.weights', threshold: 0}}\n"
    plan = plan_of(workshop, edited(RECIPE, ("  vision:\n", f"  vision:\n{compile_}")))
    group = plan.session_groups["compile:vision/cpu/classifier"]
    assert group.members[0].external_file == "classifier.weights"


# -- All problems at once ----------------------------------------------------------------------------------------------


def test_all_problems_are_reported_in_one_run_in_order_of_position(workshop: Path) -> None:
    (workshop / "models" / "decode.bin").unlink()
    text = edited(
        RECIPE,
        (PREFILL, f"prefill: {MARK}models/nosuch.onnx"),
        ("decode: models/decode.onnx", f"decode: {MARK}models/decode.onnx"),
        ("backend_type: htp", f"backend_type: {MARK}htpp"),
        ("soc_model: SM8750", f"{MARK}soc_modle: SM8750"),
        ("device_type: CPU", f"device_type: {MARK}TPU"),
        ("[prefill, decode]", f"[prefill, decode, {MARK}decode]"),
        ("    share_weights: true\n", f"    share_weights: true\n    compile: {{embed: {MARK}true}}\n"),
        ("    targets: [cpu]\n", f"    targets: [{MARK}cpu]\n    share_weights: true\n"),
    )
    text, marks = places(text)
    found = problems_of(workshop, text)
    expected = ["EPB201", "EPB203", "EPB212", "EPB211", "EPB212", "EPB232", "EPB230", "EPB231"]
    assert codes_and_places(found) == [(code, *mark) for code, mark in zip(expected, marks, strict=True)]


def test_a_problem_of_several_steps_is_reported_once(workshop: Path) -> None:
    (workshop / "models" / "prefill.onnx").unlink()
    assert codes(problems_of(workshop)) == ["EPB201"], "it is in two groups"


PREPARED = "prefill: {path: models/prefill.onnx, prepare: [{%s, toolchain: tools}]}"
TOOLS = ("toolchains:\n", "toolchains:\n  tools: {packages: [onnx]}\n")
PHONE, CPU = "soc_model: SM8750", "device_type: CPU"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PHONE, rf"{PHONE}\n      op_packages: ‸'One:models\a.so:I'"),
        (PHONE, rf"{PHONE}\n    session_options: {{session.node_partition_config_file: ‸models\a.so}}"),
        (CPU, rf"{CPU}\n      cache_dir: ‸models\cache"),
        (PREFILL, PREPARED % r'run: [python, ‸models\a.so, "${in}", "${out}"], files: [models/a.so]'),
        (PREFILL, PREPARED % r'run: [python, ‸models\a.so, "${in}", "${out}"], files: [models/b.so]'),
        (PREFILL, PREPARED % r"quantize: {calibration: ‸models\a.so}"),
    ],
)
def test_a_backslash_in_the_path_of_an_option_or_a_command_is_refused(workshop: Path, old: str, new: str) -> None:
    for name in ("a.so", "b.so"):
        (workshop / "models" / name).touch()
    text, marks = places(edited(RECIPE, TOOLS, (old, new.replace(r"\n", "\n"))))
    found = problems_of(workshop, text)
    assert ("EPB106", *marks[0]) in codes_and_places(found)
    assert any("contains a backslash. Write '" in problem.text for problem in found)


@pytest.mark.skipif(os.name == "nt", reason="POSIX file names may hold a backslash; Windows reads it as a separator")
def test_a_backslash_in_a_location_does_not_bypass_the_check(workshop: Path) -> None:
    (workshop / "models" / "..\\decode.bin").write_bytes(bytes(16))
    write_model(workshop / "models" / "decode.onnx", external={"shared": ("..\\decode.bin", [4])})
    assert codes(problems_of(workshop)) == ["EPB204"]
