"""Benchmark of builds from nothing but a toolchain, against bare compiles."""

from __future__ import annotations

import filecmp
import shutil
import time
from dataclasses import replace
from pathlib import Path

from project import PACKAGES, SOC, Project
from results import Result, Series
from rounds import Contender, interleave
from workshop import SCRIPTS, SETTLED_SECONDS, Unable, Workshop

FACTOR = 1.05
ALLOWANCE = 0.3
PARALLEL_FACTOR = 0.65
_GROUPS = 4
_PARALLEL_MB = 256
_LAYER_MB = 16
_NUMBER = {"SM8750": "69"}  # QNN's number of the SoC
_SAME = "Both write the same bytes."


def measure(workshop: Workshop, rounds: int, *, megabytes: int) -> Result:
    """Measure one model with weights of this many MiB."""
    whole, bare = _compare(workshop, rounds, layers=megabytes // _LAYER_MB, models=1, jobs=1)
    return Result(
        f"How long does it take to build a model with {megabytes} MB of weights for {SOC}, with an empty store and an existing "
        "toolchain?",
        (replace(whole, limit=FACTOR * bare.median + ALLOWANCE), bare),
        f"epbuild takes {whole.median / bare.median:.2f} times as long: it also reads the recipe, hashes the model, and "
        f"checks, stores and emits the result with a manifest. The limit is {FACTOR} x the bare script + {ALLOWANCE} s. {_SAME}",
    )


def measure_parallel(workshop: Workshop, rounds: int) -> Result:
    """Measure four independent models."""
    whole, bare = _compare(workshop, rounds, layers=_PARALLEL_MB // _LAYER_MB, models=_GROUPS, jobs=2)
    return Result(
        f"How long does it take to build {_GROUPS} models with {_PARALLEL_MB} MB of weights each for {SOC}, two at a time?",
        (replace(whole, limit=PARALLEL_FACTOR * bare.median), bare),
        f"epbuild takes {whole.median / bare.median:.2f} times as long as a bare script that compiles them one after the other. {_SAME}",
    )


def _compare(workshop: Workshop, rounds: int, *, layers: int, models: int, jobs: int) -> tuple[Series, Series]:
    project = Project(workshop, "cold", layers=layers, models=models)
    interpreter = workshop.provision(PACKAGES)
    bare = workshop.folder / "bare"

    def with_epbuild() -> float:
        project.reset()
        time.sleep(SETTLED_SECONDS)  # the last build linked the models into its staging directory
        return workshop.seconds(workshop.epbuild("run", project.recipe, "-j", str(jobs)))

    def by_hand() -> float:
        shutil.rmtree(bare, ignore_errors=True)
        seconds = 0.0
        for name, model in project.models.items():
            # Use epbuild's name of the source. QNN hashes the name into its output, and both outputs must have equal bytes.
            source, output = Path(f"in/{name}/{name}.onnx"), Path(f"out/{name}_ctx.onnx")
            for path in (source, output):
                (bare / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model, bare / source)
            seconds += workshop.seconds([interpreter, "-I", SCRIPTS / "bare_compile.py", source, output, _NUMBER[SOC]], bare)
        return seconds

    whole, compile_only = interleave(
        [Contender(f"epbuild run -j {jobs}, empty store", with_epbuild), Contender("bare script, the same compiles", by_hand)],
        rounds,
    )
    for name in project.models:
        if not filecmp.cmp(project.context_binary(name), bare / "out" / f"{name}_ctx_qnn.bin", shallow=False):
            raise Unable("epbuild and the bare script wrote different context binaries, so their times cannot be compared")
    return whole, compile_only
