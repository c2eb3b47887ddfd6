"""Pending requests: their states while a thread waits, and machines that refuse some."""

from __future__ import annotations

from epbuild.cluster.placement import Placement
from epbuild.cluster.protocol import MachineReply, PendingRequest, ToolchainDenyList, decode_error, read_reply
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId, StoreError, ToolchainError
from epbuild.engine.events import EventList, StepOutput


def pending() -> tuple[PendingRequest, EventList]:
    events = EventList()
    return PendingRequest("compile:m", Placement(frozenset()), events), events


def test_replacement_machine_is_reported_and_a_second_loss_is_an_error() -> None:
    request, events = pending()
    request.begin("a", "tcp://a:1")
    request.begin("a", "tcp://a:1")
    request.begin("b", "tcp://b:1")
    assert events == [StepOutput("compile:m", "a disconnected; b takes over")]
    assert not request.changed.is_set()
    request.begin("a", "tcp://a:2")  # which was started again
    assert request.changed.is_set()
    assert type(request.error) is BuildError
    assert "the action was lost: 2 machines disconnected while executing it: a, b" in str(request.error)


def test_received_reply_is_not_replaced_by_an_error() -> None:
    request, _ = pending()
    request.changed.set()
    request.fail(BuildError(Problem("EPB534", "too late")))
    assert request.error is None


def test_final_error_is_not_replaced_by_the_cancelled_task() -> None:
    def cancelled() -> MachineReply:
        raise BuildError(Problem("EPB535", "cancelled"))

    request, _ = pending()
    request.fail(BuildError(Problem("EPB539", "nobody offers it")))
    request.finish(cancelled)
    assert "nobody offers it" in str(request.error)


def refusal(machine: str, message: str = "the disk is full") -> MachineReply:
    return MachineReply.failure("refused", machine, StoreError(Problem("EPB503", message, StepId("compile:m"), "Free some.")))


def test_refusal_is_reported_once_for_each_machine_and_toolchain() -> None:
    refusals = ToolchainDenyList()
    first = refusals.add("qnn", refusal("a"))
    assert first is not None
    assert (first.code, first.message) == ("EPB541", "a cannot provide toolchain 'qnn': the disk is full")
    assert refusals.add("qnn", refusal("a")) is None
    assert refusals.add("openvino", refusal("a")) is not None
    assert refusals.add("qnn", refusal("b")) is not None
    assert refusals.list_machines("qnn") == {"a", "b"}
    assert refusals.list_machines("other") == frozenset()


def test_last_refusal_belongs_to_the_step_that_reports_the_refusal() -> None:
    refusals = ToolchainDenyList()
    refusals.add("qnn", refusal("a"))
    last = refusals.find_last("qnn", "compile:n")
    assert last is not None
    error = decode_error(last)
    assert isinstance(error, StoreError)
    assert error.problems == (Problem("EPB503", "on a: the disk is full", StepId("compile:n"), "Free some."),)
    assert refusals.find_last("other", "compile:n") is None


def test_error_keeps_the_class_that_decides_the_exit_code() -> None:
    class Special(ToolchainError):
        pass

    for error, kind in ((Special, ToolchainError), (EnvironmentFailure, EnvironmentFailure), (BuildError, BuildError)):
        reply = MachineReply.failure("failed", "a", error(Problem("EPB400", "no")))
        assert type(read_reply(reply.text).to_error()) is kind
