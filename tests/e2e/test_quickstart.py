"""Promises of the README: the quickstart builds, rebuilds only changes, and is the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jsonschema
import onnx
import pytest

from epbuild.core.canonical import read_schema
from epbuild.toolchain.process import WorkerListener, supervise
from tests.support.projects import Project, compiled, copy_of_quickstart, emitted, toolchain_python

SOCS = ("SC8380XP", "SM8750")


def test_each_soc_gets_two_models_with_one_shared_binary(new_quickstart: Project) -> None:
    new_quickstart.build()
    for soc in SOCS:
        folder = new_quickstart.folder / f"dist/quickstart/decoder/snapdragon-{soc}"
        assert sorted(path.name for path in folder.iterdir()) == [
            "decode_ctx.onnx",
            "manifest.json",
            "prefill_ctx.onnx",
            "prefill_qnn.bin",
        ]
        for name in ("prefill_ctx.onnx", "decode_ctx.onnx"):
            nodes = [node for node in onnx.load(folder / name).graph.node if node.op_type == "EPContext"]
            references = {
                attribute.s.decode() for node in nodes for attribute in node.attribute if attribute.name == "ep_cache_context"
            }
            assert references == {"prefill_qnn.bin"}
        assert f"soc_type={soc};".encode() in (folder / "prefill_qnn.bin").read_bytes()


def test_sharing_saves_more_than_a_third_of_the_binaries(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", "emit:decoder/snapdragon-SM8750/*")
    folder = "dist/quickstart/decoder/snapdragon-SM8750"
    shared = sum(len(content) for name, content in quickstart.files(folder).items() if name.endswith(".bin"))
    quickstart.edit("share_weights: true", "share_weights: false")
    quickstart.build("epbuild.yaml", "emit:decoder/snapdragon-SM8750/*")
    alone = [len(content) for name, content in quickstart.files(folder).items() if name.endswith(".bin")]
    assert len(alone) == 2
    assert shared < 0.65 * sum(alone)


def test_two_clean_builds_in_two_folders_are_identical(tmp_path: Path) -> None:
    first = copy_of_quickstart(tmp_path / "here", tmp_path / "cache-1")
    second = copy_of_quickstart(tmp_path / "there/and/deeper", tmp_path / "cache-2")
    first.cold = second.cold = True  # so that unordered collections have a different order in each
    assert compiled(first.build()) == compiled(second.build()) != set()
    assert first.files() == second.files() != {}


def test_manifests_list_emitted_files_and_name_no_machine(quickstart: Project) -> None:
    quickstart.build()
    manifests = sorted(quickstart.folder.glob("dist/**/manifest.json"))
    assert len(manifests) == 4
    for path in manifests:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        jsonschema.validate(document, read_schema("manifest"))
        assert str(quickstart.folder) not in text
        assert str(quickstart.cache) not in text
        assert {file["path"] for file in document["files"]} | {"manifest.json"} == {item.name for item in path.parent.iterdir()}


def test_a_second_run_does_nothing(quickstart: Project) -> None:
    quickstart.build()
    before = {path: path.stat().st_mtime_ns for path in quickstart.folder.glob("dist/**/*")}
    events = quickstart.build()
    assert {event["outcome"] for event in events if event["event"] == "step_finished"} == {"current"}
    assert not [event for event in events if event["event"] == "step_started"]
    assert before == {path: path.stat().st_mtime_ns for path in quickstart.folder.glob("dist/**/*")}
    assert "Nothing to do" in quickstart.epbuild("run").stdout


def test_changing_one_member_rebuilds_only_its_sharing_group(quickstart: Project) -> None:
    quickstart.build()
    path = quickstart.folder / "models/tiny-llm/decode.onnx"
    model = onnx.load(path, load_external_data=False)
    model.graph.node[0].name += "_renamed"
    onnx.save(model, path)
    plan = json.loads(quickstart.epbuild("plan", "--json").stdout)
    reasons = {reason for step in plan["steps"] if step["id"] == "share:decoder/snapdragon-SM8750" for reason in step["reasons"]}
    assert any(reason.startswith("model decode changed: ") for reason in reasons), reasons
    steps = compiled(quickstart.build())
    assert steps == {f"{step}snapdragon-{soc}{rest}" for soc in SOCS for step, rest in _DECODER_STEPS}


_DECODER_STEPS = (("compile:decoder/", "/prefill"), ("compile:decoder/", "/decode"), ("share:decoder/", ""))


def test_changing_one_socs_option_rebuilds_that_target_only(quickstart: Project) -> None:
    quickstart.build()
    quickstart.edit("matrix: {soc: [SC8380XP, SM8750]}", "matrix: {soc: [SC8380XP, SM8650]}")
    steps = compiled(quickstart.build())
    assert steps
    assert all("snapdragon-SM8650" in step for step in steps)


def test_touching_a_file_rebuilds_nothing(quickstart: Project) -> None:
    quickstart.build()
    for path in quickstart.folder.glob("models/**/*"):
        os.utime(path)
    events = quickstart.build()
    assert compiled(events) == emitted(events) == set()


@pytest.mark.parametrize("damage", ["deleted", "edited", "truncated", "same size and time"])
def test_a_damaged_output_is_restored_without_a_compile(quickstart: Project, damage: str) -> None:
    quickstart.build()
    good = quickstart.files()
    victim = quickstart.folder / "dist/quickstart/decoder/snapdragon-SM8750/prefill_qnn.bin"
    content, status = victim.read_bytes(), victim.stat()
    match damage:
        case "deleted":
            victim.unlink()
        case "edited":
            victim.write_bytes(content + b"more")
        case "truncated":
            victim.write_bytes(content[:1000])
        case _:
            victim.write_bytes(bytes([content[0] ^ 1]) + content[1:])
            os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = victim.read_bytes() if victim.exists() else None
    assert quickstart.epbuild("run", "--check").returncode == 1
    events = quickstart.build()
    assert compiled(events) == set()
    assert emitted(events) == {"emit:decoder/snapdragon-SM8750/directory"}
    # The cause of the change, a disk or the user, is unknown: the file is saved beside.
    kept = {"quickstart/decoder/snapdragon-SM8750/prefill_qnn.bin.saved": changed} if changed is not None else {}
    assert quickstart.files() == good | kept
    assert quickstart.epbuild("run", "--check").returncode == 0


def test_a_blob_lost_from_the_store_is_rebuilt(quickstart: Project) -> None:
    quickstart.build()
    good = quickstart.files()
    for blob in (quickstart.cache / "cas/sha256").glob("*/*"):
        if blob.stat().st_size > 100_000:
            blob.chmod(0o644)
            blob.write_bytes(b"\0" * blob.stat().st_size)
    (quickstart.folder / "dist/quickstart/classifier/snapdragon-SM8750/classifier_qnn.bin").unlink()
    assert compiled(quickstart.build()) == {"compile:classifier/snapdragon-SM8750/classifier"}
    assert quickstart.files() == good


def test_another_checkout_restores_from_the_store(quickstart: Project, tmp_path: Path) -> None:
    """Build in two checkouts, with a store that a third one has filled."""
    second = copy_of_quickstart(tmp_path / "two", quickstart.cache)
    assert compiled(quickstart.build()) == compiled(second.build()) == set()
    assert quickstart.files() == second.files() != {}


def test_a_users_own_file_in_an_output_folder_survives_a_rebuild(quickstart: Project) -> None:
    quickstart.build()
    note = quickstart.folder / "dist/quickstart/decoder/snapdragon-SM8750/notes.txt"
    note.write_text("mine", encoding="utf-8")
    quickstart.edit("backend_type: htp", "backend_type: htp\n      htp_graph_finalization_optimization_mode: 1")
    quickstart.build()
    assert note.read_text(encoding="utf-8") == "mine"


def test_dry_run_and_plan_list_pending_steps_and_write_nothing(quickstart: Project) -> None:
    before = sorted(quickstart.folder.rglob("*"))
    dry = quickstart.epbuild("run", "--dry-run")
    assert dry.returncode == 0
    assert "new" in dry.stdout
    assert "emit:decoder/snapdragon-SM8750/directory" in dry.stdout
    assert quickstart.epbuild("plan").returncode == 0
    assert sorted(quickstart.folder.rglob("*")) == before


def test_the_log_and_the_contents_of_a_result_can_be_read(new_quickstart: Project) -> None:
    new_quickstart.build("epbuild.yaml", "emit:classifier/snapdragon-SM8750/*")
    assert "compile:classifier/snapdragon-SM8750/classifier" in new_quickstart.epbuild("log").stdout.splitlines()
    assert "onnxruntime" in new_quickstart.epbuild("log", "compile:classifier/snapdragon-SM8750/classifier").stdout
    model = "dist/quickstart/classifier/snapdragon-SM8750/classifier_ctx.onnx"
    told = new_quickstart.epbuild("inspect", model)
    assert told.returncode == 0
    assert "SM8750" in told.stdout
    document = json.loads(new_quickstart.epbuild("inspect", model, "--json").stdout)
    assert document["ep_context_nodes"][0]["target"] == "SM8750"
    assert document["other_operators"] == {}
    (new_quickstart.folder / model).with_name("classifier_qnn.bin").unlink()
    assert new_quickstart.epbuild("inspect", model).returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel")
def test_the_unshared_classifier_matches_the_cpu_ep_on_the_emulator(quickstart: Project, tmp_path: Path) -> None:
    quickstart.build("epbuild.yaml", "emit:classifier/*")
    script = tmp_path / "compare.py"
    script.write_text(_COMPARE, encoding="utf-8")
    answer = tmp_path / "worst difference"
    compiled_model = quickstart.folder / "dist/quickstart/classifier/snapdragon-SC8380XP/classifier_ctx.onnx"
    source = quickstart.folder / "models/classifier/classifier.onnx"
    done = subprocess.run(
        [toolchain_python("onnxruntime-qnn"), "-I", script, source, compiled_model, answer],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert float(answer.read_text(encoding="utf-8")) < 0.005  # half precision, on probabilities


def test_workers_start_no_telemetry_of_onnx_runtime(quickstart: Project, tmp_path: Path) -> None:
    quickstart.build("epbuild.yaml", "emit:classifier/*")
    home = tmp_path / "home"
    home.mkdir()
    ending = supervise(
        [str(toolchain_python("onnxruntime-qnn")), "-I", "-c", "import onnxruntime"],
        home,
        tmp_path / "log",
        WorkerListener(),
        timeout=120,
        environment={},
        cancelled=threading.Event(),
    )
    assert (ending.cause, ending.status) == ("exited", 0)
    assert list(home.iterdir()) == []


_COMPARE = """
import sys
import numpy
import onnxruntime
import onnxruntime_qnn

source, compiled, answer = sys.argv[1:]
image = numpy.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(numpy.float32)
expected = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, {"image": image})[0]
onnxruntime.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "QNNExecutionProvider"]
options.add_provider_for_devices(devices, {"backend_type": "htp", "soc_model": "SC8380XP"})
got = onnxruntime.InferenceSession(compiled, sess_options=options).run(None, {"image": image})[0]
with open(answer, "w", encoding="utf-8") as file:  # the EP writes on standard output
    file.write(str(float(numpy.abs(got - expected).max())))
"""
