"""Folder whose workspace has built one step, with a store that holds its result. No EP is needed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import patch

from msgspec.structs import asdict

from epbuild.cache.blobs import BlobStore
from epbuild.cache.records import ActionRecords
from epbuild.cache.roots import Roots
from epbuild.cache.state import Configuration, StepRecord
from epbuild.cache.workspace import Workspace
from epbuild.core.digest import Blob

STEP = "compile:main/phone/relu"
KEY = "ab" * 32
CONTEXT = b"what the EP compiled"
LOG = b"it said"


def fill(folder: Path) -> Path:
    """Fill the store `.cache`, and return the place of the compiled model there."""
    store = BlobStore(folder / ".cache")
    context, log = _add(store, folder, CONTEXT), _add(store, folder, LOG)
    measured = {"seconds": 1.5, "members": {"relu": 1.0}, "peak_memory": None}
    model = {
        "member": "relu",
        "source": {"inputs": [], "outputs": []},
        "file": "relu_ctx.onnx",
        "binaries": {},
        "data": [],
        "nodes": [],
        "fallback_nodes": 0,
        "compatibility": {},
    }
    result = {"artifacts": {"relu_ctx.onnx": asdict(context)}, "models": [model], "log": asdict(log), "measured": measured}
    document = {"members": [{"name": "relu"}]}
    ActionRecords(store.root).put(KEY, {"document": document, "result": result})
    # The workspace is only used with the key that lies in the store.
    with patch.dict(os.environ, EPBUILD_CACHE_DIR=str(store.root)), Workspace.open(folder / ".epbuild") as workspace:
        workspace.memory(Configuration.of(Path("epbuild.yaml"), (), {})).record_steps(
            [StepRecord(STEP, KEY, document, result, 0.0)]
        )
    Roots(store.root).register(folder / ".epbuild")
    return store.root / "cas" / "sha256" / context.digest[:2] / context.digest


def _add(store: BlobStore, folder: Path, content: bytes) -> Blob:
    path = folder / "content"
    path.write_bytes(content)
    blob = store.put(path)
    path.unlink()
    return blob


def let_time_pass(folder: Path, days: float) -> None:
    """Set the times of all files in the store so that they look unused for so long."""
    then = time.time() - days * 86400
    for path in (folder / ".cache").rglob("*"):
        os.utime(path, (then, then))
