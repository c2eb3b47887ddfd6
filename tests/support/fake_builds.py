"""Real builds of a small recipe with two fakes: a described toolchain, and a function as the worker.

The worker's output depends on its request and its source files. Therefore different inputs give different bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from epbuild.cache.state import Configuration, Memory, StepRecord
from epbuild.cache.workspace import Workspace
from epbuild.catalog.catalog import entry
from epbuild.commands.plan import survey
from epbuild.commands.run import run
from epbuild.core.errors import Position, Problem
from epbuild.engine.events import EventList, RunFinished, StepFailed
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import PlannedEp, PlannedTarget
from epbuild.recipe.model import CompileSettings, DeviceChoice, Expectation, ModelSpec, ToolchainSpec
from epbuild.session import request
from epbuild.session.planning import ModelFetcher
from epbuild.session.request import RemoteChoice, Request
from epbuild.survey.status import Survey
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.lock import LockedEnvironment
from epbuild.toolchain.process import Ending
from tests.support.recipe_texts import changed

QNN = "QNNExecutionProvider"
HERE = Position("epbuild.yaml", 1, 1)

RECIPE = """\
epbuild: 1
name: small
vars: {quality: 3}
toolchains:
  qnn: {packages: [onnxruntime-qnn==2.7.0]}
models: {prefill: prefill.onnx, decode: decode.onnx, classifier: classifier.onnx}
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {htp_graph_finalization_optimization_mode: "${vars.quality}"}
  plain: {toolchain: qnn, ep: QNNExecutionProvider}
groups:
  decoder:
    models: [prefill, decode]
    targets: [npu]
    share_weights: true
    expect: {ep_context_nodes: 1, fallback_nodes: 1}
  classifier:
    models: [classifier]
    targets: [plain]
    expect: {fallback_nodes: any}
outputs:
  - {layout: directory, path: "dist/${group}"}
"""

LET_THE_CPU = "    expect: {fallback_nodes: any}\n"
"""Setting that allows the classifier's Relu to fall back to the CPU."""

SHARE = "share:decoder/npu"
CLASSIFIER = "compile:classifier/plain/classifier"
EMIT_DECODER = "emit:decoder/npu/directory"
EMIT_CLASSIFIER = "emit:classifier/plain/directory"
COMPILES = ["compile:decoder/npu/prefill", "compile:decoder/npu/decode"]
STEPS = [*COMPILES, SHARE, EMIT_DECODER, CLASSIFIER, EMIT_CLASSIFIER]


def sharing_group(*names: str, timeout: float | None = None) -> SessionGroup:
    """Return a planned sharing group of the models `names`. Their files do not exist."""
    ep = PlannedEp(entry(QNN), DeviceChoice(), {}, {}, None, frozenset())
    models = [ModelSpec(name, HERE, f"{name}.onnx", HERE) for name in names]
    return SessionGroup(
        id=SHARE,
        group="decoder",
        target=PlannedTarget("npu", ToolchainSpec("qnn", HERE), (ep,), {}, {}, frozenset(), {}, ()),
        members=tuple(
            Member(model.name, model, CompileSettings(), Expectation(), ModelFiles(Path(model.path))) for model in models
        ),
        share=True,
        timeout=timeout,
        memory=None,
        steps=(*(f"compile:decoder/npu/{name}" for name in names), SHARE),
    )


def source_model(weight: float, common: float = 0.5) -> bytes:
    """Return a model with its own `weight`, and with a second weight that all models have in `common`."""
    values = {
        name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])] for name in ("x", "y")
    }  # the shape does not matter
    weights = {"w": weight, "common": common}
    tensors = [helper.make_tensor(name, TensorProto.FLOAT, [4], [value] * 4) for name, value in weights.items()]
    nodes = [helper.make_node("Add", ["x", "w"], ["z"]), helper.make_node("Add", ["z", "common"], ["y"])]
    graph = helper.make_graph(nodes, "graph", values["x"], values["y"], tensors)
    return bytes(helper.make_model(graph).SerializeToString())


def context_model(contexts: Mapping[str, str | bytes], takes: str = "x", gives: str = "y") -> Any:
    """Return an EPContext model with one node for each EP: the name of its context binary, or the context itself."""
    values = {name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])] for name in (takes, gives)}
    nodes = [
        helper.make_node(
            "EPContext",
            [takes],
            ["z"],
            domain="com.microsoft",
            name="context",
            main_context=1,
            embed_mode=int(isinstance(context, bytes)),
            source=ep,
            ep_cache_context=context,
        )
        for ep, context in contexts.items()
    ]
    nodes.append(helper.make_node("Relu", ["z"], [gives]))
    return helper.make_model(helper.make_graph(nodes, "graph", values[takes], values[gives]))


class DescribedToolchains(Toolchains, frozen=True, kw_only=True):
    """Toolchains with the packages of a workshop, whose environments run the workshop's worker."""

    workshop: Workshop

    def is_ready(self, *asked: object, **more: object) -> bool:
        return self.workshop.toolchain_is_there

    def prepare(
        self,
        toolchain: ToolchainSpec,
        base: Path,
        entries: object,
        locked: LockedEnvironment | None = None,
        packages: object = (),
        listener: object = None,
    ) -> Environment:
        return self.workshop.prepare(toolchain, locked)


