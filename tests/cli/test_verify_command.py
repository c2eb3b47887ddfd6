"""`epbuild verify` and `epbuild inspect`: text in 80 columns, JSON, and exit codes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from epbuild.archive.artifact import FileEntry, Role
from epbuild.output.manifest import ManifestModel, PartManifest
from tests.support.commands import environment, epbuild, pack

pytestmark = pytest.mark.slow

BINARY = b"\0 soc_type=SM8750;arch=79 \1 QNN_11_graph_of_a_model"
QNN = "QNNExecutionProvider"


def write(folder: Path, *, soc: str = "SM8750", embed: bool = False) -> Path:
    """Write an unshared model as epbuild emits it for the SoC `soc`, with a binary for SM8750."""
    folder.mkdir(parents=True)
    (folder / "m_qnn.bin").write_bytes(BINARY)
    context = {"ep_cache_context": BINARY, "embed_mode": 1} if embed else {"ep_cache_context": "m_qnn.bin", "embed_mode": 0}
    node = helper.make_node("EPContext", ["x"], ["y"], "n", domain="com.microsoft", main_context=1, source=QNN, own=3, **context)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    (folder / "m_ctx.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    described = [{"name": value.name, "type": "float32", "shape": [1, 4]} for value in values]
    roles: dict[str, Role] = {"m_ctx.onnx": "model", "m_qnn.bin": "context-binary"}
    content = PartManifest(
        recipe="tiny",
        group="main",
        share_weights=False,
        target={
            "name": "phone",
            "eps": [{"ep": QNN, "provider_options": {"backend_type": "htp", "soc_model": soc}}],
            "session_options": {},
            "environment": {},
            "unchecked_options": [],
        },
        toolchain={"python": "cpython-3.11", "platform": "linux-x86_64", "distributions": {}},
        models=[
            ManifestModel(
                name="m",
                file="m_ctx.onnx",
                action_key="ab" * 32,
                source={"sha256": "cd" * 32, "external_data": {}, "inputs": described[:1], "outputs": described[1:]},
                nodes=[{"name": "n", "source": QNN, "main_context": 1, "embed_mode": 0}],
                fallback_nodes=0,
                compatibility={},
            )
        ],
        files=[
            FileEntry(name, role, (folder / name).stat().st_size, hashlib.sha256((folder / name).read_bytes()).hexdigest())
            for name, role in roles.items()
        ],
    )
    (folder / "manifest.json").write_bytes(content.file.data)
    return folder


def verified(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = epbuild(folder, "verify", *arguments, "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_valid_artifacts_have_one_line_per_check_and_a_total(tmp_path: Path) -> None:
    write(tmp_path / "dist")
    done = epbuild(tmp_path, "verify", "dist")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "digests      2 passed" in lines
    assert lines[-1] == "13 passed"
    assert all(len(line) <= 80 for line in lines)


def test_a_failure_is_reported_in_full_with_its_code_and_hint(tmp_path: Path) -> None:
    write(tmp_path / "dist", soc="SC8380XP")
    done = epbuild(tmp_path, "verify", "dist")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    told = " ".join(done.stdout.split())
    assert "m_qnn.bin: It was compiled for SM8750, not for SC8380XP. Check the target's options" in told
    assert "[EPB608]" in told
    assert lines[-1] == "12 passed, 1 failed"
    assert all(len(line) <= 80 for line in lines)


def test_skipped_checks_are_reported_once_per_reason_and_do_not_fail(tmp_path: Path) -> None:
    for name in "abcde":
        write(tmp_path / "dist" / name)
        (tmp_path / "dist" / name / "manifest.json").unlink()
    done = epbuild(tmp_path, "verify", "dist")
    assert done.returncode == 0
    told = " ".join(done.stdout.split())
    assert "a/m_ctx.onnx, b/m_ctx.onnx, c/m_ctx.onnx and 2 more: The inputs and outputs of its source" in told
    assert told.count("The inputs and outputs of its source are unknown.") == 1


def test_scripts_get_every_finding_as_json(tmp_path: Path) -> None:
    write(tmp_path / "dist", soc="SC8380XP")
    code, document = verified(tmp_path, "dist")
    assert (code, document["format"], document["path"]) == (1, 1, "dist")
    assert document["counts"] == {"failed": 1, "skipped": 0, "passed": 12}
    [failed] = [finding for finding in document["findings"] if finding["outcome"] == "failed"]
    assert failed == {
        "check": "target",
        "subject": "m_qnn.bin",
        "outcome": "failed",
        "message": "It was compiled for SM8750, not for SC8380XP.",
        "code": "EPB608",
        "hint": "Check the target's options, because the EP ignores unknown options.",
    }


@pytest.mark.parametrize("path", ["gone", "empty", "notes.json"])
def test_a_path_with_nothing_to_verify_exits_with_2(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.json").write_text("[]", encoding="utf-8")
    done = epbuild(tmp_path, "verify", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "[EPB600]" in done.stderr


def test_a_hostile_model_cannot_control_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / "dist")
    model = tmp_path / "dist" / "m_ctx.onnx"
    model.write_bytes(model.read_bytes().replace(b"m_qnn.bin", b"m\x1b[2J.bin"))
    for command in ("verify", "inspect"):
        done = epbuild(tmp_path, command, "dist")
        assert done.returncode == 1
        assert "\x1b" not in done.stdout + done.stderr
        assert "m\\x1b[2J.bin" in done.stdout


def test_embedded_and_external_contexts_are_inspected_alike(tmp_path: Path) -> None:
    digest = hashlib.sha256(BINARY).hexdigest()
    for embed in (False, True):
        write(tmp_path / str(embed), embed=embed)
        done = epbuild(tmp_path, "inspect", f"{embed}/m_ctx.onnx")
        assert done.returncode == 0
        assert f" sha256         {digest}" in done.stdout.splitlines()
        assert " compiled for   SM8750" in done.stdout.splitlines()
        assert " EP attributes  own 3" in done.stdout.splitlines()


def test_inspecting_several_models_reports_shared_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "dist")
    (folder / "second_ctx.onnx").write_bytes((folder / "m_ctx.onnx").read_bytes())
    for paths in (["dist"], ["dist/m_ctx.onnx", "dist/second_ctx.onnx"]):
        document = json.loads(epbuild(tmp_path, "inspect", *paths, "--json").stdout)
        [shared] = document["shared"]
        assert (Path(shared["file"]).name, shared["saved"], len(shared["models"])) == ("m_qnn.bin", len(BINARY), 2)
        assert "compared with a copy for each of 2 models" in " ".join(epbuild(tmp_path, "inspect", *paths).stdout.split())


def test_a_broken_model_hides_no_other_model_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "dist")
    (tmp_path / "dist" / "broken.onnx").write_bytes(b"no model")
    done = epbuild(tmp_path, "inspect", "dist")
    assert done.returncode == 1
    assert "is not a complete ONNX file" in done.stdout
    assert "EPContext n" in done.stdout


PACKED = ["model.zip", "model.tar.zst", "image"]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return an empty folder for temporary files, which the tests check for leftovers."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def received(folder: Path, *arguments: str, temporary: Path) -> tuple[int, list[dict[str, Any]]]:
    """Run `verify`, and return the exit code and findings. Assert that no temporary path is shown or left behind."""
    done = epbuild(folder, "verify", *arguments, "--json", TMPDIR=str(temporary), TEMP=str(temporary), TMP=str(temporary))
    assert str(temporary) not in done.stdout + done.stderr
    assert list(temporary.iterdir()) == []
    document = json.loads(done.stdout)
    assert (document["format"], document["path"], done.stderr) == (1, arguments[0], "")
    return done.returncode, document["findings"]


def failures(found: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(row["check"], row["subject"], row["code"], row["message"]) for row in found if row["outcome"] == "failed"]


@pytest.mark.parametrize("name", PACKED)
def test_packed_artifacts_are_verified_without_unpacking_by_hand(name: str, tmp_path: Path, temporary: Path) -> None:
    folder = write(tmp_path / "dist")
    pack(folder, tmp_path / name)
    code, found = received(tmp_path, name, temporary=temporary)
    assert (code, failures(found)) == (0, [])
    assert found[0] == {"check": "archive", "subject": name, "outcome": "passed", "message": "", "code": None, "hint": None}
    assert found[1:] == received(tmp_path, "dist", temporary=temporary)[1]


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_artifact_fails_by_the_names_of_its_members(name: str, tmp_path: Path, temporary: Path) -> None:
    folder = write(tmp_path / "dist", soc="SC8380XP")
    (folder / "m_ctx.onnx").unlink()
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    pack(folder, tmp_path / name)
    code, found = received(tmp_path, name, temporary=temporary)
    assert (code, failures(found)[:1]) == (1, [("files", "m_ctx.onnx", "EPB615", "The manifest lists it, but it is missing.")])
    [more] = [row for row in found if row["outcome"] == "skipped" and row["subject"] == "notes.txt"]
    assert more["message"] == "The manifest does not list it, so its expected content is unknown."


def test_an_artifact_folder_inside_a_zip_is_verified_under_its_name(tmp_path: Path, temporary: Path) -> None:
    write(tmp_path / "top" / "dist")
    shutil.make_archive(str(tmp_path / "mine"), "zip", tmp_path / "top")
    code, found = received(tmp_path, "mine.zip", temporary=temporary)
    assert (code, failures(found)) == (0, [])
    assert {row["subject"] for row in found if row["check"] == "digests"} == {"dist/m_ctx.onnx", "dist/m_qnn.bin"}


def test_a_damaged_archive_fails_verification_and_another_file_is_a_usage_error(tmp_path: Path, temporary: Path) -> None:
    path = pack(write(tmp_path / "dist"), tmp_path / "model.zip")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(BINARY, BINARY[:-1] + b"!", 1))
    code, found = received(tmp_path, "model.zip", temporary=temporary)
    assert code == 1
    assert failures(found) == [("archive", "model.zip", "EPB619", "The member 'm_qnn.bin' is damaged: bad CRC-32.")]
    path.write_bytes(b"no" + whole)
    done = epbuild(tmp_path, "verify", "model.zip")
    assert (done.returncode, done.stdout) == (2, "")
    told = "model.zip does not start with the header of an archive. Copy or download it again. [EPB600]"
    assert done.stderr == f"epbuild: error: {told}\n"


def test_a_hostile_archive_is_one_finding_and_writes_nothing(tmp_path: Path, temporary: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("../evil\x1b[2J", b"evil")
    code, found = received(tmp_path, "model.zip", temporary=temporary)
    [(check, subject, error, message)] = failures(found)
    assert (code, check, subject, error) == (1, "archive", "model.zip", "EPB631")
    assert message.startswith(r"The member '../evil\x1b[2J' has an unsafe path")
    assert not list(tmp_path.rglob("*evil*"))


def test_an_archive_is_checked_against_the_provenance_beside_it(tmp_path: Path, temporary: Path) -> None:
    path = pack(write(tmp_path / "dist"), tmp_path / "model.tar.zst")
    statement = path.with_name("model.tar.zst.intoto.json")

    def state(digest: str) -> None:
        document = {"_type": "https://in-toto.io/Statement/v1", "subject": [{"name": "x", "digest": {"sha256": digest}}]}
        statement.write_text(json.dumps(document), encoding="utf-8")

    state(hashlib.sha256(path.read_bytes()).hexdigest())
    code, found = received(tmp_path, path.name, temporary=temporary)
    assert (code, found[1]["check"], found[1]["subject"], found[1]["outcome"]) == (0, "provenance", statement.name, "passed")
    state("ab" * 32)
    code, found = received(tmp_path, path.name, temporary=temporary)
    [(check, subject, error, message)] = failures(found)
    assert (code, check, subject, error) == (1, "provenance", statement.name, "EPB637")
    assert message.startswith("It does not cover this archive, whose SHA-256 is ")
    code, found = received(tmp_path, path.name, "--load", temporary=temporary)
    assert (code, found[-1]["check"], found[-1]["message"]) == (
        1,
        "load",
        "It was not loaded, because the check of the archive failed.",
    )
    for text in ("", "[]", "{}", '{"_type": "https://in-toto.io/Statement/v1", "subject": 5}', "[" * 100_000):
        statement.write_text(text, encoding="utf-8")
        code, found = received(tmp_path, path.name, temporary=temporary)
        assert failures(found) == [("provenance", statement.name, "EPB637", "It is not a readable in-toto statement.")]


def test_an_archive_without_a_model_is_reported_by_name(tmp_path: Path, temporary: Path) -> None:
    with zipfile.ZipFile(tmp_path / "notes.zip", "w") as archive:
        archive.writestr("notes.txt", b"mine")
    done = epbuild(tmp_path, "verify", "notes.zip", TMPDIR=str(temporary))
    assert (done.returncode, done.stderr) == (
        2,
        "epbuild: error: notes.zip contains neither a manifest nor an ONNX model. [EPB600]\n",
    )


@pytest.mark.skipif(sys.platform == "win32", reason="there a test cannot press Ctrl-C in one process only")
def test_ctrl_c_removes_unpacked_files(tmp_path: Path, temporary: Path) -> None:
    folder = write(tmp_path / "dist")
    with (folder / "zeros").open("wb") as file:
        file.truncate(160 << 20)
    pack(folder, tmp_path / "model.tar.zst")
    process = subprocess.Popen(
        [sys.executable, "-m", "epbuild", "verify", "model.tar.zst"],
        cwd=tmp_path,
        env=environment(tmp_path, TMPDIR=str(temporary)),
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not list(temporary.rglob("zeros")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told.strip()) == (130, b"epbuild: interrupted; finished work is kept")
    assert list(temporary.iterdir()) == []


def test_archives_and_images_in_a_folder_are_reported_as_skipped(tmp_path: Path) -> None:
    write(tmp_path / "dist" / "folder")
    for name in ("a.zip", "more/b.tar.zst", "more/image", "folder/of-its-own.zip"):
        (tmp_path / "dist" / "more").mkdir(exist_ok=True)
        pack(tmp_path / "dist" / "folder", tmp_path / "dist" / name)
    code, document = verified(tmp_path, "dist")
    assert code == 0
    left = [(item["check"], item["subject"]) for item in document["findings"] if item["outcome"] == "skipped"]
    assert ("files", "folder/of-its-own.zip") in left, "it lies beside a manifest that does not list it"
    assert [subject for check, subject in left if check == "archive"] == ["dist/a.zip", "dist/more/b.tar.zst", "dist/more/image"]
    shutil.rmtree(tmp_path / "dist" / "folder")
    done = epbuild(tmp_path, "verify", "dist")
    assert (done.returncode, done.stdout) == (2, "")
    assert "dist contains only archives or images: name one of them, such as dist/a.zip" in " ".join(done.stderr.split())
