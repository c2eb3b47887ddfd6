"""Every form of an output by the real command: complete at every moment, same bytes, no leftover files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.machine_needs import need_device
from tests.e2e.ort_package import open_package
from tests.support.projects import Project, emitted
from tests.support.quick_builds import QUALITIES, move_weights, start, write_model, write_project

pytestmark = pytest.mark.gate

EVERY_FORM = """\
outputs:
  - {layout: directory, path: "dist/folder/${group}", include_source: "base/${model}.onnx", provenance: true, sbom: true}
  - {layout: ort-model-package, path: dist/all.ortpackage, include_source: "${model}.onnx", provenance: true, sbom: true}
  - {layout: ort-model-package, archive: tar.zst, path: dist/all.tar.zst, provenance: true, sbom: true}
  - {layout: directory, archive: zip, path: "dist/${group}.zip", provenance: true}
  - {layout: directory, archive: oci, path: "dist/oci/${group}", provenance: true, sbom: true}
"""
KILLS, SAMPLE = 24, 4


def with_outputs(project: Project, outputs: str) -> None:
    """Replace the outputs of the recipe with these."""
    text = project.recipe.read_text(encoding="utf-8")
    project.recipe.write_text(text[: text.index("outputs:")] + outputs, encoding="utf-8")


def one_output(**settings: str) -> str:
    return "outputs:\n  - {" + ", ".join(f"{name}: {value}" for name, value in settings.items()) + "}\n"


def verified(project: Project, path: str) -> None:
    done = project.epbuild("verify", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_layout_has_identical_bytes_for_other_users_and_folders(tmp_path: Path) -> None:
    elsewhere = {"umask": 0o077, "TZ": "Asia/Tokyo", "HOME": str(tmp_path / "home"), "USER": "somebody", "LC_ALL": "C"}
    trees = []
    for folder, differs in (("here", {}), ("some/where/else", elsewhere)):
        project = write_project(made(tmp_path / folder / "project", tmp_path / folder / "cache"))
        with_outputs(project, EVERY_FORM)
        command, environment = project.command("run")
        more = {name: str(value) for name, value in differs.items() if name != "umask"}
        umask = {"umask": differs["umask"]} if "umask" in differs and os.name != "nt" else {}
        done = subprocess.run(command, cwd=project.folder, env=environment | more, check=False, capture_output=True, **umask)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        trees.append(project.files())
    assert trees[0] == trees[1]
    assert {"all.tar.zst", "left.zip", "all.ortpackage/manifest.json", "oci/left/index.json"} <= trees[0].keys()


def made(folder: Path, cache: Path) -> Project:
    folder.mkdir(parents=True)
    return Project(folder, cache)


def test_switching_layouts_removes_old_files_and_keeps_the_users_files(quick: Project) -> None:
    quick.build()
    (quick.folder / "dist" / "left" / "notes.txt").write_text("mine", encoding="utf-8")
    forms = {
        one_output(layout="directory", archive="zip", path='"dist/${group}.zip"', provenance="true"): {
            *("left.zip", "left.zip.intoto.json", "right.zip", "right.zip.intoto.json"),
        },
        one_output(layout="ort-model-package", path="dist/left", component_name='"${group}-x"'): {
            *("left/manifest.json", "left/left/npu/manifest.json", "left/left/npu/left_ctx.onnx", "left/left/npu/left_qnn.bin"),
            *("left/right/npu/manifest.json", "left/right/npu/right_ctx.onnx", "left/right/npu/right_qnn.bin"),
        },
        one_output(layout="directory", path='"dist/${group}"'): {
            f"{name}/{file}" for name in ("left", "right") for file in ("manifest.json", f"{name}_ctx.onnx", f"{name}_qnn.bin")
        },
        one_output(layout="directory", archive="oci", path="dist/left", groups="[left]"): {"left/index.json", "left/oci-layout"},
        one_output(layout="directory", path="dist/left", groups="[right]"): {
            *("left/manifest.json", "left/right_ctx.onnx", "left/right_qnn.bin"),
        },
    }
    for outputs, expected in forms.items():
        with_outputs(quick, outputs)
        quick.build()
        found = {name for name in quick.files() if "/blobs/" not in name}
        assert found == expected | {"left/notes.txt"}
        if "ort-model-package" in outputs:
            assert open_package(quick.folder / "dist/left", sessions=False)["error"] is None
        assert not any(path.name.startswith(".") for path in (quick.folder / "dist").iterdir())
    assert not (quick.folder / "dist" / "left" / "blobs").exists()
    assert (quick.folder / "dist" / "left" / "notes.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("pack", ["zip", "tar.zst"])
def test_an_archive_is_complete_whenever_a_reader_opens_the_file(quick: Project, pack: str) -> None:
    with_outputs(quick, one_output(layout="directory", archive=pack, path=f'"dist/${{group}}.{pack}"'))
    quick.build()
    archive, stop, seen = quick.folder / "dist" / f"left.{pack}", threading.Event(), set[str]()
    look = opened_zip if pack == "zip" else opened_tar

    def watch() -> None:
        while not stop.is_set():
            seen.add(look(archive))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for quality in QUALITIES[1:]:
            quick.build("--set", f"vars.quality={quality}")
    finally:
        stop.set()
        watcher.join()
    seen.add(look(archive))
    assert len(seen) == len(QUALITIES), seen


def test_a_killed_build_leaves_complete_archives_and_the_next_cleans_up(quick: Project, exhaustive: bool) -> None:
    outputs = one_output(layout="ort-model-package", archive="tar.zst", path="dist/all.tar.zst", provenance="true")
    with_outputs(quick, one_output(layout="directory", archive="zip", path='"dist/${group}.zip"') + outputs.partition("\n")[2])
    quick.build()
    moments = random.Random(6)
    for turn in range(KILLS if exhaustive else SAMPLE):
        # Earlier results are in the store, so that the emit steps take most of the time.
        build = start(quick, "run", "--set", f"vars.quality={QUALITIES[turn % len(QUALITIES)]}")
        time.sleep(moments.uniform(0.2, 1.2))
        build.kill()
        build.communicate()
        for name in ("left", "right"):
            opened_zip(quick.folder / "dist" / f"{name}.zip", name)
    quick.build()
    assert set(quick.files()) == {"left.zip", "right.zip", "all.tar.zst", "all.tar.zst.intoto.json"}
    archive = quick.folder / "dist" / "all.tar.zst"
    statement = json.loads(archive.with_name("all.tar.zst.intoto.json").read_bytes())
    digests = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    assert digests["all.tar.zst"] == hashlib.sha256(archive.read_bytes()).hexdigest()


def opened_zip(path: Path, name: str = "left") -> str:
    """Read an archive to its end, check it against its manifest, and return the digest of its context binary."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return checked({file: archive.read(file) for file in archive.namelist()}, name)


