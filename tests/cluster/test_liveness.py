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


def test_machine_is_frozen_once_its_heartbeat_stops_changing(clock: Clock) -> None:
    beats = Heartbeats(clock)
    assert beats.find_stale({"a": 1.0, "b": 1.0}) == []
    clock.now += FROZEN_SECONDS - 1
    assert beats.find_stale({"a": 1.0, "b": 9.0}) == []
    clock.now += 1
    assert beats.find_stale({"a": 1.0, "b": 9.0}) == ["a"]
    # The same time passes before it is given up again.
    assert beats.find_stale({"a": 1.0, "b": 9.0}) == []


def test_long_unpolled_machine_is_not_frozen(clock: Clock) -> None:
    beats = Heartbeats(clock)
    beats.find_stale({"a": 1.0})
    clock.now += 10 * FROZEN_SECONDS
    assert beats.find_stale({"a": 2.0, "new": 1.0}) == []


def test_returning_machine_starts_with_a_new_heartbeat(clock: Clock) -> None:
    beats = Heartbeats(clock)
    beats.find_stale({"a": 1.0})
    beats.find_stale({})
    clock.now += FROZEN_SECONDS
    assert beats.find_stale({"a": 1.0}) == []


def test_unserved_action_expires_after_a_minute_without_an_offer(clock: Clock) -> None:
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


def test_excluded_machine_offers_nothing(clock: Clock) -> None:
    placement = Placement(frozenset({"x"}), without=frozenset({"a"}))
    assert not placement.allows(offer("a", "x"))
    assert placement.allows(offer("b", "x"))


def test_closest_machine_determines_the_missing_labels() -> None:
    [problem] = make_unoffered_error(frozenset({"x", "y"}), [offer("b", "x"), offer("a")], 12).problems
    assert problem.message == "no machine of the cluster offers y (needed by 12 actions); connected: a, b"
    [problem] = make_unoffered_error(frozenset({"x"}), []).problems
    assert problem.message == "no machine of the cluster offers x (needed by 1 action); no machine is connected"
