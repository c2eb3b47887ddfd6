"""One context for several SoCs: every SoC is named, and sessions get no option of the compile alone."""

from __future__ import annotations

import json

import pytest

from tests.e2e.ort_package import open_package
from tests.support.projects import Project
from tests.support.quick_builds import write_project


@pytest.fixture
def built(project: Project) -> Project:
    write_project(project)
    project.edit("soc_model: SM8750", 'soc_model: "SM8750,SC8380XP"')
    project.edit('path: "dist/${group}"}', 'path: "dist/${group}"}\n  - {layout: ort-model-package, path: dist/all.ortpackage}')
    project.build()
    return project


def test_no_session_receives_the_list_of_socs(built: Project) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (built.folder / "dist").rglob("*.json")]
    assert len(texts) > 3
    for text in texts:
        assert "soc_model" not in json.loads(text).get("target", {}).get("eps", [{}])[0].get("provider_options", {})
        assert "SM8750,SC8380XP" not in text
    # Its device on x86-64 is a CPU: the package opens, and offers all variants.
    assert open_package(built.folder / "dist/all.ortpackage", sessions=False)["error"] is None


def test_every_soc_is_named_and_compared_with_the_model(built: Project) -> None:
    found = json.loads(built.epbuild("inspect", "dist/left/left_ctx.onnx", "--json").stdout)
    assert found["ep_context_nodes"][0]["target"] == "SC8380XP,SM8750"
    verified = built.epbuild("verify", "dist/left", "--load", "--json")
    findings = [finding for finding in json.loads(verified.stdout)["findings"] if finding["check"] in ("target", "load")]
    assert verified.returncode == 0, verified.stdout
    assert [(finding["check"], finding["outcome"]) for finding in findings] == [("target", "passed"), ("load", "skipped")]
    assert "compiled for several SoCs" in findings[1]["message"]


def test_every_soc_of_an_embedded_context_is_named_too(project: Project) -> None:
    write_project(project)
    project.edit("soc_model: SM8750", 'soc_model: "SM8750,SC8380XP"')
    project.edit("models: [left], targets: [npu]", "models: [left], targets: [npu], compile: {embed: true}")
    project.build()
    found = json.loads(project.epbuild("inspect", "dist/left/left_ctx.onnx", "--json").stdout)
    assert found["ep_context_nodes"][0]["target"] == "SC8380XP,SM8750"
    verified = project.epbuild("verify", "dist/left")
    assert verified.returncode == 0, verified.stdout


def test_a_context_for_other_socs_than_its_model_fails_verification(built: Project) -> None:
    built.build("--set", "vars.quality=1")
    context = built.folder / "dist/left/left_qnn.bin"
    context.write_bytes(context.read_bytes().replace(b"soc_type=SM8750", b"soc_type=SM8650"))
    failed = built.epbuild("verify", "dist/left")
    assert failed.returncode == 1
    assert "compiled for SC8380XP,SM8650, not for SM8750,SC8380XP" in " ".join(failed.stdout.split())
