"""Answers and builds after every kind of change are those of a user without a snapshot and a memo."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.cache.garbage import discard_all
from epbuild.cli.app import execute
from epbuild.recipe.load import load
from epbuild.session import snapshot
from epbuild.session.session import open_session
from epbuild.survey.snapshot import get_snapshot_path, list_snapshots, read, read_unchanged
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import EMIT_CLASSIFIER, EMIT_DECODER, SHARE, Workshop, source_model, tamper
from tests.support.moments import at_each_call

SETTLED_SECONDS = 0.12  # a little more than file systems with fine timestamps require


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Build a project, so that it has a snapshot. Its toolchain never changes."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    workshop.serve_commands(monkeypatch)
    (workshop.folder / "fingerprint.json").write_text("{}", encoding="utf-8")
    time.sleep(SETTLED_SECONDS)
    assert execute(["run", "-j1"]) == 0
    assert list_snapshots("epbuild.yaml")
    time.sleep(SETTLED_SECONDS)
    return workshop


Edit = Callable[[Workshop], object]


def rewrite(workshop: Workshop, old: str, new: str) -> None:
    text = workshop.request.recipe.read_text(encoding="utf-8")
    assert old in text
    workshop.request.recipe.write_text(text.replace(old, new), encoding="utf-8")


EDITS: dict[str, Edit] = {
    "nothing": lambda at: None,
    "a model": lambda at: (at.folder / "decode.onnx").write_bytes(source_model(7.0)),
    "a model with its old time": lambda at: tamper(at.folder / "decode.onnx", source_model(7.0)),
    "an invalid model": lambda at: (at.folder / "decode.onnx").write_bytes(b"no model"),
    "a deleted model": lambda at: (at.folder / "classifier.onnx").unlink(),
    "a touched model": lambda at: (at.folder / "decode.onnx").touch(),
    "all models": lambda at: [path.write_bytes(source_model(9.0)) for path in at.folder.glob("*.onnx")],
    "an output": lambda at: (at.output() / "prefill_ctx.onnx").write_bytes(b"mine"),
    "a deleted output": lambda at: shutil.rmtree(at.output("classifier")),
    "a manifest": lambda at: (at.output() / "manifest.json").unlink(),
    "a user file in an output": lambda at: (at.output() / "notes.txt").write_bytes(b"mine"),
    "an option": lambda at: rewrite(at, "quality: 3", "quality: 2"),
    "the recipe's name": lambda at: rewrite(at, "name: small", "name: other"),
    "the output path": lambda at: rewrite(at, "dist/", "out/"),
    "a removed group": lambda at: rewrite(at, "targets: [plain]", "targets: []"),
    "an option of one target": lambda at: rewrite(at, 'mode: "${vars.quality}"', "mode: 1"),
    "a member": lambda at: rewrite(at, "models: [classifier]", "models: [decode]"),
    "a comment": lambda at: rewrite(at, "models: {", "# a comment\nmodels: {"),
    "a new lock": lambda at: (at.folder / "epbuild.lock").write_text('epbuild-lock = 2\nrecipe = "other"\n', encoding="utf-8"),
    "the workspace state": lambda at: (at.folder / ".epbuild" / "state.sqlite").unlink(),
    "the store": lambda at: at.lose_blobs(),
    "the toolchain": lambda at: (at.folder / "fingerprint.json").write_text("{} ", encoding="utf-8"),
}
QUICK = ("nothing", "a model", "an option", "a deleted output", "the store")
by_edit = pytest.mark.parametrize("edit", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EDITS])
QUESTIONS = [
    ("plan", "--json"),
    ("plan", "--json", EMIT_CLASSIFIER),
    ("plan", "--json", "compile:decoder/*", "nothing:*"),
    ("plan", "--json", "compile:*"),
    ("run", "--check", "--json", "compile:classifier/*"),
    ("run", "--check", "--json"),
    ("run", "--dry-run"),
    ("explain", "--json", SHARE),
    ("explain", "--json", "*"),
    ("plan", "--json", "--locked"),
    ("plan", "--json", "--set", "vars.quality=1"),
]


def answered(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = execute(arguments)
    seen = capsys.readouterr()
    return code, seen.out, seen.err


@by_edit
def test_every_query_equals_its_answer_without_a_snapshot(built: Workshop, edit: str, capsys: pytest.CaptureFixture[str]) -> None:
    EDITS[edit](built)
    known = [answered(question, capsys) for question in QUESTIONS]
    shutil.rmtree(built.cache / "looks")
    for question, answer in zip(QUESTIONS, known, strict=True):
        assert answered(question, capsys) == answer, question


def events(text: str) -> list[Any]:
    """Return the events of a build sorted and without times."""
    lines = [json.loads(line) for line in text.splitlines()]
    return sorted(json.dumps({**line, "time": 0, "seconds": 0, "seconds_left": 0, "progress": None}) for line in lines)


@by_edit
def test_every_build_equals_a_build_without_a_snapshot(
    built: Workshop, edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for name, looks in (("one", True), ("two", False)):
        # Two builds start from one state. A copy is another workspace, and has no snapshot.
        kept = tmp_path / "kept"
        if looks:
            shutil.copytree(built.folder, kept, copy_function=shutil.copy2)
            shutil.copytree(built.cache, tmp_path / "kept cache")
        else:
            shutil.rmtree(built.folder / "dist", ignore_errors=True)
            for path in [*built.folder.iterdir()]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(kept, built.folder, dirs_exist_ok=True)
            discard_all(built.cache)
            shutil.copytree(tmp_path / "kept cache", built.cache)
            shutil.rmtree(built.cache / "looks")
        EDITS[edit](built)
        built.compiled.clear()
        code, out, err = answered(("run", "--json", "-j1"), capsys)
        tree = {path: path.read_bytes() for path in sorted(built.folder.glob("*/*/*")) if ".epbuild" not in path.parts}
        again = answered(("run", "--check"), capsys)
        found.append((code, events(out), err, list(built.compiled), tree, again))
        assert name
    assert found[0] == found[1]


@pytest.mark.parametrize("damage", ["truncated", "other bytes", "gone", "another's"])
def test_damaged_snapshot_is_replaced(built: Workshop, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(str(get_snapshot_path("epbuild.yaml", (), ())))
    whole = place.read_bytes()
    match damage:
        case "truncated":
            place.write_bytes(whole[: len(whole) // 2])
        case "other bytes":
            place.write_bytes(bytes(len(whole)))
        case "gone":
            place.unlink()
        case _:
            place.write_bytes(whole.replace(b"3.11", b"3.10").replace(b"3.12", b"3.10").replace(b"3.13", b"3.10"))
    assert read_unchanged("epbuild.yaml") is None
    code, out, _ = answered(("plan", "--json"), capsys)
    assert code == 0
    assert {step["state"] for step in json.loads(out)["steps"]} == {"current"}
    assert execute(["run", "-j1"]) == 0
    assert read_unchanged("epbuild.yaml") is not None


def test_snapshot_answers_without_reading_the_recipe(built: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [("plan", "--json"), ("run", "--check", "--json"), ("run", "--json"), ("plan",), ("run", "-j2")]
    with at_each_call(load, lambda call: pytest.fail("the recipe was read")):
        for question in questions:
            code, out, _ = answered(question, capsys)
            assert code == 0
            assert out
    (built.folder / "decode.onnx").write_bytes(source_model(2.5))
    read: list[object] = []
    with at_each_call(load, read.append):
        assert execute(["run", "--check"]) == 1
    assert read


def test_unchanged_files_are_known_by_the_paths_of_the_plan(built: Workshop) -> None:
    decode = built.folder / "decode.onnx"
    for recipe in (Path("epbuild.yaml"), built.folder / "epbuild.yaml", Path("..", built.folder.name, "epbuild.yaml")):
        request = replace(built.request, recipe=recipe)
        assert execute(["run", "-j1", str(recipe)]) == 0
        with open_session(request) as session:
            read = {str(path) for action in session.plan.actions.values() for path in action.files}
            assert read < session.unchanged.digests.keys() == session.unchanged.stats.keys()
        decode.touch()
        assert snapshot.find_unchanged_files(request).digests.keys() == session.unchanged.digests.keys() - {
            str(recipe.parent / decode.name)
        }
        time.sleep(SETTLED_SECONDS)


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be deleted")
def test_a_deleted_working_folder_does_not_prevent_a_plan(
    built: Workshop, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = built.folder / "epbuild.yaml"
    gone = tmp_path_factory.mktemp("gone")
    monkeypatch.chdir(gone)
    gone.rmdir()
    with open_session(replace(built.request, recipe=recipe)) as session:
        assert str(recipe) in session.unchanged.digests


def test_output_written_by_a_run_is_read_again_for_the_snapshot(built: Workshop) -> None:
    (built.folder / "classifier.onnx").write_bytes(source_model(7.0))
    assert execute(["run", "-j1"]) == 0
    assert read_unchanged("epbuild.yaml") is not None
    time.sleep(SETTLED_SECONDS)
    assert execute(["run", "-j1"]) == 0
    place = Path(str(get_snapshot_path("epbuild.yaml", (), ())))
    assert list(read(str(place)).find_doubted()) == []


def test_changed_output_that_a_failed_run_left_is_found_later(built: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = built.folder / "decode.onnx", built.output() / "prefill_ctx.onnx"
    source, emitted = model.read_bytes(), output.read_bytes()
    tamper(output, bytes(len(emitted)))
    model.write_bytes(source_model(7.0))
    time.sleep(SETTLED_SECONDS)
    built.run_worker = lambda *arguments, **options: Ending("exited", 1, (), ())
    assert execute(["run", "-j1"]) == 1
    model.write_bytes(source)
    built.run_worker = built.worker
    _, out, _ = answered(("plan", "--json"), capsys)
    assert {step["id"]: step["state"] for step in json.loads(out)["steps"]}[EMIT_DECODER] == "restorable"
    assert execute(["run", "-j1"]) == 0
    assert output.read_bytes() == emitted


@pytest.mark.parametrize("moment", [snapshot.find_last_outputs, snapshot.collect_ends, snapshot.list_observed_files])
def test_overwrite_by_another_recipe_is_detected(
    moment: Callable[..., object], built: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    other = built.folder / "other.yaml"
    other.write_text(built.request.recipe.read_text(encoding="utf-8").replace("name: small", "name: other"), encoding="utf-8")
    (built.folder / "decode.onnx").write_bytes(source_model(2.5))
    late = iter(["other.yaml"])

    def publish(call: object) -> None:
        for recipe in late:
            assert execute(["run", "-j1", recipe]) == 0

    with at_each_call(moment, publish):
        assert execute(["run", "-j1"]) == 0
    assert '"other"' in (built.output() / "manifest.json").read_text(encoding="utf-8")
    _, out, _ = answered(("plan", "--json"), capsys)
    assert {step["id"]: step["state"] for step in json.loads(out)["steps"]}[EMIT_DECODER] != "current"
    assert execute(["run", "-j1"]) == 0
    assert '"small"' in (built.output() / "manifest.json").read_text(encoding="utf-8")


def test_provenance_has_the_current_text_of_the_recipe(built: Workshop) -> None:
    rewrite(built, "layout: directory, path", "layout: directory, provenance: true, path")
    assert execute(["run", "-j1"]) == 0
    before = (built.output() / "provenance.intoto.json").read_bytes()
    rewrite(built, "models: {", "# a comment\nmodels: {")
    assert execute(["run", "-j1"]) == 0
    assert (built.output() / "provenance.intoto.json").read_bytes() != before


def test_recreated_state_causes_a_full_check(built: Workshop) -> None:
    (built.folder / "decode.onnx").write_bytes(source_model(2.5))
    state = built.folder / ".epbuild" / "state.sqlite"
    assert execute(["run", "-j1"]) == 0
    assert read_unchanged("epbuild.yaml") is not None
    shutil.copy(state, state.with_name("other"))
    state.with_name("other").replace(state)
    assert read_unchanged("epbuild.yaml") is None


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_snapshot_writable_by_other_users_is_ignored(built: Workshop) -> None:
    place = Path(str(get_snapshot_path("epbuild.yaml", (), ())))
    assert read_unchanged("epbuild.yaml") is not None
    place.chmod(0o620)
    assert read_unchanged("epbuild.yaml") is None