class Workshop:
    """A checkout with the recipe and its models, and a cache that several checkouts may share."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache = cache
        self.compiled: list[str] = []
        self.fetcher: ModelFetcher | None = None
        self.toolchain_is_there = True
        self.remote: RemoteChoice | None = None
        self.packages = {"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"}
        folder.mkdir()
        self.write_recipe()
        for number, name in enumerate(("prefill", "decode", "classifier")):
            (folder / f"{name}.onnx").write_bytes(source_model(float(number)))
        monkeypatch.setenv("EPBUILD_CACHE_DIR", str(cache))
        self.run_worker: Callable[..., Ending] = self.worker
        """Function that runs workers in its environments."""

    def serve_commands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the command line build here with these toolchains."""
        monkeypatch.setenv("EPBUILD_CACHE_DIR", str(self.cache))
        monkeypatch.setattr(request, "list_toolchains", lambda: self.request.toolchains)
        monkeypatch.chdir(self.folder)

    def write_recipe(self, *changes: tuple[str, str]) -> None:
        (self.folder / "epbuild.yaml").write_text(changed(RECIPE, *changes), encoding="utf-8")

    @property
    def request(self) -> Request:
        return Request(
            self.folder / "epbuild.yaml",
            jobs=1,
            remote=self.remote,
            toolchains=DescribedToolchains(self.cache / "toolchains", workshop=self),
        )

    def survey(self) -> Survey:
        return survey(self.request)

    def record(self, step: str) -> StepRecord:
        """Return the workspace's record of a finished step."""
        with Workspace.open(self.folder / ".epbuild") as workspace:
            record = self.memory(workspace).step(step)
        assert record is not None
        return record

    def memory(self, workspace: Workspace) -> Memory:
        """Return the workspace's memory of the recipe as built without settings."""
        return workspace.memory(Configuration.of(self.request.recipe, (), {}))

    def states(self) -> dict[str, str]:
        return {status.step.id: status.state for status in self.survey().steps()}

    def reasons(self, step: str) -> tuple[str, ...]:
        return next(status.reasons for status in self.survey().steps() if status.step.id == step)

    def build(self, *selection: str, settings: tuple[str, ...] = (), recipe: Path | None = None) -> RunFinished:
        """Build. `compiled` then has the session groups for which a worker was started."""
        self.compiled.clear()
        self.events = EventList()
        request = replace(self.request, selection=selection, settings=settings)
        run(replace(request, recipe=recipe or request.recipe), self.events, fetcher=self.fetcher)
        [finished] = [event for event in self.events if isinstance(event, RunFinished)]
        return finished

    @property
    def problems(self) -> list[Problem]:
        return [problem for event in self.events if isinstance(event, StepFailed) for problem in event.problems]

    @property
    def failures(self) -> list[str]:
        return [problem.code for problem in self.problems]

    def output(self, group: str = "decoder") -> Path:
        return self.folder / "dist" / group

    def contents(self, group: str = "decoder") -> dict[str, bytes]:
        folder = self.output(group)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def blobs(self) -> list[Path]:
        return [path for path in (self.cache / "cas" / "sha256").rglob("*") if path.is_file()]

    def lose_blobs(self) -> None:
        for blob in self.blobs():
            blob.chmod(0o644)
            blob.unlink()

    def checkout(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
        """Copy the files to another checkout with the same cache."""
        other = Workshop(folder, self.cache, monkeypatch)
        for path in self.folder.iterdir():
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
        return other

    def prepare(self, toolchain: ToolchainSpec, locked: LockedEnvironment | None) -> Environment:
        prints = Fingerprint("cpython-3.11", "linux-x86_64", self.packages, {"onnxruntime_qnn/libQnnHtp.so": "ab" * 32})
        memory = self.folder / "fingerprint.json"
        return Environment(toolchain.name, Path(sys.executable), prints, memory, run_worker=self.run_worker)

    def worker(self, command: object, folder: Path, log: Path, **options: object) -> Ending:
        """Act as a worker process."""
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        members: list[Mapping[str, Any]] = request["members"]
        self.compiled.append("+".join(member["name"] for member in members))
        inputs = [request["eps"], *(_digest(folder / member["source"]) for member in members)]
        content = json.dumps(inputs, sort_keys=True).encode()
        compiling = [ep for ep in request["eps"] if entry(ep["name"]).sources]
        binaries = {ep["name"]: f"{members[0]['name']}_ctx_{entry(ep['name']).short}.bin" for ep in compiling}
        for member in members:
            contexts: Mapping[str, str | bytes] = dict.fromkeys(binaries, content) if member["compile"]["embed"] else binaries
            onnx.save(context_model(contexts), folder / member["output"])
            for ep, binary in binaries.items() if not member["compile"]["embed"] else ():
                (folder / "out" / binary).write_bytes(f"by {ep}: ".encode() + content)
        log.write_text(f"compiled {members[0]['name']}\n", encoding="utf-8", newline="")
        reports: list[Mapping[str, Any]] = [
            {"event": "member_finished", "member": member["name"], "seconds": 0.1} for member in members
        ]
        return Ending("exited", 0, (*reports, {"event": "finished", "peak_memory": None}), ())


def tamper(path: Path, content: bytes) -> None:
    """Change a file's content and restore its modification time."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
