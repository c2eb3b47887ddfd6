"""Installation that ends because its build on another machine was stopped."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

from epbuild.cluster.machine import Machine
from epbuild.cluster.request import TOOLCHAIN_KIND, ActionRequest
from epbuild.core.errors import Problem, ToolchainError
from epbuild.engine.events import EventList
from epbuild.toolchain.environment import Toolchains

ASKED = {"toolchain": {"name": "t", "where": ["epbuild.yaml", 1, 1]}, "entries": [], "records": [], "packages": {}}


class FailingToolchains(Toolchains, frozen=True):
    """Stand-in that fails as a killed uv does."""

    def prepare(self, *arguments: Any, **options: Any) -> Any:
        raise ToolchainError(Problem("EPB302", "uv failed: nothing"))


def outcome(tmp_path: Path, cancelled: threading.Event) -> str:
    machine = Machine(tmp_path, FailingToolchains(tmp_path), cast("Any", None), "m")
    return machine.execute(ActionRequest("k", "t", TOOLCHAIN_KIND, ASKED, ()), EventList(), cancelled).outcome


def test_cancelled_installation_is_not_a_refusal_of_the_machine(tmp_path: Path) -> None:
    cancelled = threading.Event()
    assert outcome(tmp_path, cancelled) == "refused"
    cancelled.set()
    assert outcome(tmp_path, cancelled) == "cancelled"
