"""Trees of outputs: planned from results alone, and equal to the files written later."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.archive.artifact import FileEntry
from epbuild.core.errors import BuildError
from epbuild.output.tree import OutputTree, plan_output
from epbuild.plan.key import compute_action_key
from epbuild.plan.outputs import PROVENANCE
from epbuild.recipe.load import load
from epbuild.survey.status import Survey
from tests.support.fake_builds import Workshop

MORE = """outputs:
  - {layout: directory, path: "dist/stated/${group}", sbom: true, provenance: true, include_source: "base/${model}.onnx"}
  - {layout: ort-model-package, path: "dist/package", sbom: true, provenance: true}
"""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def trees(workshop: Workshop, found: Survey | None = None) -> list[OutputTree]:
    """Plan the outputs of a recipe that was built, from the results that a survey found."""
    found, recipe = found or workshop.survey(), load(workshop.folder / "epbuild.yaml")
    digests = {path: sha256(path) for path in recipe.files}
    planned = []
    for emission in found.plan.emissions.values():
        made = [made for ident in emission.needs if (made := found.actions[ident].made) is not None]
        planned.append(plan_output(emission, made, recipe, digests))
    return planned


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    workshop.write_recipe(("outputs:\n", MORE))
    assert workshop.build().exit_code == 0
    return workshop


def test_planned_key_equals_the_recorded_action_key(built: Workshop) -> None:
    for tree in trees(built):
        assert tree.key == compute_action_key(dict(tree.key_document)) == built.record(tree.emission.id).action_key


def test_tree_names_exactly_the_written_files(built: Workshop) -> None:
    for tree in trees(built):
        folder = tree.emission.path
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        named = {*(file.path for file in tree.files), *(item.path for item in tree.documents)}
        assert there == named | ({PROVENANCE} if tree.emission.provenance else set())
        assert there == tree.key_document["files"].keys()


def test_planned_file_entries_equal_the_written_files(built: Workshop) -> None:
    for tree in trees(built):
        folder, entries = tree.emission.path, list[FileEntry]()
        for file in tree.files:
            path = folder / file.path
            entries.append(FileEntry(file.path, file.role, path.stat().st_size, sha256(path)))
        for item in tree.documents:
            path = folder / item.path
            assert item.document.render(entries, {}).data == path.read_bytes(), item.path
            entries.append(FileEntry(item.path, item.role, path.stat().st_size, sha256(path)))


def test_paths_that_some_systems_lack_are_refused(built: Workshop) -> None:
    refused: dict[tuple[str, ...], str] = {
        ("sub/NUL.onnx",): "EPB229 'NUL.onnx' is not a valid name on Windows",
        ("c.onnx", "A.bin", "a.bin"): "EPB422 two different files would be written to 'a.bin'",
        ("sub/c.onnx", "Sub"): "EPB422 'Sub' would be both a file and the folder of 'sub/c.onnx'",
        ("c.onnx", "Manifest.json"): "EPB422 two different files would be written to 'manifest.json'",
    }
    file, recipe, survey = built.folder / "classifier.onnx", load(built.folder / "epbuild.yaml"), built.survey()
    emission = next(each for each in survey.plan.emissions.values() if each.id.startswith("emit:classifier/"))
    made = [made for ident in emission.needs if (made := survey.actions[ident].made) is not None]
    for (model, *adapters), found in refused.items():
        part = replace(emission.parts[0], models={"classifier": model}, adapters=dict.fromkeys(adapters, file), base={})
        with pytest.raises(BuildError) as error:
            plan_output(replace(emission, parts=(part,), provenance=False, sbom=False), made, recipe, {file: sha256(file)})
        [problem] = error.value.problems
        assert (f"{problem.code} {problem.message}", problem.where) == (found, emission.id)


def test_tree_is_planned_without_result_files(built: Workshop) -> None:
    found = built.survey()
    before = [tree.key for tree in trees(built, found)]
    built.lose_blobs()
    assert [tree.key for tree in trees(built, found)] == before
