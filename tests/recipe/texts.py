"""Recipes for the tests, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from epbuild.core.errors import Problem, RecipeError
from epbuild.recipe.load import load
from epbuild.recipe.model import Recipe

MINIMAL = """\
epbuild: 1
name: tiny
vars:
  quality: 3
toolchains:
  qnn:
    packages: [onnxruntime-qnn==2.7.0]
models:
  prefill: prefill.onnx
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
groups:
  decoder:
    models: [prefill]
    targets: [npu]
outputs:
  - layout: directory
    path: dist/${group}/${target}
"""

FULL = """\
# yaml-language-server: $schema=../schemas/recipe.schema.json
epbuild: 1
name: tiny-llm
description: The prefill and decode graphs of one small decoder, sharing one context binary per NPU.

vars:
  quality: 3

toolchains:
  qnn:
    python: "3.11"                       # any interpreter uv can find or fetch
    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]
  ryzen: {interpreter: "C:/ryzen-ai/python.exe", custom_ops: [ryzen_ops, ops/libmine.so]}

models:
  prefill: models/tiny-llm/prefill.onnx
  decode:
    path: models/tiny-llm/decode.onnx
    sha256: 3F5A000000000000000000000000000000000000000000000000000000000001

targets:
  snapdragon:
    matrix: {soc: [SC8380XP, SM8750]}    # one target per row
    toolchain: qnn
    ep: QNNExecutionProvider
    device: {type: npu, vendor: Qualcomm, metadata: {arch: "73"}, virtual: true}
    provider_options:
      backend_type: htp
      soc_model: ${matrix.soc}
      htp_graph_finalization_optimization_mode: ${vars.quality}
      enable_htp_fp16_precision: true
    session_options: {}
  strix:
    toolchain: ryzen
    ep: VitisAIExecutionProvider
    allow_unknown_options: true

groups:
  decoder:
    models: [prefill, decode]            # order is meaning
    targets: [snapdragon-*]
    share_weights: true
    compile:
      embed: false
      graph_optimization_level: disable_all
      initializers: {store: inline}
    expect: {ep_context_nodes: 1, fallback_nodes: 0}
    timeout: 90
  single:
    models: [prefill]
    targets: [strix, "*-SM8750"]
    compile: {initializers: {store: external, file: "${model}.weights", threshold: 64}}

outputs:
  - layout: directory
    path: dist/${recipe.name}/${group}/${target}
    model: ${model}_ctx.onnx
    context_binary: ${first_model}_${ep.short}.bin
  - layout: directory
    path: flat/${group}-${target}-q${vars.quality}
"""


def load_text(folder: Path, text: str | bytes, **more: Any) -> Recipe:
    """Load the recipe `text`."""
    path = folder / "epbuild.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, **more)


def problems_of(folder: Path, text: str | bytes, **more: Any) -> tuple[Problem, ...]:
    """Return the problems of the recipe `text`; empty if it is valid."""
    try:
        load_text(folder, text, **more)
    except RecipeError as error:
        return error.problems
    return ()


_OF_FILES = ("file", "files", "names", "digests", "digest", "folders", "defaults")


def values(thing: Any) -> Any:
    """Return a part of a recipe as plain data, without positions."""
    fields = thing._asdict() if hasattr(thing, "_asdict") else None
    if isinstance(thing, msgspec.Struct):
        fields = msgspec.structs.asdict(thing)
    if fields is not None:
        return {name: values(value) for name, value in fields.items() if not name.endswith("where") and name not in _OF_FILES}
    if isinstance(thing, dict):
        return {key: values(value) for key, value in thing.items()}
    if isinstance(thing, tuple | list):
        return [values(item) for item in thing]
    return thing
