"""Paths in recipes have `/` on every platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.core.errors import RecipeError
from epbuild.recipe.load import load
from tests.recipe.texts import MINIMAL, load_text, problems_of, values
from tests.support.recipe_texts import MARK, codes_and_places, places

# Every path in this recipe has a backslash.
EVERY_PATH = r"""epbuild: 1
name: tiny
catalogs: [‸cat\own.toml]
cache: {remote: ‸cache\shared}
toolchains:
  own: {interpreter: ‸C:\Python\python.exe, custom_ops: [‸ops\mine.so]}
  qnn: {python: ‸'C:\Python311\python.exe', packages: [onnxruntime-qnn==2.7.0]}
models:
  plain: ‸models\plain.onnx
  server: {path: ‸\\server\share\m.onnx, external_data: ‸models\data}
  packaged: ‸package:onnx/backend\m.onnx
  made:
    make: {run: [python, x.py, "${out}"], toolchain: qnn, files: [‸tools\*.py]}
    verify: {data: ‸inputs\*.npz}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, library: ‸libs\ep.dll}
groups:
  decoder: {models: [plain, server], targets: [npu], verify: {data: [‸a\b.npz]}}
  chat: {models: [plain], targets: [npu], genai: {config: ‸chat\genai.json, files: [‸chat\tokens.json], roles: {prefill: plain}}}
outputs:
  - layout: directory
    path: ‸dist\${group}\${target}
    model: ‸m\${model}.onnx
    context_binary: ‸m\${ep.binary}
    include_source: ‸s\${model}.onnx
"""


def test_a_backslash_in_any_path_is_refused_with_the_path_to_write(tmp_path: Path) -> None:
    text, marks = places(EVERY_PATH)
    problems = problems_of(tmp_path, text)
    assert sorted(codes_and_places(problems)) == sorted(("EPB106", *mark) for mark in marks)
    found = {problem.text for problem in problems}
    assert r"the path 'models\plain.onnx' contains a backslash. Write 'models/plain.onnx'." in found
    assert r"the path '\\server\share\m.onnx' contains a backslash. Write '//server/share/m.onnx'." in found
    assert r"the path 'C:\Python\python.exe' contains a backslash. Write 'C:/Python/python.exe'." in found


@pytest.mark.parametrize("models", [r"‸some\*.onnx", rf"[{MARK}some\one.onnx]"])
def test_a_backslash_in_a_list_of_models_is_refused(tmp_path: Path, models: str) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "one.onnx").touch()
    text, marks = places(MINIMAL.replace("\n  prefill: prefill.onnx", f" {models}").replace("[prefill]", "[one]"))
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB106", *mark) for mark in marks]


@pytest.mark.parametrize("key", ["extends: %s", "include: [%s]"])
def test_a_backslash_in_the_path_of_another_recipe_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "base.yaml").write_text(MINIMAL, encoding="utf-8")
    text, marks = places(key % rf"{MARK}parts\base.yaml" + "\n")
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB106", *mark) for mark in marks]
    load_text(tmp_path, key % "parts/base.yaml" + "\n")


def test_a_variable_with_a_backslash_is_refused_where_it_becomes_a_path(tmp_path: Path) -> None:
    text, marks = places(
        MINIMAL.replace("prefill: p", rf"prefill: {MARK}${{vars.folder}}/p").replace("quality: 3", r"folder: a\b")
    )
    assert codes_and_places(problems_of(tmp_path, text)) == [("EPB106", *mark) for mark in marks]


def test_absolute_paths_of_windows_are_kept_with_slashes(tmp_path: Path) -> None:
    for path in ("C:/models/prefill.onnx", "//server/share/prefill.onnx"):
        recipe = load_text(tmp_path, MINIMAL.replace("prefill.onnx", path))
        assert recipe.models["prefill"].path == path


@pytest.mark.parametrize("folder", [r"C:\models", r"\\host\models"])
def test_an_environment_variable_may_be_a_path_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    for text in ("prefill: ${env.MODELS}/p.onnx", "prefill: ${vars.models}/p.onnx"):
        file = tmp_path / "epbuild.yaml"
        edited = MINIMAL.replace("prefill: prefill.onnx", text).replace("quality: 3", "models: ${env.MODELS}")
        file.write_text(edited, encoding="utf-8")
        path = load(file, environment={"MODELS": folder}).models["prefill"].path
        assert path == folder.replace("\\", "/") + "/p.onnx"


def test_a_relative_path_in_an_environment_variable_has_slashes_too(tmp_path: Path) -> None:
    file = tmp_path / "epbuild.yaml"
    file.write_text(MINIMAL.replace("prefill: p", "prefill: ${env.MODELS}/p"), encoding="utf-8")
    with pytest.raises(RecipeError, match="contains a backslash"):
        load(file, environment={"MODELS": r"a\b"})


def test_a_recipe_with_line_ends_of_windows_is_the_same_recipe(tmp_path: Path) -> None:
    text = MINIMAL + "description: |\n  one\n  two\n"
    unix, file = values(load_text(tmp_path, text)), tmp_path / "epbuild.yaml"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    assert values(load(file)) == unix