def opened_tar(path: Path) -> str:
    import zstandard

    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        return checked({member.name: archive.extractfile(member).read() for member in archive})  # type: ignore[union-attr]


def checked(files: dict[str, bytes], name: str = "left") -> str:
    listed: dict[str, str] = {file["path"]: file["sha256"] for file in json.loads(files["manifest.json"])["files"]}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "manifest.json"} == listed
    return listed[f"{name}_qnn.bin"]


def test_a_damaged_archive_is_emitted_again_and_a_users_archive_is_kept(
    quick: Project,
) -> None:
    with_outputs(quick, one_output(layout="directory", archive="zip", path='"dist/${group}.zip"', provenance="true"))
    quick.build()
    archive = quick.folder / "dist" / "left.zip"
    whole = archive.read_bytes()
    assert emitted(quick.build()) == set()
    damages: list[Callable[[], object]] = [
        lambda: archive.write_bytes(whole[:-1]),
        lambda: archive.write_bytes(whole[:99] + bytes([whole[99] ^ 1]) + whole[100:]),
        archive.unlink,
        archive.with_name("left.zip.intoto.json").unlink,
    ]
    for damage in damages:
        damage()
        assert quick.epbuild("run", "--check").returncode == 1
        assert emitted(quick.build()) == {"emit:left/npu/zip"}
        assert archive.read_bytes() == whole

    shutil.rmtree(quick.folder / ".epbuild")
    archive.write_bytes(b"PK\x03\x04 mine")
    done = quick.epbuild("run")
    assert done.returncode == 1
    assert "left.zip already exists and was not created by epbuild" in done.stderr
    assert "Traceback" not in done.stderr
    assert archive.read_bytes() == b"PK\x03\x04 mine"


