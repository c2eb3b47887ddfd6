"""Probes of `bisect`: compiles of excerpts, and comparisons with the CPU EP."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.compile.alone import compile_alone
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId, VerifyError
from epbuild.core.shown import ProgressLines
from epbuild.engine.events import NoProgress
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Execution
from epbuild.verify.live.metrics import DifferentOutput, Meter
from epbuild.verify.live.session import open_target_session
from epbuild.verify.live.verdict import OutputVerdict, Rules
from epbuild.verify.live.worker import Feed, Load, Session, run_models

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

NO_NODES = "Unable to compile any nodes"
"""Part of ONNX Runtime's message about a model of which the EPs took no node."""


@dataclass
class Prober:
    """Compiler and runner of excerpts of one model, with the settings and the target of the model's compile step.

    Compiled excerpts are stored like other results, so that a repeated command does not compile them again.
    """

    group: SessionGroup
    member: Member
    step: StepId
    environment: Environment
    store: BlobStore
    scratch: Path
    lines: ProgressLines
    cancelled: threading.Event
    compiles: int = 0
    """Number of compiles so far, including those whose result was in the store."""
    _folders: int = 0

    @property
    def session(self) -> Session:
        """Session of the target's EPs."""
        return open_target_session(self.group.target, self.environment, self.group.custom_ops, self.group.timeout)

    @property
    def title(self) -> str:
        return self.group.target.title

    def make_folder(self) -> Path:
        """Return a new, empty folder."""
        self._folders += 1
        folder = self.scratch / f"{self._folders}"
        folder.mkdir()
        return folder

    def compile(self, model: Path | None, what: str) -> CompileResult:
        """Compile an excerpt, or the step's own model without sharing. `what` describes the model.

        Raises EpbuildError. `is_fault` returns whether the error is due to the model.
        """
        self.compiles += 1
        self.lines(f"compile {self.compiles}: {what}")
        member = self.member
        if model is not None:
            data = model.with_name(f"{model.name}.data")
            files = ModelFiles(model, {data.name: data} if data.is_file() else {})
            member = replace(member, compiled_from=files, input_shapes={}, inputs={}, prepared=None)
        group = replace(self.group, members=(member,), share=False, steps=(self.step,))
        folder = self.make_folder()
        (folder / "staging").mkdir()
        log = folder / "compile.log"
        execution = Execution(self.environment, folder / "staging", log, "not kept", self.store, NoProgress(), self.cancelled)
        return compile_alone(group, member, execution, self.step, what)

    def fails(self, model: Path, what: str, like: EpbuildError) -> bool:
        """Compile an excerpt. Return whether it fails like the whole model."""
        try:
            self.compile(model, what)
        except EpbuildError as error:
            if not is_fault(error):
                raise
            return takes_no_nodes(error) == takes_no_nodes(like)
        return False

    def run_compiled(self, result: CompileResult, samples: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Run a compiled model on the target's EPs. Return the outputs of each sample by name. Raises BuildError."""
        folder = self.make_folder()
        for name, digest in result.digests.items():
            self.store.materialize(digest, folder / "compiled" / name)
        model = folder / "compiled" / result.model(self.member.name).file
        return self._run(model, samples, self.session, folder, f"the compiled model cannot be run on {self.title}")

    def run_source(self, model: Path, samples: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Run a model on the CPU EP. Return the outputs of each sample by name. Raises BuildError."""
        on_cpu = replace(self.session, eps=(), options={}, variables={})
        return self._run(model, samples, on_cpu, self.make_folder(), "the CPU EP cannot run the model")

    def _run(self, model: Path, samples: Sequence[Arrays], session: Session, folder: Path, problem: str) -> list[dict[str, Any]]:
        import numpy as np

        feeds = []
        for number, arrays in enumerate(samples):
            file = folder / f"{number}.inputs.npz"
            np.savez(file, *arrays.values())
            feeds.append(Feed(file, tuple(arrays), folder / f"{number}.outputs.npz"))
        attempt = run_models([Load(self.member.name, model, feeds=tuple(feeds))], session, folder, self.cancelled)
        if attempt.failure is not None:
            raise BuildError(Problem(attempt.failure.code, f"{problem}: {attempt.failure.message}", self.step))
        found = []
        for feed, report in zip(feeds, attempt.find_reports("ran"), strict=True):
            with np.load(feed.outputs, allow_pickle=False) as arrays:
                found.append({name: arrays[f"arr_{number}"] for number, name in enumerate(report["outputs"])})
        return found


def is_fault(error: EpbuildError) -> bool:
    """Return whether a compile failed because of the model, and not because of this machine."""
    return isinstance(error, BuildError | VerifyError) and not isinstance(error, EnvironmentFailure)


def takes_no_nodes(error: EpbuildError) -> bool:
    """Return whether a compile failed because the EPs took no node."""
    return any(NO_NODES in problem.message for problem in error.problems)


def judge(names: Iterable[str], expected: Arrays, got: Arrays, rules: Rules) -> list[OutputVerdict]:
    """Judge values by the rules for outputs. A value of another shape or type fails."""
    verdicts = []
    for name in names:
        meter = Meter(name)
        try:
            meter.add(expected[name], got[name])
            verdicts.append(rules.judge(meter.figures))
        except DifferentOutput as error:
            verdicts.append(OutputVerdict(meter.figures, "failed", str(error)))
    return verdicts
