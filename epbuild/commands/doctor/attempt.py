"""Attempts with EPs: a small model compiled and opened here, as by a build."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from epbuild.cache.blobs import BlobStore
from epbuild.catalog.entries import EpEntry
from epbuild.compile.makers import maker_of
from epbuild.core.errors import EpbuildError, Position
from epbuild.engine.events import NoProgress
from epbuild.plan.planner import make_plan
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.recipe.load import load
from epbuild.recipe.model import CompileSettings, Expectation, GroupMember, GroupSpec, ModelSpec, Recipe, Reference
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Execution
from epbuild.verify.live.eps import session_of
from epbuild.verify.live.worker import Load, run_models

_NAME = "doctor"
_SECONDS = 60.0
"""How long one process may take."""


@dataclass(frozen=True)
class CompileAttempt:
    """What came of it: whether a small model was compiled and then opened here, and why not."""

    target: str
    """What it was compiled for, by the recipe's name, or as the catalog has an example."""
    seconds: float | None = None
    """How long the compile took; None: it failed."""
    opened: bool = False
    why: str = ""
    """Why it could not be compiled, or not be opened, as a clause."""
    hint: str | None = None


def attempt_target(recipe: Recipe, target: str, environment: Environment, scratch: Path) -> CompileAttempt:
    """Compile and open small models for a target of a recipe: one of floats, and where that fails, a quantised one."""
    where = Position(str(recipe.file), 1, 1)
    member = GroupMember(_NAME, Reference(_NAME, where), CompileSettings(), Expectation(fallback_nodes="any"))
    group = GroupSpec(_NAME, where, (member,), (Reference(target, where),), share_weights=False)

    def plan_of(model: Path) -> Plan:
        return make_plan(
            replace(recipe, models={_NAME: ModelSpec(_NAME, where, str(model), where)}, groups={_NAME: group}, outputs=())
        )

    return _first_success(target, plan_of, environment, scratch)


def attempt_entry(entry: EpEntry, environment: Environment, scratch: Path) -> CompileAttempt | None:
    """The same for an EP without a recipe, as `epbuild init` would write one; None for an EP that it knows no start for."""
    start = entry.start
    if start is None:
        return None
    device = {**start.device, **({"metadata": {start.metadata: start.example}} if start.metadata else {})}
    options = {**start.options, **({start.option: start.example} if start.option else {})}
    document = {
        "epbuild": 1,
        "name": _NAME,
        "toolchains": {_NAME: {"interpreter": str(environment.interpreter)}},
        "models": {_NAME: "model.onnx"},
        "targets": {
            _NAME: {
                "toolchain": _NAME,
                "ep": entry.ep,
                **({"device": device} if device else {}),
                **({"provider_options": options} if options else {}),
            }
        },
        "groups": {_NAME: {"models": [_NAME], "targets": [_NAME]}},
        "outputs": [{"layout": "directory", "path": "dist"}],
    }
    import yaml

    file = scratch / "epbuild.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return replace(attempt_target(load(file), _NAME, environment, scratch), target=start.example)


def _first_success(target: str, plan_of: Callable[[Path], Plan], environment: Environment, scratch: Path) -> CompileAttempt:
    attempts = []
    for name, model in _models():
        place = scratch / name
        place.mkdir()
        (place / "model.onnx").write_bytes(model)
        attempts.append(_attempt(target, plan_of(place / "model.onnx"), environment, place))
        if attempts[-1].seconds is not None:
            return attempts[-1]
    return attempts[0]


def _attempt(target: str, plan: Plan, environment: Environment, place: Path) -> CompileAttempt:
    (group,) = plan.session_groups.values()
    group = replace(group, timeout=_SECONDS)
    staging, opened = place / "staging", place / "opened"
    staging.mkdir()
    opened.mkdir()
    store = BlobStore(place / "store")
    execution = Execution(environment, staging, place / "log", "its log", store, NoProgress(), threading.Event())
    begin = time.monotonic()
    try:
        result = _compiled(group, execution)
    except EpbuildError as error:
        problem = error.problems[0]
        return CompileAttempt(target, why=problem.reason or problem.message, hint=problem.hint)
    seconds = time.monotonic() - begin
    for name, digest in result.digests.items():
        store.materialise(digest, opened / name)
    session = session_of(group.target, environment, group.custom_ops, _SECONDS)
    try:
        run = run_models([Load(model.member, opened / model.file) for model in result.models], session, opened)
    except EpbuildError as error:
        return CompileAttempt(target, seconds, why=error.problems[0].message)
    failure = run.failure
    return CompileAttempt(target, seconds, failure is None, failure.message.rstrip(".") if failure is not None else "")


def _compiled(group: SessionGroup, execution: Execution) -> CompileResult:
    maker = maker_of(group)
    maker.check(group)
    result: CompileResult = maker.make(group, execution)
    return result


def _models() -> Iterator[tuple[str, bytes]]:
    """Small models by what they compute in, each with sizes that are all known."""
    from onnx import TensorProto, helper

    def model(nodes: list[object], constants: list[object]) -> bytes:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
        graph = helper.make_graph(nodes, _NAME, ends[:1], ends[1:], constants)
        document = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data: bytes = document.SerializeToString()
        return data

    weights = helper.make_tensor("w", TensorProto.FLOAT, [16, 16], [0.0625] * 256)
    yield "float", model([helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])], [weights])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.05])
    zero = helper.make_tensor("z", TensorProto.UINT8, [], [128])
    steps = [
        ("x", "QuantizeLinear", "q"),
        ("q", "DequantizeLinear", "d"),
        ("r", "QuantizeLinear", "p"),
        ("p", "DequantizeLinear", "y"),
    ]
    nodes = [helper.make_node(kind, [value, "s", "z"], [to]) for value, kind, to in steps]
    yield "quantised", model([*nodes[:2], helper.make_node("Sigmoid", ["d"], ["r"]), *nodes[2:]], [scale, zero])