def test_a_checkout_without_state_adopts_existing_archives(quick: Project) -> None:
    with_outputs(quick, one_output(layout="directory", archive="zip", path='"dist/${group}.zip"', provenance="true"))
    quick.build()
    before = quick.files()
    shutil.rmtree(quick.folder / ".epbuild")
    quick.build()
    assert quick.files() == before


def test_clean_removes_archives_with_their_statements_and_keeps_changed_ones(quick: Project) -> None:
    with_outputs(quick, one_output(layout="directory", archive="zip", path='"dist/${group}.zip"', provenance="true"))
    quick.build()
    (quick.folder / "dist" / "right.zip").write_bytes(b"changed")
    (quick.folder / "dist" / "mine.zip").write_bytes(b"mine")
    done = quick.epbuild("clean")
    assert done.returncode == 0
    assert "removed  dist/left.zip  2 files" in done.stdout
    assert "kept     dist/right.zip: it was changed after epbuild wrote it" in done.stdout
    assert set(quick.files()) == {"mine.zip", "right.zip"}


@pytest.mark.parametrize("after", ["the same without provenance", "a package"])
def test_an_archive_without_statements_keeps_no_old_statement_beside_it(quick: Project, after: str) -> None:
    with_outputs(quick, one_output(layout="directory", archive="zip", path="dist/left.zip", groups="[left]", provenance="true"))
    quick.build()
    assert set(quick.files()) == {"left.zip", "left.zip.intoto.json"}
    layout = "ort-model-package" if after == "a package" else "directory"
    with_outputs(quick, one_output(layout=layout, archive="zip", path="dist/left.zip", groups="[left]"))
    quick.build()
    assert set(quick.files()) == {"left.zip"}


def test_a_file_beside_an_archive_is_replaced_only_if_epbuild_wrote_it(quick: Project) -> None:
    outputs = [
        one_output(layout="directory", archive="zip", path="dist/left.zip", groups="[left]", provenance=provenance)
        for provenance in ("false", "true")
    ]
    with_outputs(quick, outputs[0])
    quick.build()
    beside = quick.folder / "dist" / "left.zip.intoto.json"
    beside.write_text('{"mine": true}', encoding="utf-8")
    with_outputs(quick, outputs[1])
    done = quick.epbuild("run")
    assert done.returncode == 1
    assert "left.zip.intoto.json already exists and was not created by epbuild" in done.stderr
    assert beside.read_text(encoding="utf-8") == '{"mine": true}'
    beside.unlink()
    quick.build()
    # A build that was killed between the two leaves the statement without its archive, and a record of neither.
    shutil.rmtree(quick.folder / ".epbuild")
    (quick.folder / "dist" / "left.zip").unlink()
    quick.build()
    assert set(quick.files()) == {"left.zip", "left.zip.intoto.json"}


