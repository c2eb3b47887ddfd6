"""Project with thousands of steps, built with the stand-in toolchain, and the same steps and files for other tools."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from standin import make_toolchain
from workshop import SCRIPTS, SETTLED_SECONDS, Unable, Workshop

from epbuild.core.defaults import MANIFEST
from epbuild.plan.steps import Plan
from epbuild.session.planning import read_plan
from epbuild.session.request import Request

MEMBERS = 8
"""Models in each group, which share their weights. With the share step and the emission, a group has ten steps."""
_MANY_STEPS = 20_000
_MANY_MEMBERS, _MANY_TARGETS = 98, 10
"""Models and targets of each group in the largest project. With one process per ten steps, the build would take half an hour. With one
model per step, the recipe would exceed the size limit of recipes."""

_MORE_STEPS = 2
_SOURCES_OF_A_STEP = 2

_RECIPE = """\
epbuild: 1
name: many
toolchains:
  standin: {{interpreter: "{interpreter}"}}
models:
{models}
targets:
  npu:
{target}
groups:
{groups}
outputs:
  - {{layout: directory, path: "{output}"}}
"""
_TARGET = """\
    toolchain: standin
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8750}"""
_MATRIX = """\
    matrix: {{vtcm: [{axis}]}}
    toolchain: standin
    ep: QNNExecutionProvider
    provider_options: {{backend_type: htp, soc_model: SM8750, vtcm_mb: "${{matrix.vtcm}}"}}"""


@dataclass(frozen=True)
class FileStep:
    """Step as file-based tools know it, with paths relative to the project's folder."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Many:
    """Project in `folder` with this many `files`: built, current, and with every output newer than its inputs."""

    def __init__(self, workshop: Workshop, count: int) -> None:
        """Write and build `count` steps. Raises Unable if epbuild's plan has another number of steps, or other files."""
        self.folder = workshop.folder / "many"
        self.recipe = self.folder / "epbuild.yaml"
        self.members, targets = (_MANY_MEMBERS, _MANY_TARGETS) if count > _MANY_STEPS else (MEMBERS, 1)
        self.groups = count // (self.members + _MORE_STEPS) // targets
        write_project(workshop, self.folder, self.groups, make_toolchain(workshop.folder / "standin"), self.members, targets)
        workshop.seconds(workshop.epbuild("run", "-j", str(os.cpu_count() or 1), self.recipe))
        self.steps = _file_steps(read_plan(Request(self.recipe))[1], self.folder)
        files = {path for step in self.steps for path in (*step.inputs, *step.outputs)}
        # Each step leaves one file: models, a binary and a manifest. The sources are the same for all targets.
        self.files = count + _SOURCES_OF_A_STEP * count // targets
        if (len(self.steps), len(files)) != (count, self.files):
            raise Unable(
                f"the plan has {len(self.steps)} steps and {len(files)} files; expected {count} steps and {self.files} files"
            )
        self.put_in_order()
        time.sleep(SETTLED_SECONDS)
        # Touched files are read again and then remembered. After that, nothing is left to do.
        workshop.seconds(workshop.epbuild("run", self.recipe))
        workshop.seconds(workshop.epbuild("run", self.recipe, "--check"))

    def put_in_order(self) -> None:
        """Set the time of every file to later than its inputs, because most tools compare times."""
        moment: dict[str, int] = {}
        past = time.time_ns() - 3600 * 10**9
        for step in self.steps:
            after = max(moment.setdefault(path, past) for path in step.inputs)
            moment.update(dict.fromkeys(step.outputs, after + 10**9))
        for path, time_ns in moment.items():
            os.utime(self.folder / path, ns=(time_ns, time_ns))


def write_project(
    workshop: Workshop, folder: Path, groups: int, interpreter: Path, members: int = MEMBERS, targets: int = 1
) -> None:
    """Create the folder of a project with a recipe and the models of this many groups."""
    folder.mkdir()
    files = _SOURCES_OF_A_STEP * (members + _MORE_STEPS)
    workshop.seconds([sys.executable, SCRIPTS / "make_many.py", folder / "models", str(groups), str(members), str(files)])
    (folder / "epbuild.yaml").write_text(_recipe(groups, interpreter, members, targets), encoding="utf-8")


def _recipe(groups: int, interpreter: Path, members: int, targets: int) -> str:
    axis = ", ".join(map(str, range(1, targets + 1)))
    names = {f"g{group}": [f"g{group}-m{member}" for member in range(members)] for group in range(groups)}
    return _RECIPE.format(
        interpreter=interpreter.as_posix(),
        target=_TARGET if targets == 1 else _MATRIX.format(axis=axis),
        output="dist/${group}" if targets == 1 else "dist/${group}/${target}",
        models="\n".join(f"  {model}: models/{group}/{model}.onnx" for group, models in names.items() for model in models),
        groups="\n".join(
            f"  {group}: {{models: [{', '.join(models)}], targets: [npu*], share_weights: true}}"
            for group, models in names.items()
        ),
    )


def _file_steps(plan: Plan, folder: Path) -> Sequence[FileStep]:
    """Return every step of epbuild's plan with its files. Models, shared binaries and manifests are at their emitted paths."""
    emissions = {emission.session_groups[0]: emission for emission in plan.emissions.values()}
    steps = []
    for ident, group in plan.session_groups.items():
        emission = emissions[ident]
        place = emission.path
        models = [place / emission.parts[0].models[member.name] for member in group.members]
        binaries = sorted({place / name for names in emission.parts[0].binaries.values() for name in names.values()})
        steps += [
            _step(f"{ident}-{member.name}", member.files, [model], folder)
            for member, model in zip(group.members, models, strict=True)
        ]
        steps.append(_step(ident, models, binaries, folder))
        steps.append(_step(emission.id, [*models, *binaries], [place / MANIFEST], folder))
    return steps


def _step(name: str, inputs: Sequence[Path], outputs: Sequence[Path], folder: Path) -> FileStep:
    plain = name.replace(":", "-").replace("/", "-")
    return FileStep(plain, tuple(_below(path, folder) for path in inputs), tuple(_below(path, folder) for path in outputs))


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
