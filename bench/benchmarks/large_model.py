"""Benchmark of `plan` with a model close to the size limit of ONNX files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from project import Project
from results import Result
from rounds import Contender, interleave
from workshop import SCRIPTS, Workshop

FACTOR = 1.2
LIMIT_MB = 300.0
_LAYERS = 114  # of 16 MiB each: 1.91 GB; protobuf's limit is 2 GiB


def measure(workshop: Workshop, rounds: int) -> Result:
    project = Project(workshop, "large", layers=_LAYERS)
    (model,) = project.models.values()
    plan = workshop.epbuild("plan", project.recipe)
    planned, hashed = interleave(
        [
            Contender("epbuild plan", partial(workshop.seconds, plan)),
            Contender("hashing the model", partial(workshop.seconds, [sys.executable, SCRIPTS / "sha256.py", model])),
        ],
        rounds,
    )
    memory = []
    if sys.platform != "win32":  # Windows has no getrusage
        memory = interleave([Contender("epbuild plan, peak memory", _peak(workshop, project))], rounds, "MB")
    return Result(
        f"How long does it take to plan with a model of {model.stat().st_size / 1e9:.1f} GB in a single file that epbuild has "
        "not read before?",
        (replace(planned, limit=FACTOR * hashed.median), hashed, *(replace(one, limit=LIMIT_MB) for one in memory)),
        "A plan needs the model's header and its SHA-256. The file is in the page cache. For comparison, Python's "
        "hashlib.file_digest hashes it, which is faster than sha256sum.",
    )


def _peak(workshop: Workshop, project: Project) -> Callable[[], float]:
    answer = project.folder / "peak"

    def sample() -> float:
        workshop.seconds([sys.executable, SCRIPTS / "peak_memory.py", answer, "plan", project.recipe])
        return int(answer.read_text(encoding="utf-8")) / 1e6

    return sample