def test_a_renamed_archive_is_compared_with_its_old_name(quick: Project) -> None:
    with_outputs(quick, one_output(layout="directory", archive="zip", path="dist/a.zip", groups="[left]", provenance="true"))
    quick.build()
    with_outputs(
        quick, one_output(layout="directory", archive="zip", path="dist/b.zip", groups="[left]", provenance="true", sbom="true")
    )
    (compared,) = [event for event in quick.build() if event["event"] == "output_compared"]
    assert {file["path"] for file in compared["files"]} == {"b.zip"}
    assert sum(file["after"] - file["before"] for file in compared["files"]) == compared["after"] - compared["before"]
    assert set(quick.files()) == {"b.zip", "b.zip.intoto.json"}


def test_an_output_can_change_its_layout_at_the_same_path(quick: Project) -> None:
    folder = one_output(layout="directory", path="dist/left.zip", groups="[left]")
    archive = one_output(layout="directory", archive="zip", path="dist/left.zip", groups="[left]", provenance="true")
    for _ in range(2):
        with_outputs(quick, archive)
        quick.build()
        assert set(quick.files()) == {"left.zip", "left.zip.intoto.json"}
        with_outputs(quick, folder)
        quick.build()
        assert set(quick.files()) == {f"left.zip/{name}" for name in ("manifest.json", "left_ctx.onnx", "left_qnn.bin")}
    mine = quick.folder / "dist" / "left.zip" / "mine.txt"
    mine.write_text("mine", encoding="utf-8")
    with_outputs(quick, archive)
    assert quick.epbuild("run").returncode == 1
    assert mine.read_text(encoding="utf-8") == "mine"


def test_a_folder_can_contain_ep_named_binaries_and_source_models(quick: Project) -> None:
    with_outputs(
        quick,
        one_output(
            layout="directory", path='"dist/${group}"', context_binary='"bin/${ep.binary}"', include_source='"base/${model}.onnx"'
        ),
    )
    quick.build()
    assert set(quick.files("dist/left")) == {"manifest.json", "left_ctx.onnx", "bin/left_ctx_qnn.bin", "base/left.onnx"}
    assert (quick.folder / "dist/left/base/left.onnx").read_bytes() == (quick.folder / "left.onnx").read_bytes()
    verified(quick, "dist")


@pytest.mark.parametrize("location", ["weights.bin", "./weights.bin"])
def test_a_base_model_includes_its_external_data_under_a_plain_path(quick: Project, location: str) -> None:
    move_weights(quick.folder / "left.onnx", location)
    with_outputs(
        quick,
        one_output(
            layout="directory", archive="zip", path="dist/left.zip", groups="[left]", include_source='"base/${model}.onnx"'
        )
        + one_output(
            layout="ort-model-package", path="dist/package", groups="[left]", include_source='"${model}.onnx"'
        ).partition("\n")[2],
    )
    quick.build()
    assert (quick.folder / "dist/package/left/base/weights.bin").read_bytes() == (quick.folder / "weights.bin").read_bytes()
    verified(quick, "dist/package")
    with zipfile.ZipFile(quick.folder / "dist" / "left.zip") as archive:
        assert {name for name in archive.namelist() if name.startswith("base/")} == {"base/left.onnx", "base/weights.bin"}
        archive.extractall(quick.folder / "unpacked")
    verified(quick, "unpacked")


def test_external_data_of_compiled_and_base_models_is_emitted_once(quick: Project) -> None:
    write_model_with_weights_outside_the_ep(quick.folder / "left.onnx")
    move_weights(quick.folder / "left.onnx", "weights.bin")
    left = "{models: [left], targets: [npu]"
    quick.edit(f"{left}}}", f"{left}, compile: {{initializers: {{store: source}}}}, expect: {{fallback_nodes: any}}}}")
    with_outputs(quick, one_output(layout="directory", path="dist/left", groups="[left]", include_source='"${model}.onnx"'))
    quick.build()
    ships_weights_once(quick, {"left.onnx"})


