"""Benchmark of large recipes: many targets, or much text."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

from results import Result
from rounds import Contender, interleave
from workshop import CHECKOUT, Workshop

_VALIDATE_LIMIT = 1.0
_PLAN_LIMIT = 1.8
_AXIS = 100
_TEXT_TARGETS = 3300

_RECIPE = """\
epbuild: 1
name: large
toolchains: {{qnn: {{packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}}}}
models: {{classifier: classifier.onnx}}
targets:
{targets}
groups: {{all: {{models: [classifier], targets: ["npu-*"]}}}}
outputs: [{{layout: directory, path: "dist/${{group}}/${{target}}"}}]
"""

_MATRIX = """\
  npu:
    matrix: {{vtcm: [{axis}], threads: [{axis}]}}
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: SM8750
      vtcm_mb: ${{matrix.vtcm}}
      num_graph_prepare_threads: ${{matrix.threads}}
"""

_TARGET = """\
  npu-{number}:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: SM8750
      htp_graph_finalization_optimization_mode: 3
      enable_htp_fp16_precision: true
      qnn_context_priority: high
      htp_performance_mode: burst
      vtcm_mb: {number}
"""


def measure(workshop: Workshop, rounds: int) -> Result:
    axis = ", ".join(map(str, range(_AXIS)))
    matrix = _write(workshop, "matrix", _MATRIX.format(axis=axis))
    text = _write(workshop, "text", "".join(_TARGET.format(number=number) for number in range(_TEXT_TARGETS)))
    commands = {
        f"validate, {_AXIS * _AXIS} targets": (workshop.epbuild("validate", matrix), _VALIDATE_LIMIT),
        f"plan, {_AXIS * _AXIS} targets": (workshop.epbuild("plan", matrix), _PLAN_LIMIT),
        "validate, a recipe of 1 MB": (workshop.epbuild("validate", text), _VALIDATE_LIMIT),
    }
    series = interleave([Contender(what, partial(workshop.seconds, command)) for what, (command, _) in commands.items()], rounds)
    size = text.stat().st_size / 1e6
    return Result(
        "How long does it take to validate and plan a very large recipe?",
        tuple(replace(one, limit=commands[one.what][1]) for one in series),
        f"The recipe of {size:.1f} MB lists {_TEXT_TARGETS} targets without a matrix. Each round reads and checks the whole "
        "recipe again, because nothing was built.",
    )


def _write(workshop: Workshop, name: str, targets: str) -> Path:
    folder = workshop.folder / name
    folder.mkdir()
    shutil.copy(CHECKOUT / "recipes/models/classifier/classifier.onnx", folder)
    recipe = folder / "epbuild.yaml"
    recipe.write_text(_RECIPE.format(targets=targets), encoding="utf-8")
    return recipe
