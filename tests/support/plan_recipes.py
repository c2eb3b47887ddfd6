"""Recipe and small models to plan."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from epbuild.core.errors import PlanError, Problem
from epbuild.plan.planner import make_plan
from epbuild.plan.preparing import Preparation, build_preparation_document
from epbuild.plan.request import compile_document
from epbuild.plan.sources import Locate
from epbuild.plan.steps import Emission, Plan, SessionGroup
from epbuild.recipe.load import load
from epbuild.toolchain.fingerprint import Fingerprint

RECIPE = """\
epbuild: 1
name: tiny
toolchains:
  qnn:
    packages: [onnxruntime-qnn==2.7.0]
  openvino:
    packages: [onnxruntime-openvino==1.24.1]
models:
  prefill: models/prefill.onnx
  decode: models/decode.onnx
  classifier: models/classifier.onnx
targets:
  phone:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: SM8750
  cpu:
    toolchain: openvino
    ep: OpenVINOExecutionProvider
    provider_options:
      device_type: CPU
groups:
  decoder:
    models: [prefill, decode]
    targets: [phone]
    share_weights: true
  vision:
    models: [classifier, prefill]
    targets: [cpu]
outputs:
  - layout: directory
    path: dist/${group}/${target}
"""
"""A sharing group of two models for one EP, and two models on their own for another; `prefill` is in both."""

TOOLCHAIN = Fingerprint(
    python="cpython-3.11",
    platform="linux-x86_64",
    distributions={"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"},
    libraries={"onnxruntime_qnn/libQnnHtp.so": "a" * 64},
).document(("onnxruntime", "onnxruntime_qnn"))


def edited(text: str, *changes: tuple[str, str]) -> str:
    """Replace each old part of `text`, which must occur once, with the new one."""
    for old, new in changes:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    return text


def write_models(folder: Path) -> None:
    """Write the models of `RECIPE`. `prefill` and `decode` have one weight in common, which `decode` keeps in `decode.bin`."""
    write_model(folder / "models" / "prefill.onnx", weights={"shared": [4], "prefill.only": [2]})
    write_model(folder / "models" / "decode.onnx", external={"shared": ("decode.bin", [4])})
    (folder / "models" / "decode.bin").write_bytes(bytes(16))
    write_model(folder / "models" / "classifier.onnx", weights={"kernel": [3]})


def write_model(
    path: Path,
    *,
    weights: dict[str, list[int]] | None = None,
    external: dict[str, tuple[str, list[int]]] | None = None,
    value: float = 0.0,
    compiled: bool = False,
    shape: Sequence[int | str | None] = (1,),
    denotation: str = "",
) -> None:
    """Write a model.

    Its `weights` have the given dims, and its `external` weights the given locations. `shape` is the shape of `x` and
    `y`, and `denotation` that of their first dimension.
    """
    tensors = [
        helper.make_tensor(name, TensorProto.FLOAT, dims, [value] * _count(dims)) for name, dims in (weights or {}).items()
    ]
    for name, (location, dims) in (external or {}).items():
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        tensors.append(tensor)
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft") if compiled else _relu()
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name in "xy"]
    for end in ends:
        end.type.tensor_type.shape.dim[0].denotation = denotation
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:], initializer=tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]).SerializeToString())


def plan_of(folder: Path, text: str = RECIPE, selection: Sequence[str] = (), locate: Locate = lambda model: None) -> Plan:
    """Plan the recipe `text` in `folder`."""
    file = folder / "epbuild.yaml"
    file.write_text(text, encoding="utf-8")
    return make_plan(load(file), selection, locate)


def problems_of(folder: Path, text: str = RECIPE, selection: Sequence[str] = ()) -> tuple[Problem, ...]:
    """Return the problems that prevent a plan of `text`. Empty if there are none."""
    try:
        plan_of(folder, text, selection)
    except PlanError as error:
        return error.problems
    return ()


def key_documents(file: Path) -> dict[str, object]:
    """Return the key document of each compile and preparation of a recipe, and the place of each output, by step.

    An action has no key document if a remote model lacks its files.
    """
    found: dict[str, object] = {}
    for ident, action in make_plan(load(file)).actions.items():
        digests = {path: path.name for path in action.files}
        if isinstance(action, SessionGroup):
            is_known = all(member.has_files for member in action.members)
            found[ident] = compile_document(action, digests, TOOLCHAIN) if is_known else None
        elif isinstance(action, Preparation):
            found[ident] = build_preparation_document(action, digests, TOOLCHAIN) if action.source is not None else None
        elif isinstance(action, Emission):
            found[ident] = action.path.relative_to(file.parent).as_posix()
    return found


def codes(problems: Sequence[Problem]) -> list[str]:
    """Return the code of each problem."""
    return [problem.code for problem in problems]


def document_of(group: SessionGroup, toolchain: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the files of a session group, and return its key document."""
    digests = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in group.files}
    return compile_document(group, digests, TOOLCHAIN if toolchain is None else toolchain)


def _count(dims: list[int]) -> int:
    count = 1
    for size in dims:
        count *= size
    return count


def _relu() -> Any:
    return helper.make_node("Relu", ["x"], ["y"])