def write_model_with_weights_outside_the_ep(path: Path) -> None:
    """Write a model whose beginning QNN compiles. A MatMulInteger with weights of its own falls back to the CPU."""
    draw = numpy.random.default_rng(0)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
            helper.make_node("DynamicQuantizeLinear", ["y"], ["yq", "scale", "zero"], name="quantize"),
            helper.make_node("MatMulInteger", ["yq", "wq", "zero"], ["z"], name="mmi"),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [1, 64])],
        [value("z", TensorProto.INT32, [1, 64])],
        [
            numpy_helper.from_array(draw.standard_normal((64, 64)).astype(numpy.float32), "w"),
            numpy_helper.from_array(draw.integers(-9, 9, (64, 64), dtype=numpy.int8), "wq"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def ships_weights_once(project: Project, base: set[str]) -> None:
    """Assert that `dist/left` has one weights file for the compiled models and for the base models `base`."""
    files = {
        file["path"]: file["role"] for file in json.loads((project.folder / "dist/left/manifest.json").read_bytes())["files"]
    }
    assert files["weights.bin"] == "external-data"
    assert {name for name, role in files.items() if role == "base-model"} == base
    verified(project, "dist/left")


def test_external_data_that_openvino_refers_to_is_emitted_once(quick: Project) -> None:
    packages = ("onnxruntime==1.31.1", "onnxruntime-ep-openvino==1.8.1")
    need_device("CPU", ep="OpenVINOExecutionProvider", module="onnxruntime_ep_openvino", packages=packages)
    move_weights(quick.folder / "left.onnx", "weights.bin")
    quick.edit("onnxruntime-qnn==2.7.0", "onnxruntime-ep-openvino==1.8.1")
    text = quick.recipe.read_text(encoding="utf-8")
    target = "  npu: {toolchain: qnn, ep: OpenVINOExecutionProvider, device: {type: cpu}}\n"
    text = text[: text.index("  npu:")] + target + text[text.index("groups:") :]
    # The weights of models that share stay in the files of these models.
    text = text.replace(
        "  left: {models: [left], targets: [npu]}", "  left: {models: [left, twin], targets: [npu], share_weights: true}"
    )
    quick.recipe.write_text(text.replace("right: right.onnx", "right: right.onnx, twin: twin.onnx"), encoding="utf-8")
    shutil.copy(quick.folder / "left.onnx", quick.folder / "twin.onnx")
    with_outputs(quick, one_output(layout="directory", path="dist/left", groups="[left]", include_source='"${model}.onnx"'))
    quick.build()
    ships_weights_once(quick, {"left.onnx", "twin.onnx"})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"context_binary": "weights.bin"}, "two different files would be written to 'weights.bin'"),
        (
            {"model": '"weights.bin/${model}.onnx"', "context_binary": "weights.bin/left.bin"},
            "'weights.bin' would be both a file and the folder of",
        ),
    ],
    ids=["one name", "a file and a folder"],
)
def test_conflicting_external_data_of_a_base_model_is_reported(quick: Project, names: dict[str, str], words: str) -> None:
    move_weights(quick.folder / "left.onnx", "weights.bin")
    with_outputs(
        quick, one_output(layout="directory", path="dist/left", groups="[left]", include_source='"${model}.onnx"', **names)
    )
    done = quick.epbuild("run")
    assert done.returncode == 1
    assert "EPB422" in done.stderr
    assert words in done.stderr.replace("\n", " ")
    assert not (quick.folder / "dist" / "left").exists()


