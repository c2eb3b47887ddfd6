"""One decoder file with dynamic shapes, built as quantized prefill and decode models that share a binary.

The compiled models generate the same tokens as their source.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.genai_runs import ask, genai_python
from tests.support.projects import RECIPES, Project, toolchain_python

# Weights of 8 bits and activations of 16 shift the logits by up to 5 % of the largest. After this text, the source
# prefers each of its next tokens to all others by twice that.
PROMPT = [122, 139, 144, 209]
TOKENS = 5
SOURCE_TOKENS = """
import json, sys
import numpy as np
import onnxruntime

model = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
outputs = [value.name for value in model.get_outputs()]
cache = {value.name: np.zeros((1, 4, 128, 24), np.float32) for value in model.get_inputs() if value.name.startswith("past_")}
text, tokens, read = json.loads(sys.argv[2]), [], 0
while len(tokens) < int(sys.argv[3]):
    positions = np.arange(read, read + len(text)).reshape(1, -1)
    found = dict(zip(outputs, model.run(None, {"input_ids": np.array([text]), "position_ids": positions, **cache})))
    cache = {name: found[name.replace("past", "present")] for name in cache}
    read += len(text)
    text = [int(found["logits"][0, -1].argmax())]
    tokens += text
print(json.dumps(tokens))
"""


def _llm(project: Project, *edits: tuple[str, str]) -> Path:
    """Build the checked-in recipe with some edits, and return the folder of the decoder for one SoC."""
    shutil.copytree(RECIPES / "models", project.folder / "models")
    shutil.copy(RECIPES / "llm.yaml", project.recipe)
    for old, new in (("[SC8380XP, SM8750]", "[SM8750]"), *edits):
        project.edit(old, new)
    project.build()
    return project.folder / "dist/llm.ortpackage/decoder/snapdragon-SM8750"


def test_one_decoder_at_two_sizes_compiles_to_one_binary_of_half_the_size(project: Project) -> None:
    folder = _llm(
        project, ("share_weights: true", "share_weights: true\n    expect: {shared_bytes: {min_ratio: 0.4, measure: alone}}")
    )
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", "prefill_ctx.onnx", "decode_ctx.onnx", "prefill_qnn.bin", "genai_config.json"
    }  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert [(model["name"], len(model["ep_context_nodes"]), model["fallback_nodes"]) for model in manifest["models"]] == [
        ("prefill", 1, 0),
        ("decode", 1, 0),
    ]
    assert len((RECIPES / "llm.yaml").read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs contexts comes in the Linux wheel")
def test_the_quantized_decoder_generates_the_tokens_of_its_source(project: Project, tmp_path: Path) -> None:
    # The emulator crashes when it loads models that share weights.
    folder = _llm(project, ("share_weights: true", "share_weights: false"))
    source = str(RECIPES / "models/tiny-llm/decoder.onnx")
    command = [str(toolchain_python("onnxruntime-qnn")), "-c", SOURCE_TOKENS, source, str(PROMPT), str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    found = ask(genai_python(), folder, tmp_path / "answer.json", tokens=TOKENS, qnn=True, prompt=PROMPT)
    assert found.get("tokens") == json.loads(done.stdout), found.get("error")
