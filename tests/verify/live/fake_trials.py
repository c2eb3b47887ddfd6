"""Sessions whose worker imports the onnxruntime of `tests/support/fake_sessions.py`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import epbuild
from epbuild.catalog.catalog import entry
from epbuild.plan.target import PlannedEp
from epbuild.recipe.model import DeviceChoice
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.process import Ending, supervise
from epbuild.verify.live.worker import Session
from tests.support.fake_sessions import write_package

QNN = "QNNExecutionProvider"
_WORKER = Path(epbuild.__file__).parent / "worker" / "load.py"


def fake_worker(folder: Path) -> None:
    """Write `worker.py` into a folder: the worker with the fake in place of onnxruntime."""
    write_package(folder / "packages")
    script = folder / "worker.py"
    code = f"""
        import runpy, sys
        sys.path.insert(0, {str(folder / "packages")!r})
        runpy.run_path({str(_WORKER)!r}, run_name="__main__")
    """
    script.write_text(textwrap.dedent(code), encoding="utf-8")


def planned(**changes: Any) -> PlannedEp:
    """Return QNN without any known limitation."""
    known = replace(entry(QNN), cannot=())
    options = {"backend_type": "htp"}
    ep = PlannedEp(known, DeviceChoice(), options, files={}, library=Path("qnn.so"), unkeyed=frozenset())
    return replace(ep, **changes)


def environment(script: Path) -> Environment:
    """Return the Python of the tests as an environment that runs a script in place of the worker."""

    def run_worker(command: Sequence[str], folder: Path, log: Path, **options: Any) -> Ending:
        return supervise([command[0], "-I", str(script), command[-1]], folder, log, **options)

    packages = {"onnxruntime": "1.99.0"}
    prints = Fingerprint("cpython-3.11", "linux-x86_64", packages, {})
    return Environment("qnn", Path(sys.executable), prints, Path("none"), run_worker=run_worker)


def session(folder: Path, *eps: PlannedEp, timeout: float | None = 60) -> Session:
    """Return a session with the worker that `fake_worker` wrote into a folder."""
    return Session(environment(folder / "worker.py"), eps or (planned(),), timeout=timeout)
