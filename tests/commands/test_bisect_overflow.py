"""Advice of `bisect` on values that overflow: the split that runs their nodes on the CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from epbuild.commands.bisect.case import Case
from epbuild.commands.bisect.overflow import advise_overflow
from epbuild.onnxfile.edit.excerpts import ModelGraph


@pytest.mark.parametrize(
    ("nodes", "named", "ends", "listed"),
    [
        ({"a": "Tanh x", "big": "Mul a up", "b": "Mul big down", "y": "Tanh b"},
         "big, b", '["a", "b"]', "`m_0`, `{model: m_1, compile: none}` and `m_2`"),
        ({"big": "Mul x up", "b": "Mul big down", "y": "Tanh b"}, "big, b", '["b"]', "`{model: m_0, compile: none}` and `m_1`"),
        ({"a": "Tanh x", "big": "Mul a up", "y": "Mul big down"}, "big, y", '["a"]', "`m_0` and `{model: m_1, compile: none}`"),
        ({"big": "Mul x up", "y": "Mul big down"}, None, None, None),
        ({"big": "Mul x up", "a": "Mul big down", "b": "Tanh a", "y": "Add big b"}, None, None, None),
    ],
    ids=["in the middle", "at the begin", "at the end", "the whole model", "around another node"],
)  # fmt: skip
def test_the_split_has_the_nodes_of_large_values(
    nodes: dict[str, str], named: str | None, ends: str, listed: str, tmp_path: Path
) -> None:
    made = [
        helper.make_node(operator, inputs, [name], name=name)
        for name, text in nodes.items()
        for operator, *inputs in [text.split()]
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])] for name in "xy"]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in (("up", 1e6), ("down", 1e-6))]
    graph = helper.make_graph(made, "graph", *ports, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    values = {"x": np.ones(2, np.float32)}
    values |= dict(zip(nodes, ReferenceEvaluator(model).run(list(nodes), values), strict=True))
    source = SimpleNamespace(name="m", prepare=[])
    prober: Any = SimpleNamespace(make_folder=lambda: tmp_path, member=SimpleNamespace(model=source))
    nothing: Any = None
    case = Case(nothing, prober, None, tmp_path, tmp_path / "model.onnx", ModelGraph(tmp_path / "model.onnx", {}))
    [first, *split] = advise_overflow(case, [*nodes].index("big"), values, 65504)
    assert first.startswith("Values above 65,504 on the CPU EP: big")
    text = (
        f"To run {named} on the CPU in float32, add `split: {{at: {ends}}}` to the model, and list it in the group as {listed}."
    )
    assert split == ([] if named is None else [text])
    source.prepare.append(SimpleNamespace(kind="split"))
    assert advise_overflow(case, [*nodes].index("big"), values, 65504) == [first]  # a part of a split model
