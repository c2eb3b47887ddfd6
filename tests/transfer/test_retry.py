"""Retries follow the policy, and a circuit breaker opens after lasting failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from epbuild.transfer.objects import FailureKind, TransferError
from epbuild.transfer.retry import CircuitBreaker, CircuitOpenError, RetryPolicy

POLICY = RetryPolicy(pauses=(0.5, 2.0), max_pause=3.0)


def failing(*failures: TransferError) -> Callable[[], str]:
    """Return work that fails once with each of these, and then succeeds."""
    left: Iterator[TransferError] = iter(failures)

    def work() -> str:
        failure = next(left, None)
        if failure is not None:
            raise failure
        return "done"

    return work


@pytest.mark.parametrize(("asked", "expected"), [(0.0, 0.5), (1.5, 1.5), (3600.0, 3.0)])
def test_longer_pause_requested_by_a_server_is_limited(asked: float, expected: float) -> None:
    pauses: list[float] = []
    assert POLICY.call(failing(TransferError("busy", pause=asked)), pauses.append) == "done"
    assert pauses == [expected]


def test_attempts_end_with_the_last_failure() -> None:
    pauses: list[float] = []
    with pytest.raises(TransferError, match="third"):
        POLICY.call(failing(*map(TransferError, ("first", "second", "third"))), pauses.append)
    assert pauses == [0.5, 2.0]


def test_progress_resets_the_pauses() -> None:
    pauses: list[float] = []
    assert POLICY.call(failing(*[TransferError("cut")] * 5), pauses.append, lambda: True) == "done"
    assert pauses == [0.5] * 5


@pytest.mark.parametrize(
    ("kind", "retries_timeouts", "is_retried"),
    [
        ("transient", False, True),
        ("timeout", True, True),
        ("timeout", False, False),
        ("denied", True, False),
        ("object", True, False),
    ],
)
def test_only_transient_failures_are_retried(kind: FailureKind, retries_timeouts: bool, is_retried: bool) -> None:
    policy, pauses = RetryPolicy((0.1,), retries_timeouts=retries_timeouts), list[float]()
    work = failing(TransferError("no", kind=kind))
    if is_retried:
        assert policy.call(work, pauses.append) == "done"
    else:
        with pytest.raises(TransferError):
            policy.call(work, pauses.append)
    assert bool(pauses) is is_retried


def breaker(opened: list[TransferError]) -> CircuitBreaker:
    return CircuitBreaker(RetryPolicy(()), lambda seconds: None, opened.append)


@pytest.mark.parametrize(("kind", "allowed"), [("transient", 3), ("object", 3), ("denied", 1), ("timeout", 1)])
def test_circuit_breaker_opens_once_after_enough_failures(kind: FailureKind, allowed: int) -> None:
    opened: list[TransferError] = []
    circuit = breaker(opened)
    for _ in range(allowed):
        assert not circuit.is_open
        with pytest.raises(TransferError):
            circuit.call(failing(TransferError("no", kind=kind)))
    with pytest.raises(CircuitOpenError):
        circuit.call(lambda: "unreachable")
    assert len(opened) == 1


def test_success_between_failures_keeps_a_circuit_breaker_closed() -> None:
    circuit = breaker([])
    for _ in range(5):
        for _ in range(2):
            with pytest.raises(TransferError):
                circuit.call(failing(TransferError("busy")))
        assert circuit.call(lambda: "done") == "done"
    assert not circuit.is_open


@pytest.mark.parametrize(("kind", "opens"), [("timeout", True), ("denied", False)])
def test_hanging_server_also_opens_the_peer_circuit_breaker(kind: FailureKind, opens: bool) -> None:
    reading, writing = breaker([]), breaker([])
    reading.peer = writing
    with pytest.raises(TransferError):
        reading.call(failing(TransferError("no", kind=kind)))
    assert writing.is_open is opens
