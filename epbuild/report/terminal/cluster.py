"""Work for a cluster, as a table or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from epbuild.core.errors import printable
from epbuild.core.units import about, counted
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.screen import print_line

if TYPE_CHECKING:
    from epbuild.commands.workload import Workload

_MOST_NAMED = 3


def print_workloads(loads: Sequence[Workload], address: str, *, json: bool) -> None:
    """Which machines can make what is missing, and how long they will take."""
    if json:
        listed = [
            {**asdict(load), "others": [other._asdict() for other in load.others], "likely_seconds": load.likely_seconds}
            for load in loads
        ]
        print_json({"format": 1, "executor": address, "workloads": listed})
        return
    for load in loads:
        device = ", on a real device" if load.real_device else ""
        print_line(f"{load.platform}  {', '.join(load.eps) or 'preparations'}{device}")
        print_line(f"    {counted(load.actions, 'action')}, {_time(load)}")
        for line in _notes(load):
            print_line(f"    {line}")
    if not loads:
        print_line("Nothing is missing.")


def _notes(load: Workload) -> Iterator[str]:
    """What machines found out about it, or not yet."""
    if load.untried and load.eps:
        yield f"not tried yet: {', '.join(load.untried[:_MOST_NAMED])}{_more(len(load.untried))}"
    for other in load.others[:_MOST_NAMED]:
        yield printable(f"{other.machine} cannot: {other.why}")
    if len(load.others) > _MOST_NAMED:
        yield f"{len(load.others) - _MOST_NAMED} more cannot"


def _more(count: int) -> str:
    return f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""


def _time(load: Workload) -> str:
    work = f"{about(load.seconds)} of work"
    if load.likely_seconds is None:
        return f"{work}: no machine of the cluster offers this"
    return f"{work} on {counted(len(load.machines), 'machine')}, {load.slots} at once = {about(load.likely_seconds)}"
