"""`epbuild relink`: reported changes, and refused inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.context_models import compiled, files
from tests.support.commands import epbuild

pytestmark = pytest.mark.slow  # each test starts the real command


def test_a_binary_is_renamed_in_place_for_a_folder_of_models(tmp_path: Path) -> None:
    for name in ("a", "b"):
        compiled(tmp_path / f"dist/{name}.onnx", binary="ab.bin")
    done = epbuild(tmp_path, "relink", "dist", "--binary", "c/new.bin", "--in-place")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.replace("\\", "/") for line in done.stdout.splitlines()]
    assert lines == ["wrote    dist/a.onnx", "wrote    dist/b.onnx", "binary   dist/c/new.bin", "removed  dist/ab.bin"]
    assert sorted(files(tmp_path / "dist")) == ["a.onnx", "b.onnx", "c/new.bin"]


def test_a_context_is_embedded_and_extracted_at_other_paths(tmp_path: Path) -> None:
    compiled(tmp_path / "m.onnx", binary="m.bin")
    assert epbuild(tmp_path, "relink", "m.onnx", "--embed", "-o", "whole.onnx").returncode == 0
    assert epbuild(tmp_path, "relink", "whole.onnx", "--extract", "-o", "out").returncode == 0
    assert epbuild(tmp_path, "relink", "whole.onnx", "--extract", "--binary", "n.bin", "-o", "named/m.onnx").returncode == 0
    found = {name: content for name, content in files(tmp_path).items() if not name.startswith(".cache")}
    assert list(found) == ["m.bin", "m.onnx", "named/m.onnx", "named/n.bin", "out/whole.bin", "out/whole.onnx", "whole.onnx"]
    assert found["m.bin"] == found["named/n.bin"] == found["out/whole.bin"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m.onnx"], "choose what to change: --embed, --extract or --binary"),
        (["m.onnx", "--embed"], "choose where to write the result: either -o OUT or --in-place"),
        (["m.onnx", "--embed", "--in-place", "-o", "out"], "either -o OUT or --in-place"),
        (["m.onnx", "--embed", "--extract", "-o", "out"], "--embed writes no separate file"),
        (["m.onnx", "--embed", "--binary", "n.bin", "-o", "out"], "--embed writes no separate file"),
        (["m.onnx", "n.onnx", "--embed", "-o", "one.onnx"], "-o must name a folder, because there are 2 models"),
        (["--embed"], "Missing argument 'MODEL...'"),
        (["m.onnx", "--extract", "--in-place"], "[EPB620]"),
        (["empty", "--embed", "--in-place"], "no .onnx file in the folder empty. [EPB620]"),
        (["m.onnx", "--binary", "../x.bin", "--in-place"], "[EPB624]"),
        (["shared", "--embed", "--in-place"], "[EPB622]"),
    ],
)
def test_a_refused_relink_exits_with_2_and_changes_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    compiled(tmp_path / "m.onnx")
    compiled(tmp_path / "n.onnx")
    compiled(tmp_path / "shared/a.onnx", binary="s.bin")
    compiled(tmp_path / "shared/b.onnx", binary="s.bin")
    (tmp_path / "empty").mkdir()
    before = files(tmp_path)
    done = epbuild(tmp_path, "relink", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == before


def test_emitted_models_are_not_changed_in_place(tmp_path: Path) -> None:
    model = compiled(tmp_path / "dist/models/m.onnx", binary="m.bin")
    listed = [{"path": "models/m.onnx"}, {"path": "models/m.bin"}]
    (tmp_path / "dist/manifest.json").write_text(json.dumps({"format": 1, "files": listed}), encoding="utf-8")
    done = epbuild(tmp_path, "relink", str(model), "--embed", "--in-place")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the next build would undo an in-place change. Write the result to another path with -o. [EPB625]" in done.stderr
    assert epbuild(tmp_path, "relink", str(model), "--embed", "-o", "elsewhere").returncode == 0


def test_a_missing_model_is_reported_without_a_traceback(tmp_path: Path) -> None:
    done = epbuild(tmp_path, "relink", "gone.onnx", "--embed", "--in-place")
    assert (done.returncode, done.stdout) == (1, "")
    assert "gone.onnx cannot be read: " in done.stderr
    assert "[EPB600]" in done.stderr
