"""Work for a cluster, as a table or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from epbuild.core.units import about, counted
from epbuild.report.documents import print_json
from epbuild.report.terminal import print_line

if TYPE_CHECKING:
    from epbuild.commands.workload import Workload


def print_workloads(loads: Sequence[Workload], address: str, *, json: bool) -> None:
    """Which machines can make what is missing, and how long they will take."""
    if json:
        listed = [{**asdict(load), "likely_seconds": load.likely_seconds} for load in loads]
        print_json({"format": 1, "executor": address, "workloads": listed})
        return
    for load in loads:
        print_line(f"{load.platform}  {', '.join(load.eps) or 'preparations'}")
        print_line(f"    {counted(load.actions, 'action')}, {_time(load)}")
    if not loads:
        print_line("Nothing is missing.")


def _time(load: Workload) -> str:
    work = f"{about(load.seconds)} of work"
    if load.likely_seconds is None:
        return f"{work}: no machine of the cluster offers this"
    return f"{work} on {counted(len(load.machines), 'machine')}, {load.slots} at once = {about(load.likely_seconds)}"
