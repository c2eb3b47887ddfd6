"""The decoder in parts: made by its export script, quantized, split, and run by onnxruntime-genai."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.genai_runs import PROMPT, ask, genai_python
from tests.support.decoder_builds import PACKAGE, write_decoder
from tests.support.projects import Project, toolchain_python

TOKENS = 8
MIN_COSINE = 0.99
"""Least cosine of the logits after the prompt, of the quantized parts on the emulator and the float source."""
SOURCE = """
import json, sys
import numpy as np
import onnxruntime

model = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
outputs = [value.name for value in model.get_outputs()]
cache = {value.name: np.zeros(value.shape, np.float32) for value in model.get_inputs() if value.name.startswith("past_")}
text, read, tokens, logits = json.loads(sys.argv[2]), 0, [], []
while len(tokens) < int(sys.argv[3]):
    positions = np.arange(read, read + len(text)).reshape(1, -1)
    found = dict(zip(outputs, model.run(None, {"input_ids": np.array([text]), "position_ids": positions, **cache})))
    cache = {name: found[name.replace("past_key_values", "present")] for name in cache}
    read += len(text)
    logits = logits or found["logits"][0, -1].tolist()
    text = [int(found["logits"][0, -1].argmax())]
    tokens += text
print(json.dumps({"tokens": tokens, "logits": logits}))
"""


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs contexts comes in the Linux wheel")
def test_a_decoder_in_parts_generates_the_tokens_of_its_source(project: Project, tmp_path: Path, decoder_store: Path) -> None:
    shutil.copytree(decoder_store, project.cache)
    write_decoder(project)
    project.build()
    package = project.folder / "dist" / PACKAGE
    folder = package / "llm/snapdragon-SM8750"
    models = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["models"]
    assert {model["name"]: (len(model["ep_context_nodes"]), model.get("compiled", True)) for model in models} == {
        "embeddings": (0, False),
        **{f"{phase}_{part}": (1, True) for phase in ("prefill", "decode") for part in range(2)},
        "lm_head": (0, False),
    }
    assert [path.name for path in sorted(folder.glob("*.bin"))] == ["prefill_0_qnn.bin", "prefill_1_qnn.bin"]
    assert project.epbuild("verify", str(package)).returncode == 0

    # The emulator crashes when it loads models that share weights.
    project.edit("share_weights: true", "share_weights: false")
    project.build()
    python, source = str(toolchain_python("onnxruntime-qnn")), tmp_path / "decoder.onnx"
    subprocess.run([sys.executable, str(project.folder / "models/llm/export.py"), str(source)], check=True)
    command = [python, "-c", SOURCE, str(source), str(PROMPT), str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    expected = json.loads(done.stdout)
    found = ask(genai_python(), folder, tmp_path / "answer.json", tokens=TOKENS, qnn=True)
    assert found.get("tokens") == expected["tokens"], found.get("error")
    ours, theirs = np.array(found["logits"][-len(expected["logits"]) :]), np.array(expected["logits"])
    assert ours @ theirs >= MIN_COSINE * np.linalg.norm(ours) * np.linalg.norm(theirs)
