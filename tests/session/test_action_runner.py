"""Choice of the machine for an action: this one, another one, or none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epbuild.core.digest import Blob
from epbuild.core.errors import BuildError
from epbuild.engine.loop import IdleActions
from epbuild.engine.scheduler import Cost, Runnable
from epbuild.plan.made import KeyedAction
from epbuild.plan.result import CompileResult, Measurements
from epbuild.session.execution import ActionRunner, MissingResultError, NewResult
from epbuild.session.remote_build import RemoteResult
from epbuild.toolchain.execution import Execution
from tests.support.fake_builds import sharing_group

GROUP = sharing_group("prefill", "decode")
SUBJECT = KeyedAction(GROUP, "k", {}, ())
EXPECTED = Runnable(GROUP.id, (), Cost(1.0, measured=False), 0)
RESULT = CompileResult({}, Blob("ab" * 32, 3), Measurements(1.0, {}, None), ())


class OpenedError(Exception):
    """Error: this machine opened an execution."""


class Here:
    idle = IdleActions()

    def open(self, subject: KeyedAction, part: str = "") -> AbstractContextManager[Execution]:
        raise OpenedError(part)


class Machines:
    """Remote machines with one answer."""

    def __init__(self, answer: RemoteResult | None, *, takes: bool = True) -> None:
        self.answer = answer
        self._takes = takes
        self.asked: list[str] = []

    def runs(self, action: object) -> bool:
        return self._takes

    def run(self, subject: KeyedAction, expected: Runnable, idle: IdleActions) -> RemoteResult | None:
        self.asked.append(subject.key)
        return self.answer


def runner(machines: Machines) -> ActionRunner:
    return ActionRunner(elsewhere=machines)  # type: ignore[arg-type]


def answer(result: Mapping[str, Any], *, is_new: bool = True) -> RemoteResult:
    return RemoteResult(result, "builder", is_new)


def run(machines: Machines) -> NewResult:
    return runner(machines).run(SUBJECT, EXPECTED, Here())  # type: ignore[arg-type]


@pytest.mark.parametrize("is_new", [True, False])
def test_the_result_of_another_machine_is_built_or_restored(is_new: bool) -> None:
    found = run(Machines(answer(msgspec.to_builtins(RESULT), is_new=is_new)))
    assert found == (RESULT, "built" if is_new else "restored", "builder")


def test_an_invalid_record_of_another_machine_is_refused() -> None:
    with pytest.raises(BuildError) as failure:
        run(Machines(answer({"models": 7})))
    assert [problem.code for problem in failure.value.problems] == ["EPB537"]


def test_an_action_runs_here_if_no_other_machine_accepts_the_action() -> None:
    machines = Machines(None, takes=False)
    with pytest.raises(OpenedError):
        run(machines)
    assert machines.asked == []


def test_an_action_runs_here_if_the_machines_turn_out_unfit(tmp_path: Path) -> None:
    machines = Machines(None)
    with pytest.raises(OpenedError):
        run(machines)
    assert machines.asked == ["k"]


def test_without_compiling_no_action_is_sent_to_other_machines() -> None:
    machines = Machines(None)
    never = ActionRunner(compiles=False, elsewhere=machines)  # type: ignore[arg-type]
    assert not never.is_for_others(GROUP)
    with pytest.raises(MissingResultError) as failure:
        never.check(GROUP)
    assert [problem.code for problem in failure.value.problems] == ["EPB406"]
    assert "share:decoder/npu" in str(failure.value.problems[0].hint)


def test_an_action_for_another_machine_is_not_checked_against_this_machine() -> None:
    runner(Machines(None)).check(GROUP)


def test_a_finished_result_needs_no_build() -> None:
    assert list(ActionRunner(compiles=False).finish(SUBJECT, RESULT, Here())) == []  # type: ignore[arg-type]
