"""Machines that stop, and labels that no machine offers, on a fake clock."""

from __future__ import annotations

import pytest

from epbuild.cluster.placement import FROZEN_SECONDS, OFFER_SECONDS, Heartbeats, Offer, OfferTimeout, Placement
from epbuild.cluster.protocol import make_unoffered_error


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def offer(machine: str, *labels: str) -> Offer:
    return Offer(machine, frozenset(labels), 1, 0)


def test_a_machine_is_frozen_once_its_heartbeat_stays_the_same(clock: Clock) -> None:
    beats = Heartbeats(clock)
    assert beats.find_stale({"a": 1.0, "b": 1.0}) == []
    clock.now += FROZEN_SECONDS - 1
    assert beats.find_stale({"a": 1.0, "b": 9.0}) == []
    clock.now += 1
    assert beats.find_stale({"a": 1.0, "b": 9.0}) == ["a"]
    # The same time passes before it is given up again.
    assert beats.find_stale({"a": 1.0, "b": 9.0}) == []


def test_what_was_not_looked_at_for_long_is_not_frozen(clock: Clock) -> None:
    beats = Heartbeats(clock)
    beats.find_stale({"a": 1.0})
    clock.now += 10 * FROZEN_SECONDS
    assert beats.find_stale({"a": 2.0, "new": 1.0}) == []


def test_a_machine_that_left_and_came_back_begins_anew(clock: Clock) -> None:
    beats = Heartbeats(clock)
    beats.find_stale({"a": 1.0})
    beats.find_stale({})
    clock.now += FROZEN_SECONDS
    assert beats.find_stale({"a": 1.0}) == []


def test_what_nobody_offers_is_over_after_a_minute_without_anybody(clock: Clock) -> None:
    unserved, wanted = OfferTimeout(clock), Placement(frozenset({"x", "y"}))
    assert not unserved.has_expired(wanted, [offer("a", "x")])
    clock.now += OFFER_SECONDS - 1
    assert not unserved.has_expired(wanted, [offer("a", "x", "y")])
    clock.now += 2
    assert not unserved.has_expired(wanted, [offer("a", "x")])
    clock.now += OFFER_SECONDS
    assert unserved.has_expired(wanted, [offer("a", "x")])
    # A second action with the same needs does not wait.
    assert unserved.has_expired(Placement(frozenset({"x", "y"})), [])


def test_a_machine_that_is_not_to_be_asked_offers_nothing(clock: Clock) -> None:
    placement = Placement(frozenset({"x"}), without=frozenset({"a"}))
    assert not placement.allows(offer("a", "x"))
    assert placement.allows(offer("b", "x"))


def test_what_is_lacking_is_that_of_the_machine_that_lacks_least() -> None:
    [problem] = make_unoffered_error(frozenset({"x", "y"}), [offer("b", "x"), offer("a")], 12).problems
    assert problem.message == "no machine of the cluster offers y (12 actions); connected: a, b"
    [problem] = make_unoffered_error(frozenset({"x"}), []).problems
    assert problem.message == "no machine of the cluster offers x (1 action); connected: no machine is connected"