def test_verify_accepts_every_layout_and_reports_damage(quick: Project) -> None:
    with_outputs(quick, EVERY_FORM)
    quick.build()
    verified(quick, "dist/all.ortpackage")
    assert open_package(quick.folder / "dist/all.ortpackage")["error"] is None
    base = quick.folder / "dist" / "all.ortpackage" / "left" / "base" / "left.onnx"
    base.write_bytes(base.read_bytes()[:-1])
    done = quick.epbuild("verify", "dist/all.ortpackage")
    assert done.returncode == 1
    assert "left/base/left.onnx" in done.stdout
    base.write_bytes((quick.folder / "left.onnx").read_bytes())
    verified(quick, "dist/all.ortpackage")
    manifest = quick.folder / "dist" / "all.ortpackage" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"left_ctx.onnx"', b'"gone_ctx.onnx"'))
    done = quick.epbuild("verify", "dist/all.ortpackage")
    assert done.returncode == 1
    assert "The provenance covers a different file" in " ".join(done.stdout.split())
    context = (quick.folder / "dist/folder/left/left_qnn.bin").read_bytes()
    blob = quick.folder / "dist/oci/left/blobs/sha256" / hashlib.sha256(context).hexdigest()
    for packed, file, place in (
        ("dist/left.zip", quick.folder / "dist/left.zip", -len(context)),
        ("dist/all.tar.zst", quick.folder / "dist/all.tar.zst", -100),
        ("dist/oci/left", blob, 100),
    ):
        verified(quick, packed)
        data = bytearray(file.read_bytes())
        data[place] ^= 1
        file.write_bytes(data)
        done = quick.epbuild("verify", packed)
        assert (done.returncode, done.stderr) == (1, "")
        assert " ".join(done.stdout.split()).startswith(f"archive 1 failed {packed}: ")
        assert "[EPB619]" in done.stdout


def test_diff_finds_no_difference_between_layouts_of_one_artifact(quick: Project) -> None:
    with_outputs(
        quick, EVERY_FORM.replace(', include_source: "base/${model}.onnx"', "").replace(', include_source: "${model}.onnx"', "")
    )
    quick.build()
    forms = ["dist/folder/left", "dist/left.zip", "dist/oci/left"]
    for old, new in zip(forms, [*forms[1:], forms[0]], strict=True):
        done = quick.epbuild("diff", old, new)
        assert (done.returncode, done.stdout) == (0, "No difference: 1 model, identical byte for byte.\n"), done.stderr
    assert quick.epbuild("diff", "dist/all.ortpackage", "dist/all.tar.zst").returncode == 0
    done = quick.epbuild("diff", "dist/left.zip", "dist/right.zip", "--markdown")
    assert done.returncode == 1
    assert "`dist/left.zip` &rarr; `dist/right.zip`" in done.stdout


def test_debug_dumps_of_a_compile_do_not_affect_outputs(quick: Project) -> None:
    dumps = {"dump_json_qnn_graph": True, "json_qnn_graph_dir": "dumped-graphs"}
    profile = {"profiling_level": "basic", "profiling_file_path": "dumped-profile.csv"}
    options = "".join(f"      {name}: {json.dumps(value)}\n" for name, value in {**dumps, **profile}.items())
    quick.edit("      backend_type: htp\n", "      backend_type: htp\n      htp_performance_mode: burst\n" + options)
    with_outputs(quick, EVERY_FORM)
    quick.build()
    assert {Path(name).suffix for name in quick.files(".epbuild/logs/compile+left+npu+left")} >= {".json", ".csv"}
    for path, data in quick.files().items():
        is_statement = b"predicateType" in data  # the provenance quotes all options of a compile
        assert is_statement or not any(name in data for name in (*map(str.encode, (*dumps, *profile)), b"dumped-")), path
    manifest = json.loads((quick.folder / "dist/all.ortpackage/manifest.json").read_bytes())
    left = manifest["components"]["left"]["variants"]["npu"]["executor_info"]["ort"]["provider_options"]
    assert left["htp_performance_mode"] == "burst"


def test_the_statement_beside_an_archive_covers_all_its_members(quick: Project) -> None:
    with_outputs(quick, one_output(layout="directory", archive="zip", path='"dist/${group}.zip"', provenance="true", sbom="true"))
    quick.build()
    archive = quick.folder / "dist" / "left.zip"
    statement = json.loads(archive.with_name("left.zip.intoto.json").read_bytes())
    subjects = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    with zipfile.ZipFile(archive) as opened:
        inside = {name: hashlib.sha256(opened.read(name)).hexdigest() for name in opened.namelist()}
    assert subjects == inside | {"left.zip": hashlib.sha256(archive.read_bytes()).hexdigest()}
    assert {"bom.cdx.json", "manifest.json"} <= inside.keys()


