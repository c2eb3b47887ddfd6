"""`epbuild diff` on artifacts of real builds that differ in the target or in the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import Project

DIST = "dist/quickstart"


def compared(project: Project, old: str | Path, new: str | Path) -> dict[str, Any]:
    done = project.epbuild("diff", str(old), str(new), "--json")
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if document["equal"] else 1)
    return document


def facts(document: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {item["what"]: (item["old"], item["new"]) for item in document["differences"]}


@pytest.mark.gate
def test_diff_names_a_changed_target_and_changed_weights(quickstart: Project) -> None:
    quickstart.build()
    for group in ("decoder", "classifier"):
        found = compared(quickstart, f"{DIST}/{group}/snapdragon-SC8380XP", f"{DIST}/{group}/snapdragon-SM8750/manifest.json")
        assert found["verdict"] == "The artifacts differ in target, context and names."
        assert found["same"] == ["graph", "weights", "settings", "toolchain"]
        assert facts(found)["QNNExecutionProvider: option soc_model"] == ("SC8380XP", "SM8750")
        assert facts(found)["name of the target"] == ("snapdragon-SC8380XP", "snapdragon-SM8750")
        models = {"decoder": ("prefill", "decode"), "classifier": ("classifier",)}[group]
        assert [facts(found)[f"{model}: compiled for"] for model in models] == [("SC8380XP", "SM8750")] * len(models)
    files = [f"{DIST}/classifier/snapdragon-{soc}/classifier_ctx.onnx" for soc in ("SC8380XP", "SM8750")]
    found = compared(quickstart, *files)
    assert found["verdict"] == "The artifacts differ in target and context."
    assert found["without_manifest"] == ["A", "B"]

    before = quickstart.folder / "before"
    shutil.copytree(quickstart.folder / DIST, before)
    assert compared(quickstart, before, DIST)["equal"]
    weights = quickstart.folder / "models/tiny-llm/weights.bin"
    content = bytearray(weights.read_bytes())
    # The exponent and sign of one float32 of the embedding.
    content[3] ^= 0x80
    weights.write_bytes(content)
    quickstart.build("epbuild.yaml", "emit:decoder/*")
    found = compared(quickstart, before / "decoder/snapdragon-SM8750", f"{DIST}/decoder/snapdragon-SM8750")
    assert found["verdict"] == "The artifacts differ in weights and context."
    assert found["same"] == ["graph", "target", "settings", "toolchain", "names"]
    assert set(facts(found)) == {
        f"{model}: {what}" for model in ("prefill", "decode") for what in ("source data weights.bin", "context")
    }
    found = compared(quickstart, before, DIST)
    assert {item["artifact"] for item in found["differences"]} == {"decoder/snapdragon-SC8380XP/", "decoder/snapdragon-SM8750/"}

    for folder in (before, quickstart.folder / DIST):
        (folder / "decoder/snapdragon-SM8750/manifest.json").unlink()
    found = compared(quickstart, before / "decoder/snapdragon-SM8750", f"{DIST}/decoder/snapdragon-SM8750")
    assert found["verdict"] == "The contexts differ because of weights, or because of options that only manifests list."
