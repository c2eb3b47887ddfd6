"""What epbuild adds to a compile, when nothing is there but the toolchain."""

from __future__ import annotations

import filecmp
import shutil
from dataclasses import replace
from pathlib import Path

from project import PACKAGES, SOC, Project
from results import Result
from rounds import Contender, interleave
from workshop import SCRIPTS, Unable, Workshop

FACTOR = 1.2
ALLOWANCE = 0.6
_SIDE = 2048  # 4 layers x 2048 x 2048 x 4 bytes are 64 MB
_NUMBER = {"SM8750": "69"}  # what QNN calls the SoC


def measure(workshop: Workshop, rounds: int) -> Result:
    project = Project(workshop, "cold", side=_SIDE)
    interpreter = workshop.provision(PACKAGES)
    # The source is given by the name that epbuild gives it, since QNN hashes that into its output: so both must write the same bytes.
    bare = workshop.folder / "bare"
    source, output = Path("in/model/model.onnx"), Path("out/model_ctx.onnx")

    def with_epbuild() -> float:
        project.reset()
        return workshop.seconds(workshop.epbuild("run", project.recipe))

    def by_hand() -> float:
        shutil.rmtree(bare, ignore_errors=True)
        for path in (source, output):
            (bare / path).parent.mkdir(parents=True)
        shutil.copyfile(project.model, bare / source)
        return workshop.seconds([interpreter, "-I", SCRIPTS / "bare_compile.py", source, output, _NUMBER[SOC]], bare)

    whole, compile_only = interleave(
        [Contender("epbuild run, from nothing", with_epbuild), Contender("bare script, the same compile", by_hand)], rounds
    )
    if not filecmp.cmp(project.context_binary, bare / "out" / "model_ctx_qnn.bin", shallow=False):
        raise Unable("epbuild and the bare script wrote different context binaries, so their times cannot be compared")
    return Result(
        f"How long does it take to build a model with 64 MB of weights for {SOC}, from nothing but a toolchain?",
        (replace(whole, limit=FACTOR * compile_only.median + ALLOWANCE), compile_only),
        f"epbuild takes {whole.median / compile_only.median:.2f} times as long: it also reads the recipe and hashes the model, checks what "
        f"was made, stores it, and lays it out with a manifest. Its limit is {FACTOR} x the bare script + {ALLOWANCE} s. Both wrote the "
        "same bytes.",
    )