def test_provenance_follows_the_recipe_without_a_compile(quick: Project) -> None:
    with_outputs(quick, one_output(layout="directory", path='"dist/${group}"', provenance="true"))
    quick.build()
    before = quick.files()
    quick.recipe.write_text("# a comment\n" + quick.recipe.read_text(encoding="utf-8"), encoding="utf-8")
    events = quick.build()
    assert emitted(events) == {"emit:left/npu/directory", "emit:right/npu/directory"}
    assert not any(event.get("outcome") == "built" for event in events)
    changed = {name for name, data in quick.files().items() if data != before[name]}
    assert changed == {f"{name}/provenance.intoto.json" for name in ("left", "right")}


REFUSED = {
    "two models under one name": (
        one_output(layout="ort-model-package", path="dist/p", component_name="same"),
        "EPB225",
        "would both write the component 'same'",
    ),
    "a fixed model name for several models": (
        one_output(layout="directory", path='"dist/${target}"', model="model.onnx"),
        "EPB222",
        "have the same path",
    ),
    "an archive with another ending": (
        one_output(layout="directory", archive="zip", path='"dist/${group}.tar"'),
        "EPB224",
        "does not end in .zip",
    ),
    "a base for a target called base": (
        one_output(layout="ort-model-package", path="dist/p", include_source='"${model}.onnx"', targets="[nobody]"),
        "EPB108",
        "nobody",
    ),
    "an invalid registry reference": (
        one_output(layout="directory", archive="oci", path='"dist/${group}"', registry='"Registry/${group}"'),
        "EPB239",
        "registry",
    ),
    "a push without an image": (
        one_output(layout="directory", path='"dist/${group}"', registry="localhost:5000/x"),
        "EPB106",
        "'registry' requires 'archive: oci'",
    ),
    "a level that zstd does not have": (
        one_output(layout="directory", archive="{format: tar.zst, level: 30}", path='"dist/${group}.tar.zst"'),
        "EPB106",
        "19",
    ),
    "a component in a folder": (
        one_output(layout="directory", path='"dist/${group}"', component_name="x"),
        "EPB106",
        "'component_name'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_output_is_refused_before_any_work(quick: Project, case: str) -> None:
    outputs, code, sentence = REFUSED[case]
    with_outputs(quick, outputs)
    done = quick.epbuild("run")
    assert done.returncode == 2
    assert code in done.stderr
    assert sentence in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not (quick.folder / "dist").exists()


def test_an_unreachable_registry_is_reported_and_the_image_is_kept(quick: Project) -> None:
    outputs = one_output(
        layout="directory", archive="oci", path="dist/left", groups="[left]", registry="localhost:1/models/left:1"
    )
    with_outputs(quick, outputs)
    done = quick.epbuild("run")
    assert done.returncode == 3
    assert "EPB426" in done.stderr
    assert "Traceback" not in done.stderr
    assert (quick.folder / "dist" / "left" / "index.json").exists()
    # The step is not considered done.
    assert quick.epbuild("run", "--check").returncode == 1


def test_a_changed_model_is_updated_in_every_layout(quick: Project) -> None:
    with_outputs(quick, EVERY_FORM)
    quick.build()
    write_model(quick.folder / "left.onnx", seed=7)
    events = quick.build()
    assert emitted(events) == {
        *("emit:left/npu/directory", "emit:left/npu/zip", "emit:left/npu/oci"),
        *("emit:ort-model-package", "emit:ort-model-package.tar.zst"),
    }
    assert quick.epbuild("run", "--check").returncode == 0
