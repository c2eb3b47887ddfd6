"""Projects whose builds tests disturb, and views of a running build: its processes, its outputs and its store.

The project `QUICK` is built by the real QNN EP in a second. The project `STANDIN` is built without an EP.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper
from standin import make_toolchain

from tests.support import warm_start
from tests.support.projects import Project

QUALITIES = ("1", "2", "3")
"""Values of `vars.quality`. Each changes the bytes of every output."""
GROUPS = ("left", "right")
PATIENCE = 60
"""Seconds after which a wait fails its test."""
ORPHANS_END_WITHIN = 3
"""Seconds that a worker may outlive the epbuild that started it."""

RECIPE = """\
epbuild: 1
name: quick
vars: {quality: 1}
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {left: left.onnx, right: right.onnx}
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: SM8750
      htp_graph_finalization_optimization_mode: "${vars.quality}"
groups:
  left: {models: [left], targets: [npu]}
  right: {models: [right], targets: [npu]}
outputs:
  - {layout: directory, path: "dist/${group}"}
"""

COMPILES = {"compile:left/npu/left", "compile:right/npu/right"}

Process = subprocess.Popen[str] | warm_start.Fork
"""A running build."""
Contents = Mapping[str, bytes]
"""The files of an output directory, by their names in it."""


@dataclass(frozen=True)
class Subject:
    """A project for tests that disturb its builds."""

    write: Callable[[Project], Project]
    """Function that writes the recipe and its files."""
    variable: str
    """Variable of the recipe that changes the bytes of every output."""
    values: tuple[str, ...]
    outputs: tuple[str, ...]
    """Names of the output directories below `dist`."""

    def read(self, project: Project) -> dict[str, dict[str, bytes] | None]:
        """Return the content of each output directory, or None if it is absent."""
        return {name: read_folder(project.folder / "dist" / name) for name in self.outputs}


def write_project(project: Project) -> Project:
    """Write the recipe above and its two models."""
    project.folder.mkdir(exist_ok=True)
    for seed, name in enumerate(GROUPS):
        write_model(project.folder / f"{name}.onnx", seed)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


def write_standin_project(project: Project) -> Project:
    """Write the same recipe for the stand-in toolchain, with models of their own for each value."""
    project.folder.mkdir(exist_ok=True)
    for seed, name in enumerate(f"{group}-{quality}" for group in GROUPS for quality in QUALITIES):
        write_model(project.folder / f"{name}.onnx", seed)
    standin = make_toolchain(project.folder / "standin")
    text = RECIPE.replace("packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]", f'interpreter: "{standin.as_posix()}"')
    models = ", ".join(f'{group}: "{group}-${{vars.quality}}.onnx"' for group in GROUPS)
    project.recipe.write_text(text.replace("left: left.onnx, right: right.onnx", models), encoding="utf-8")
    return project


QUICK = Subject(write_project, "vars.quality", QUALITIES, GROUPS)
STANDIN = Subject(write_standin_project, "vars.quality", QUALITIES, GROUPS)


def write_model(path: Path, seed: int, width: int = 64) -> None:
    """Write a multiplication with a matrix of `width` times `width` random weights."""
    weights = numpy.random.default_rng(seed).standard_normal((width, width)).astype(numpy.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        "g",
        [value("x", TensorProto.FLOAT, [1, width])],
        [value("y", TensorProto.FLOAT, [1, width])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def move_weights(model: Path, location: str) -> None:
    """Move the weights of the model to `weights.bin` beside it, and refer to that file as `location`."""
    graph = onnx.load(model)
    onnx.save_model(graph, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = onnx.load(model, load_external_data=False)
    for entry in graph.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    onnx.save_model(graph, model)


def start(project: Project, *arguments: str, **options: Any) -> Process:
    """Start `epbuild` with these arguments. Read its output with `communicate`."""
    return warm_start.start(arguments, project.folder, project.command()[1], cold=project.cold, **options)


def wait_until(condition: Callable[[], object], within: float = PATIENCE, what: str = "it") -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"{what}: that did not happen within {within} s"
        time.sleep(0.02)


def workers(project: Project) -> list[int]:
    """Return the processes in the project's staging directories: workers and their children."""
    staging = f"{project.folder.resolve() / '.epbuild' / 'tmp'}{os.sep}"
    if sys.platform == "win32":
        return [process.pid for process in psutil.process_iter(["cwd"]) if (process.info["cwd"] or "").startswith(staging)]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = str((process / "cwd").readlink()).startswith(staging)
            # Between fork and exec, a child is still a copy of the build with its open files.
            command = (process / "cmdline").read_bytes() if inside else b""
            if inside and b"\0epbuild\0" not in command and b"warm_start.py" not in command:
                found.append(int(process.name))
        except OSError:  # it has ended, or belongs to another user; a zombie has no directory
            continue
    return found


def check_no_workers(project: Project, within: float = ORPHANS_END_WITHIN) -> None:
    wait_until(lambda: not workers(project), within)


def read_folder(folder: Path) -> dict[str, bytes] | None:
    """Return the files of an opened folder by their relative POSIX paths, even while another folder replaces it.

    Return None if there is no folder. On Windows, the folder must not be replaced meanwhile.
    """
    if sys.platform == "win32":
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths} if folder.is_dir() else None
    try:
        opened = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        found = {}
        for place, _, names, inside in os.fwalk(".", dir_fd=opened):  # the folder that was opened, wherever it is by now
            for name in names:
                try:
                    with open(os.open(name, os.O_RDONLY, dir_fd=inside), "rb") as file:  # noqa: PTH123 - relative to the open folder
                        found[Path(place, name).as_posix()] = file.read()
                except FileNotFoundError:  # the folder has been replaced and is being removed
                    continue
        return found
    finally:
        os.close(opened)


def delete_store(cache: Path) -> None:
    """Delete a store with its read-only blobs."""
    if sys.platform == "win32":
        for blob in (cache / "cas").rglob("*"):
            blob.chmod(stat.S_IWRITE)
    shutil.rmtree(cache, ignore_errors=True)


def check_blobs(cache: Path) -> None:
    for blob in (cache / "cas" / "sha256").glob("*/*"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def check_no_leftovers(project: Project, outputs: Collection[str] = GROUPS) -> None:
    """Assert that no staging directory, draft, temporary file or folder beside an output remains of killed builds."""
    dist = project.folder / "dist"
    hidden = [
        path.relative_to(dist).as_posix() for path in sorted(dist.rglob("*")) if path.relative_to(dist).parts[0] not in outputs
    ]
    places = [project.folder / ".epbuild/tmp", project.cache / "cas/tmp", project.cache / "actions/tmp"]
    places += [Path(project.environment[name]) for name in ("TMPDIR",) if name in project.environment]
    assert hidden == []
    assert [path for place in places if place.is_dir() for path in place.iterdir()] == []
