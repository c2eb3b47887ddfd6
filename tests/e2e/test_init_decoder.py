"""A decoder with a key-value cache, from `init` to a checked build with the real EP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.projects import Project

MODELS = Path(__file__).parents[2] / "recipes" / "models" / "tiny-llm"


def test_init_and_run_build_prefill_and_decode_in_one_binary(project: Project) -> None:
    project.recipe.unlink(missing_ok=True)
    for name in ("decoder.onnx", "weights.bin"):
        shutil.copy(MODELS / name, project.folder / name)
    written = project.epbuild("init", "decoder.onnx", "--ep", "qnn", "--soc", "SM8750", "--output", project.recipe.name)
    assert written.returncode == 0, written.stderr
    events = project.build()
    assert {event["step"] for event in events if event["event"] == "step_finished"} >= {
        "share:decoder/SM8750",
        "verify:decoder/SM8750",
    }
    [manifest] = (project.folder / "dist").rglob("manifest.json")
    models = json.loads(manifest.read_text(encoding="utf-8"))["models"]
    assert {model["name"]: model["fallback_nodes"] for model in models} == {"prefill": 0, "decode": 0}
    assert len({*manifest.parent.glob("*.bin")}) == 1
