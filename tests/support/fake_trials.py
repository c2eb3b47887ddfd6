"""Sessions in a worker that meets an onnxruntime whose models say how they behave: see tests/support/fake_sessions.py."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import epbuild
from epbuild.catalog.catalog import entry
from epbuild.plan.target import PlannedEp
from epbuild.recipe.model import DeviceChoice
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.verify.live.worker import Session

QNN = "QNNExecutionProvider"
_FAKE = Path(__file__).with_name("fake_sessions.py")
_WORKER = Path(epbuild.__file__).parent / "compile" / "worker" / "load.py"


def fake_worker(folder: Path) -> Path:
    """A script in a folder that is the worker, with the fake in place of onnxruntime."""
    specification = importlib.util.spec_from_file_location("fake_sessions", _FAKE)
    assert specification is not None
    assert specification.loader is not None
    fake = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(fake)
    fake.write_package(folder / "packages")
    script = folder / "worker.py"
    code = f"""
        import runpy, sys
        sys.path.insert(0, {str(folder / "packages")!r})
        runpy.run_path({str(_WORKER)!r}, run_name="__main__")
    """
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    return script


def planned(**changes: Any) -> PlannedEp:
    """QNN, of which nothing is known that it could not do."""
    known = replace(entry(QNN), cannot=())
    options = {"backend_type": "htp"}
    ep = PlannedEp(known, DeviceChoice(), options, files={}, library=Path("qnn.so"), silent=frozenset())
    return replace(ep, **changes)


def session(*eps: PlannedEp, timeout: float | None = 60) -> Session:
    """A session in this very Python."""
    packages = {"onnxruntime": "1.99.0"}
    environment = Environment("qnn", Path(sys.executable), Fingerprint("", "", packages, {}, ""), Path("none"))
    return Session(environment, eps or (planned(),), timeout=timeout)
