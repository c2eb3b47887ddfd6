"""`verify` with a user's command and the real QNN EP: the command runs the compiled model in a process of its own."""

from __future__ import annotations

import json
import sys

import numpy
import pytest

from tests.support.projects import Project
from tests.support.quick_builds import RECIPE, write_project

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

SCRIPT = """\
import json, pathlib, sys
import numpy, onnxruntime, onnxruntime_qnn
given, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
facts = json.loads((given / "facts.json").read_text())
onnxruntime.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "QNNExecutionProvider"]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(devices[:1], facts["eps"][0]["options"])
session = onnxruntime.InferenceSession(given / "model" / facts["file"], options)
for inputs in (given / "inputs").iterdir():
    found = session.run(None, dict(numpy.load(inputs)))
    numpy.savez(out / inputs.name, **dict(zip([value["name"] for value in facts["outputs"]], found)))
(out / "device.txt").write_text("the emulator")
"""


def test_a_command_computes_the_same_numbers_as_epbuild(project: Project) -> None:
    write_project(project)
    numpy.savez(project.folder / "sample.npz", x=numpy.random.default_rng(0).standard_normal((1, 64)).astype(numpy.float32))
    (project.folder / "run.py").write_text(SCRIPT, encoding="utf-8")
    command = ', command: {run: [python, run.py, "${in}", "${out}"], files: [run.py]}'
    found = []
    for more in ("", command):
        verify = f"verify: {{data: sample.npz{more}}}"
        group = "  left: {models: [left], targets: [npu]"
        text = RECIPE.replace("  right: {models: [right], targets: [npu]}\n", "").replace(group, f"{group}, {verify}")
        project.recipe.write_text(text, encoding="utf-8")
        done = project.epbuild("run")
        assert done.returncode == 0, done.stdout + done.stderr
        [figures] = json.loads((project.folder / "dist/left/manifest.json").read_text(encoding="utf-8"))["models"][0]["figures"]
        found.append(figures)
    here, elsewhere = found
    assert elsewhere.pop("command_device") == "the emulator"
    assert elsewhere == here
    assert here["max_abs"] > 0
