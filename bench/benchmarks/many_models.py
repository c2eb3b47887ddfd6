"""Benchmark of how the time of each command grows with the number of models."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from many import MEMBERS, write_project
from results import Result, Series
from rounds import Contender, interleave
from standin import make_toolchain
from workshop import SCRIPTS, Workshop

from epbuild.core.digest import hash_bytes

COUNTS = (248, 1_000, 4_000)
"""Numbers of models, all divisible by the size of a group."""
_ROUNDS = 2
"""Maximum number of rounds. A round takes minutes."""
GROWTH = 4.8
"""Limit of the time of 4,000 models as a multiple of that of 1,000, without the start: 4, and a fifth for noise."""


@dataclass(frozen=True)
class Measured:
    """Command in a folder. `codes` are its valid exit codes, and `before` reverts what the command changes."""

    what: str
    arguments: Sequence[str]
    folder: Path
    codes: Sequence[int] = (0,)
    before: Callable[[], object] = lambda: None


def measure(workshop: Workshop, rounds: int) -> Result:
    interpreter = make_toolchain(workshop.folder / "standin")
    contenders = [Contender("epbuild --version", lambda: workshop.seconds(workshop.epbuild("--version")))]
    for count in COUNTS:
        own = workshop.inner(str(count))
        for make in (_of_folders, _of_project, _of_outputs, _of_store):
            contenders += [_contender(own, item, count) for item in make(own, count, interpreter)]
    begin, *found = interleave(contenders, min(rounds, _ROUNDS))
    by_name = {series.what: series for series in found}
    return Result(
        "How does the time of each command grow with the number of models?",
        (begin, *(_limited(series, by_name, begin) for series in found)),
        f"At {COUNTS[-1]} models, a command may take {GROWTH} x its time at {COUNTS[-2]} models, plus its start. The folders "
        f"have no names in common and no manifests. The project has groups of {MEMBERS} models that share weights, built by a "
        "stand-in for ONNX Runtime. The commands for outputs use a project with as many outputs of one group, all in one "
        "folder.",
    )


def _limited(series: Series, found: dict[str, Series], start: Series) -> Series:
    """Return a series, with a limit if it is one of those with the most models."""
    what, _, count = series.what.rpartition(", ")
    if int(count) != COUNTS[-1]:
        return series
    return replace(series, limit=GROWTH * found[f"{what}, {COUNTS[-2]}"].median + start.median)


def _contender(workshop: Workshop, item: Measured, count: int) -> Contender:
    def sample() -> float:
        item.before()
        return workshop.seconds(workshop.epbuild(*item.arguments), item.folder, codes=item.codes)

    return Contender(f"{item.what}, {count}", sample)


def _of_folders(workshop: Workshop, count: int, _: Path) -> list[Measured]:
    """Return the commands that read folders of models."""
    folder = workshop.folder / f"models-{count}"
    workshop.seconds([sys.executable, SCRIPTS / "make_context_models.py", folder, str(count)])

    def removed(name: str) -> Callable[[], object]:
        return partial(shutil.rmtree, folder / name, ignore_errors=True)

    models = [f"a/a{number}.onnx" for number in range(count)]
    alike = [f"c/c{number}/c{number}.onnx" for number in range(count)]
    chain = [text for number in range(1, count) for text in ("-c", f"a{number - 1}.y_a{number - 1}=a{number}.x_a{number}")]
    return [
        Measured("diff of folders", ("diff", "a", "b"), folder, codes=(1,)),
        Measured("relink --embed", ("relink", "--embed", "-o", "embedded", "a"), folder, before=removed("embedded")),
        Measured("relink, refused", ("relink", "--binary", "all.bin", "-o", "refused", "a"), folder, codes=(2,)),
        Measured("merge", ("merge", "-o", "merged/all.onnx", *models), folder, before=removed("merged")),
        Measured("merge --connect", ("merge", "-o", "merged/all.onnx", *models, *chain), folder, before=removed("merged")),
        Measured("merge, one name", ("merge", "-o", "merged/all.onnx", *alike), folder, before=removed("merged")),
        Measured("verify of a folder", ("verify", "a"), folder),
        Measured("inspect of a folder", ("inspect", "a"), folder),
    ]


def _of_project(workshop: Workshop, count: int, interpreter: Path) -> list[Measured]:
    """Return the commands that read a recipe or its outputs."""
    folder = workshop.folder / f"project-{count}"
    write_project(workshop, folder, count // MEMBERS, interpreter)
    workshop.seconds(workshop.epbuild("run"), folder)
    first = folder / "first.yaml"
    return [
        Measured("validate", ("validate",), folder),
        Measured("plan", ("plan",), folder),
        Measured("explain '*'", ("explain", "epbuild.yaml", "*"), folder),
        Measured("log", ("log",), folder),
        Measured("coverage", ("coverage",), folder),
        Measured("verify", ("verify", "dist"), folder, codes=(0, 1)),  # contexts of the stand-in name no target
        Measured("inspect", ("inspect", "dist"), folder),
        Measured("diff", ("diff", "dist", "dist"), folder),
        Measured("init", _init(folder, first), folder, before=partial(first.unlink, missing_ok=True)),
        Measured("schema", ("schema",), folder),
        Measured("cache", ("cache",), folder),
        Measured("cache verify", ("cache", "verify"), folder),
        Measured("gc -n", ("gc", "-n"), folder),
    ]


def _init(folder: Path, recipe: Path) -> Sequence[str]:
    groups = sorted(str(path.relative_to(folder)) for path in (folder / "models").iterdir())
    return "init", *groups, "--ep", "qnn", "--soc", "SM8750", "-o", recipe.name


def _of_outputs(workshop: Workshop, count: int, interpreter: Path) -> list[Measured]:
    """Return the commands that write and remove outputs: many outputs of one model, all in one folder."""
    folder = workshop.folder / f"outputs-{count}"
    write_project(workshop, folder, 1, interpreter)
    recipe = folder / "epbuild.yaml"
    shared, _, _ = recipe.read_text(encoding="utf-8").partition("outputs:\n")
    outputs = "".join(f'  - {{layout: directory, path: "dist/{number}"}}\n' for number in range(count))
    recipe.write_text(f"{shared}outputs:\n{outputs}", encoding="utf-8")
    run, clean = (partial(workshop.seconds, workshop.epbuild(command), folder) for command in ("run", "clean"))
    return [
        Measured("clean of outputs", ("clean",), folder, before=run),
        Measured("run of outputs", ("run",), folder, before=clean),
    ]


def _of_store(workshop: Workshop, count: int, _: Path) -> list[Measured]:
    """Return the commands that read a store, which has this many unused remote models or damaged blobs."""
    folder = workshop.cache
    names = [hash_bytes(str(number)) for number in range(count)]

    def unused() -> None:
        for name in names:
            place = folder / "remote" / name
            place.mkdir(parents=True)
            (place / "model.onnx").write_bytes(b"model")
            os.utime(place, (0, 0))

    def damaged() -> None:
        for name in names:
            place = folder / "cas" / "sha256" / name[:2] / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"damaged")

    return [
        Measured("gc of remote models", ("gc",), workshop.folder, before=unused),
        Measured("cache verify, damaged", ("cache", "verify"), workshop.folder, codes=(1,), before=damaged),
    ]
