"""`epbuild verify` and `epbuild inspect` as people and scripts meet them: words in 80 columns, JSON, exit codes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from commands import epbuild
from onnx import TensorProto, helper

from epbuild.emit import Content, ManifestModel, Role, render

pytestmark = pytest.mark.slow

BINARY = b"\0 soc_type=SM8750;arch=79 \1 QNN_11_graph_of_a_model"
QNN = "QNNExecutionProvider"


def write(folder: Path, *, soc: str = "SM8750", embed: bool = False) -> Path:
    """An un-shared model as epbuild emits it for the SoC `soc`, though its binary is for SM8750."""
    folder.mkdir(parents=True)
    (folder / "m_qnn.bin").write_bytes(BINARY)
    context = {"ep_cache_context": BINARY, "embed_mode": 1} if embed else {"ep_cache_context": "m_qnn.bin", "embed_mode": 0}
    node = helper.make_node("EPContext", ["x"], ["y"], "n", domain="com.microsoft", main_context=1, source=QNN, own=3, **context)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    (folder / "m_ctx.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    described = [{"name": value.name, "type": "float32", "shape": [1, 4]} for value in values]
    roles: dict[str, Role] = {"m_ctx.onnx": "model", "m_qnn.bin": "context-binary"}
    content = render(
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
            Content(name, role, (folder / name).stat().st_size, hashlib.sha256((folder / name).read_bytes()).hexdigest())
            for name, role in roles.items()
        ],
    )
    (folder / "manifest.json").write_bytes(content)
    return folder


def verified(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = epbuild(folder, "verify", *arguments, "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_good_artifacts_are_a_line_for_each_check_and_a_sum(tmp_path: Path) -> None:
    write(tmp_path / "dist")
    done = epbuild(tmp_path, "verify", "dist")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "digests      2 passed" in lines
    assert lines[-1] == "13 passed"
    assert all(len(line) <= 80 for line in lines)


def test_a_failure_is_told_whole_with_its_code_and_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "dist", soc="SC8380XP")
    done = epbuild(tmp_path, "verify", "dist")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    told = " ".join(done.stdout.split())
    assert "m_qnn.bin: It was compiled for SM8750, not for SC8380XP. Check the target's options" in told
    assert "[EPB608]" in told
    assert lines[-1] == "12 passed, 1 failed"
    assert all(len(line) <= 80 for line in lines)


def test_what_could_not_be_checked_is_told_once_for_each_reason_and_is_no_failure(tmp_path: Path) -> None:
    for name in "abcde":
        write(tmp_path / "dist" / name)
        (tmp_path / "dist" / name / "manifest.json").unlink()
    done = epbuild(tmp_path, "verify", "dist")
    assert done.returncode == 0
    told = " ".join(done.stdout.split())
    assert "a/m_ctx.onnx, b/m_ctx.onnx, c/m_ctx.onnx and 2 more: Nothing says what the inputs" in told
    assert told.count("Nothing says what the inputs") == 1


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
        "hint": "Check the target's options; the EP ignores what it does not understand.",
    }


@pytest.mark.parametrize("path", ["gone", "empty", "notes.json"])
def test_a_path_with_nothing_to_verify_is_a_wrong_command_line(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.json").write_text("[]", encoding="utf-8")
    done = epbuild(tmp_path, "verify", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "[EPB600]" in done.stderr


def test_what_a_hostile_model_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / "dist")
    model = tmp_path / "dist" / "m_ctx.onnx"
    model.write_bytes(model.read_bytes().replace(b"m_qnn.bin", b"m\x1b[2J.bin"))
    for command in ("verify", "inspect"):
        done = epbuild(tmp_path, command, "dist")
        assert done.returncode == 1
        assert "\x1b" not in done.stdout + done.stderr
        assert "m\\x1b[2J.bin" in done.stdout


def test_an_embedded_context_is_inspected_as_one_in_a_file_is(tmp_path: Path) -> None:
    digest = hashlib.sha256(BINARY).hexdigest()
    for embed in (False, True):
        write(tmp_path / str(embed), embed=embed)
        done = epbuild(tmp_path, "inspect", f"{embed}/m_ctx.onnx")
        assert done.returncode == 0
        assert f" sha256         {digest}" in done.stdout.splitlines()
        assert " compiled for   SM8750" in done.stdout.splitlines()
        assert " the EP's own   own 3" in done.stdout.splitlines()


def test_several_models_are_inspected_together_and_what_they_share_is_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "dist")
    (folder / "second_ctx.onnx").write_bytes((folder / "m_ctx.onnx").read_bytes())
    for paths in (["dist"], ["dist/m_ctx.onnx", "dist/second_ctx.onnx"]):
        document = json.loads(epbuild(tmp_path, "inspect", *paths, "--json").stdout)
        [shared] = document["shared"]
        assert (Path(shared["file"]).name, shared["saved"], len(shared["models"])) == ("m_qnn.bin", len(BINARY), 2)
        assert "against a copy of it for each of 2 models" in " ".join(epbuild(tmp_path, "inspect", *paths).stdout.split())


def test_a_broken_model_hides_none_of_the_others_in_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "dist")
    (tmp_path / "dist" / "broken.onnx").write_bytes(b"no model")
    done = epbuild(tmp_path, "inspect", "dist")
    assert done.returncode == 1
    assert "is not a whole ONNX file" in done.stdout
    assert "EPContext n" in done.stdout
