"""The command `epbuild` in a folder with a small recipe. No EP is needed."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from epbuild.archive.artifact import Artifact
from epbuild.archive.formats import ArchiveName, write_archive
from epbuild.archive.oci import build_image
from epbuild.core.digest import Write
from tests.support import warm_start

ROOT = Path(__file__).parents[2]

RECIPE = """\
epbuild: 1
name: tiny
toolchains:
  qnn:
    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]
models:
  relu: relu.onnx
targets:
  phone:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: SM8750
groups:
  main:
    models: [relu]
    targets: [phone]
outputs:
  - layout: directory
    path: dist/${target}
"""


CHANGE_OUTPUT = {"NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"}
"""Variables that change epbuild's output and may be set where these tests run."""


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """Return the environment of `epbuild`: this source tree, a separate store, no colors and no variables of a CI service."""
    kept = {name: value for name, value in os.environ.items() if name not in CHANGE_OUTPUT}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "EPBUILD_CACHE_DIR": str(folder / ".cache"), "PYTHONUTF8": "1"}
    own |= dict.fromkeys(("XDG_CONFIG_HOME", "APPDATA"), str(folder / ".config"))
    return {**kept, **own, **changes}


def imported_by(folder: Path, *arguments: str, **changes: str) -> set[str]:
    """Run a command line that succeeds, and return the modules that it imports."""
    command = [sys.executable, "-X", "importtime", "-m", "epbuild", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder, **changes),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def epbuild(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in `folder`, without a terminal and without input."""
    return warm_start.run(arguments, folder, environment(folder, **changes), timeout=120)


def write_model(path: Path, operator: str = "Relu", domain: str = "") -> Path:
    """Write a model of one node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


def pack(folder: Path, path: Path) -> Path:
    """Pack a folder into the archive format of the file name, or into an image layout for any other name."""
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    contents = [
        Artifact(name, "manifest" if name.endswith("manifest.json") else "asset", len(data), hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    ]
    forms: dict[str, ArchiveName] = {".zip": "zip", ".zst": "tar.zst"}
    if path.suffix in forms:

        def pour(content: Artifact, write: Write) -> None:
            write(memoryview(files[content.path]))

        file = io.BytesIO()
        write_archive(forms[path.suffix], contents, pour, file)
        path.write_bytes(file.getvalue())
        return path
    made = build_image(contents, {})
    by_digest = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
    blobs = {blob.path: by_digest[blob.sha256] for blob in made.blobs}
    for name, data in {**blobs, **{document.path: document.data for document in made.documents}}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path
