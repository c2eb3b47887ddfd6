"""Runs of onnxruntime-genai in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epbuild.cache.location import find_toolchain_directory
from epbuild.toolchain.provision import Requirements, provision
from tests.support.projects import toolchain_python

GENAI = ("onnxruntime==1.31.1", "onnxruntime-genai==0.18.0")
PROMPT = [5, 6, 7, 8]
_SCRIPT = """
import json, os, sys
import onnxruntime_genai as genai

folder, library, count, prompt, answer = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]), {}
try:
    if library:
        genai.register_execution_provider_library("QNNExecutionProvider", library)
    config = genai.Config(folder)
    answer["read"] = True
    if count:
        model = genai.Model(config)
        generator = genai.Generator(model, genai.GeneratorParams(model))
        generator.append_tokens(prompt)
        answer["logits"], answer["tokens"] = generator.get_logits().ravel().tolist(), []
        for _ in range(count):
            generator.generate_next_token()
            answer["tokens"].append(int(generator.get_next_tokens()[0]))
except Exception as error:
    answer["error"] = str(error)
with open(sys.argv[5], "w", encoding="utf-8") as file:
    json.dump(answer, file)
os._exit(0)
"""


def genai_python() -> Path:
    """Return a Python that has onnxruntime-genai, from the folder of all toolchains."""
    return provision(Requirements(GENAI), find_toolchain_directory(), name="genai", where=None)


def ask(
    python: Path, folder: Path, answer: Path, *, tokens: int = 0, qnn: bool = False, prompt: Sequence[int] = PROMPT
) -> dict[str, Any]:
    """Load a folder with onnxruntime-genai and generate tokens after a prompt."""
    found = [str(toolchain_python("onnxruntime-qnn")), "-c", "import onnxruntime_qnn as q; print(q.get_library_path())"]
    library = subprocess.run(found, capture_output=True, text=True, encoding="utf-8", check=True).stdout.strip() if qnn else ""
    command = [str(python), "-c", _SCRIPT, str(folder), library, str(tokens), json.dumps(prompt), str(answer)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    said: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return said
