"""Custom operators in a recipe: libraries by path, packages by their import names."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.recipe.load import load
from epbuild.recipe.paths import is_library_path
from tests.recipe.texts import MINIMAL, load_text, problems_of
from tests.support.recipe_texts import MARK, codes_and_places

PACKAGES = "    packages: [onnxruntime-qnn==2.7.0]\n"


def with_ops(toolchain: str) -> str:
    return MINIMAL.replace(PACKAGES, f"{PACKAGES}    custom_ops: {toolchain}\n")


@pytest.mark.parametrize(
    ("text", "library"),
    [
        *((name, False) for name in ("onnxruntime_extensions", "acme.npu.operators", "so", "größe")),
        *(
            (path, True)
            for path in ("libops.so", "libops.so.1.2", "ops.DLL", "ops.dylib", "./libops", "C:\\ops\\mine", "_ops.pyd")
        ),
    ],
)
def test_a_text_with_a_folder_or_a_librarys_suffix_is_a_path(text: str, library: bool) -> None:
    assert is_library_path(text) is library


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        (f"[{MARK}onnxruntime-extensions]", "import name of the package, such as 'onnxruntime_extensions'"),
        (f"[good, {MARK}'two words']", "Write a path that ends in .so, .dll or .dylib"),
        (f"[{MARK}1st]", "neither the path of a shared library nor the name of a Python package"),
    ],
)
def test_an_invalid_entry_is_reported_at_its_position(tmp_path: Path, ops: str, words: str) -> None:
    (problem,) = problems_of(tmp_path, with_ops(ops).replace(MARK, ""))
    line, _, _ = with_ops(ops).partition(MARK)
    assert (problem.code, problem.where.line, problem.where.column) == (  # type: ignore[union-attr]
        "EPB106",
        line.count("\n") + 1,
        len(line.rpartition("\n")[2]) + 1,
    )
    assert words in str(problem)


def test_a_variable_can_name_a_library(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, with_ops("['${vars.ops}']").replace("  quality: 3\n", "  ops: ../lib/libops.so\n"))
    assert [item.name for item in loaded.toolchains["qnn"].custom_ops] == ["../lib/libops.so"]


def test_a_library_path_is_relative_to_the_file_that_names_the_library(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "toolchains.yaml").write_text(
        f"toolchains:\n  qnn:\n{PACKAGES}    custom_ops: [libops.so, acme_ops]\n", encoding="utf-8"
    )
    text = MINIMAL.replace(f"toolchains:\n  qnn:\n{PACKAGES}", "include: [shared/toolchains.yaml]\n")
    (tmp_path / "epbuild.yaml").write_text(text, encoding="utf-8")
    assert [item.name for item in load(tmp_path / "epbuild.yaml").toolchains["qnn"].custom_ops] == [
        "shared/libops.so",
        "acme_ops",
    ]


def test_an_empty_list_is_refused(tmp_path: Path) -> None:
    assert codes_and_places(problems_of(tmp_path, with_ops("[]")))
