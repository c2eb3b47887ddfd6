"""Changes since another report or since outputs were published, by model, file, package and source."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.commands.reporting.against import read_report, with_comparison
from epbuild.commands.reporting.changes import ReportedAgainst
from epbuild.commands.reporting.report import report
from epbuild.core.errors import NothingToVerify
from epbuild.diff.facts import Incomparable
from epbuild.report.html.report_page import render_page
from epbuild.report.json.documents import build_report_document, format_json
from tests.support.fake_builds import Workshop, source_model


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    found = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    found.build()
    return found


def written_report(workshop: Workshop, name: str = "before.json") -> Path:
    """Write the current report to a file."""
    path = workshop.folder.parent / name
    document = build_report_document(report(workshop.request))
    path.write_text(format_json(document) if path.suffix == ".json" else render_page(document), encoding="utf-8")
    return path


def compared(workshop: Workshop, path: Path) -> ReportedAgainst:
    found = with_comparison(report(workshop.request), path).against
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["before.json", "before.html"])
def test_comparison_with_an_equal_report_has_no_changes(workshop: Workshop, name: str) -> None:
    path = written_report(workshop, name)
    assert read_report(path) is not None
    found = compared(workshop, path)
    assert (found.kind, found.recipe, found.models, found.outputs, found.versions, found.sources) == (
        "report",
        "small",
        (),
        (),
        (),
        (),
    )


def test_comparison_names_changed_models_files_packages_and_sources(workshop: Workshop) -> None:
    path = written_report(workshop)
    (workshop.folder / "classifier.onnx").write_bytes(source_model(9.0))
    workshop.write_recipe(("models: [prefill, decode]", "models: [decode, prefill]"))
    workshop.packages = {**workshop.packages, "numpy": "2.0.0"}
    workshop.build()
    found = compared(workshop, path)
    assert [(change.toolchain, change.package, change.before, change.after) for change in found.versions] == [
        ("qnn", "numpy", None, "2.0.0")
    ]
    [source] = found.sources
    assert (source.model, source.before != source.after, source.data) == ("classifier", True, False)
    assert {change.path for change in found.outputs} == {"dist/decoder", "dist/classifier"}
    [classifier] = [change for change in found.outputs if change.path == "dist/classifier"]
    assert [file.path for file in classifier.files] == ["classifier_qnn.bin"]
    assert all(file.before != file.after for file in classifier.files)


def test_comparison_lists_added_and_removed_models(workshop: Workshop) -> None:
    path = written_report(workshop)
    workshop.write_recipe(("models: [classifier]", "models: [{name: other, model: classifier}]"))
    workshop.build()
    found = compared(workshop, path)
    changes = {change.member: (change.before is None, change.after is None) for change in found.models}
    assert changes == {"classifier": (False, True), "other": (True, False)}


def test_older_outputs_are_compared_by_their_manifests(workshop: Workshop) -> None:
    old = workshop.folder.parent / "old"
    shutil.copytree(workshop.folder / "dist", old)
    assert compared(workshop, old).models == ()
    assert compared(workshop, old).outputs == ()
    (workshop.folder / "classifier.onnx").write_bytes(source_model(9.0))
    workshop.build()
    for path in (old, old / "classifier", old / "classifier" / "manifest.json"):
        found = compared(workshop, path)
        assert (found.kind, found.recipe, found.models) == ("outputs", "small", ())
        assert [(change.path, [file.path for file in change.files]) for change in found.outputs] == [
            ("dist/classifier", ["classifier_qnn.bin"])
        ]


def test_comparison_refuses_anything_but_a_report_or_an_output(workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    folder.mkdir()
    for name, text in {
        "a.html": "<p>",
        "b.json": "{",
        "c.json": '{"steps": [], "format": 99}',
        "d.json": '{"steps": [], "format": 1}',
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(Incomparable) as refused:
            compared(workshop, tmp_path / name)
        assert refused.value.problems[0].code == "EPB630"
    for path in (folder, tmp_path / "missing"):
        with pytest.raises(NothingToVerify):
            compared(workshop, path)


@pytest.mark.parametrize("number", ["1e999", "NaN"])
def test_report_with_non_finite_numbers_is_refused(workshop: Workshop, number: str) -> None:
    path = written_report(workshop)
    text = re.sub(r'"seconds": [0-9.]+', f'"seconds": {number}', path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Incomparable, match="not finite"):
        compared(workshop, path)


def test_report_with_a_comparison_can_be_compared_again(workshop: Workshop) -> None:
    path = written_report(workshop)
    document = build_report_document(with_comparison(report(workshop.request), path))
    path.write_text(json.dumps(document), encoding="utf-8")
    assert replace(compared(workshop, path), made_at=None).models == ()
