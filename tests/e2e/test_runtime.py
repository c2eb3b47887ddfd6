"""The example application with artifacts of a real build, on the HTP emulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import RECIPES, Project, toolchain_python

ONLY_HERE = pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs contexts comes in the Linux wheel")


def classify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `recipes/classify.py` in the Python that has onnxruntime. It imports epbuild from the source tree."""
    environment = {**os.environ, "PYTHONPATH": str(RECIPES.parent), "PYTHONWARNINGS": "error::ResourceWarning"}
    return subprocess.run(
        [toolchain_python("onnxruntime-qnn"), RECIPES / "classify.py", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@ONLY_HERE
def test_the_example_classifies_an_image_with_emitted_artifacts(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", "emit:classifier/*")
    folder = quickstart.folder / "dist/quickstart/classifier"
    expected = _cpu_answer(quickstart.folder / "models/classifier/classifier.onnx")
    for soc in ("SC8380XP", "SM8750"):
        for arguments in ((folder, "--target", f"snapdragon-{soc}"), (folder / f"snapdragon-{soc}/manifest.json",)):
            done = classify(*arguments)
            assert done.returncode == 0, done.stderr
            # The EP writes on standard output too.
            assert done.stdout.splitlines()[-1] == f"snapdragon-{soc}: {expected}"
            assert "Warning" not in done.stderr


@ONLY_HERE
def test_a_variant_is_not_guessed_from_an_emulator_that_runs_any_soc(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", "emit:classifier/*")
    done = classify(quickstart.folder / "dist/quickstart/classifier")
    assert done.returncode == 1
    assert "does not know which variant fits this machine: snapdragon-SC8380XP, snapdragon-SM8750; select one" in done.stderr
    assert "Traceback" not in done.stderr


@ONLY_HERE
def test_a_shared_group_is_refused_before_the_emulator_crashes(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", "emit:decoder/snapdragon-SM8750/*")
    done = classify(quickstart.folder / "dist/quickstart/decoder")
    assert (done.returncode, done.stdout) == (1, "")
    assert "snapdragon-SM8750 has models with shared weights, and such models need a Snapdragon" in done.stderr


@ONLY_HERE
def test_a_damaged_context_is_reported_with_the_message_of_onnx_runtime(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", "emit:classifier/snapdragon-SM8750/*")
    folder = quickstart.folder / "dist/quickstart/classifier/snapdragon-SM8750"
    binary = folder / "classifier_qnn.bin"
    content = binary.read_bytes()
    binary.unlink()
    binary.write_bytes(content[: len(content) // 2])
    done = classify(folder)
    assert done.returncode == 1
    assert "classifier_ctx.onnx for snapdragon-SM8750: [ONNXRuntimeError] : 10 : INVALID_GRAPH" in done.stderr
    assert "Falling back" not in done.stdout


def _cpu_answer(model: Path) -> str:
    """Run the source model on the same image with the CPU EP, and print the result as the example does."""
    script = (
        "import sys, numpy as np, onnxruntime\n"
        "image = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)\n"
        "session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "answer = session.run(None, {'image': image})[0][0]\n"
        "print(f'class {np.argmax(answer)}, probability {np.max(answer):.3f}')\n"
    )
    command: list[str | Path] = [toolchain_python("onnxruntime-qnn"), "-I", "-c", script, model]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()
