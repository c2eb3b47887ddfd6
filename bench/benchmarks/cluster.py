"""Benchmark of a cluster: its makespan on virtual time against the lower bound, and the overhead of an action."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from results import Result, Series
from rounds import Contender, interleave
from two_workers import WORKERS, ShortActions
from workshop import Workshop

from epbuild.engine.scheduler import Cost, Runnable, Scheduler
from epbuild.session.remote_build import MAX_IDLE

SHARE = 1.03
"""Limit of a build's makespan, as a multiple of the lower bound."""
OVERHEAD = 0.040
"""Limit of the overhead of an action on another machine, in seconds."""

_SHORT_ACTIONS = 200
_SHORT_SECONDS = 0.05

_ACTIONS = 10_000
_MACHINES = {"linux-x86_64 QNN": 10, "windows-x86_64 OpenVINO": 6, "linux-x86_64 TensorRT": 3, "windows-arm64 QNN": 1}
"""Number of machines of each kind. All other machines wait for the last kind."""
_SHARES = (0.55, 0.28, 0.13, 0.04)
_MEDIAN_SECONDS = 120.0
_HIT_SECONDS = 0.05
_GUESS = 0.3
"""Error of the expected time of an action, as the standard deviation of its logarithm."""


@dataclass(frozen=True)
class _Work:
    kind: str
    seconds: float
    expected: float


def measure(workshop: Workshop, rounds: int) -> Result:
    series = []
    for hits in (0.0, 0.5, 0.95):
        ratios = []
        for seed in range(rounds):
            work = list(_work(random.Random(seed), hits))
            ratios.append(_makespan(work) / _least(work))
        series.append(Series(f"{_ACTIONS:,} actions, {hits:.0%} of them cached", "x", tuple(ratios), SHARE))
    series += _overhead(workshop, rounds)
    return Result(
        "How much longer than the lower bound does a build take on 20 machines of four kinds, and what is the overhead of an "
        "action there?",
        tuple(series),
        f"Virtual time: nothing is compiled. At most {MAX_IDLE} actions are queued in the cluster at a time, in the order of "
        "epbuild's own scheduler. A machine starts the longest action that it can run. Durations have a log-normal "
        "distribution with a median of two minutes, and estimates have an error of a third. The lower bound is the load of "
        f"the scarcest kind of machine, or the longest action. The short actions are {_SHORT_ACTIONS} compiles by a stand-in "
        f"that takes {_SHORT_SECONDS * 1000:.0f} ms, each in a separate process, {WORKERS} at once: first without a cluster, "
        f"then with a scheduler and {WORKERS} workers on this machine, and a remote cache in a directory.",
    )


def _overhead(workshop: Workshop, rounds: int) -> list[Series]:
    short = ShortActions(workshop, _SHORT_ACTIONS, _SHORT_SECONDS)
    with short.cluster() as address:
        here, there = interleave(
            [
                Contender(f"{_SHORT_ACTIONS} short actions, without a cluster", short.build),
                Contender(f"{_SHORT_ACTIONS} short actions, on two workers", lambda: short.build("--executor", address)),
            ],
            rounds,
        )
    pairs = zip(there.samples, here.samples, strict=True)
    each = tuple((elsewhere - local) / _SHORT_ACTIONS for elsewhere, local in pairs)
    return [here, there, Series("overhead of each action", "s", each, OVERHEAD)]


def _work(draw: random.Random, hits: float) -> Iterator[_Work]:
    for _ in range(_ACTIONS):
        [kind] = draw.choices(list(_MACHINES), _SHARES)
        seconds = _HIT_SECONDS if draw.random() < hits else _MEDIAN_SECONDS * draw.lognormvariate(0, 1)
        yield _Work(kind, seconds, seconds * draw.lognormvariate(0, _GUESS))


def _least(work: Sequence[_Work]) -> float:
    sums = dict.fromkeys(_MACHINES, 0.0)
    for item in work:
        sums[item.kind] += item.seconds
    longest = max(item.seconds for item in work)
    return max([longest, *(sums[kind] / machines for kind, machines in _MACHINES.items())])


def _makespan(work: Sequence[_Work]) -> float:
    """Return the time at which the last action ends under the build's scheduler and the cluster's assignment."""
    scheduler = Scheduler(Runnable(str(number), cost=Cost(item.expected, measured=True)) for number, item in enumerate(work))
    free, waiting = dict(_MACHINES), {kind: list[tuple[float, int]]() for kind in _MACHINES}
    running: list[tuple[float, int]] = []
    now, with_cluster = 0.0, 0
    while True:
        while with_cluster < MAX_IDLE and (ident := scheduler.next()) is not None:
            with_cluster += 1
            item = work[int(ident)]
            heapq.heappush(waiting[item.kind], (-item.expected, int(ident)))
        for kind, queue in waiting.items():
            while queue and free[kind]:
                free[kind] -= 1
                _, number = heapq.heappop(queue)
                heapq.heappush(running, (now + work[number].seconds, number))
        if not running:
            return now
        now, number = heapq.heappop(running)
        free[work[number].kind] += 1
        with_cluster -= 1
        scheduler.finish(str(number))
