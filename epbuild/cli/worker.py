"""`epbuild worker`: run actions of other machines' builds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.cli.options import COMMAND_LINE, Excludes, UsageError, declare_option, make_application
from epbuild.cluster.placement import PLATFORM_LABEL, PREPARES, Offer, parse_eps
from epbuild.core.shown import format_path
from epbuild.core.units import format_count
from epbuild.report.formatting import format_size
from epbuild.report.terminal.screen import print_line

app = make_application()


class WorkerReport:
    """Printer of a worker's state."""

    def connected(self, address: str, offer: Offer) -> None:
        eps = sorted({ep.partition("@")[0].partition("/")[0] for ep in parse_eps(offer.labels)})
        platform = next((label.removeprefix(PLATFORM_LABEL) for label in offer.labels if label.startswith(PLATFORM_LABEL)), "")
        memory = f", {format_size(offer.memory)}" if offer.memory else ""
        work = [*eps, "preparations"] if PREPARES in offer.labels else eps
        self._print(f"working for {address}: {platform}, up to {format_count(offer.slots, 'action')} at once{memory}")
        self._print(f"  {', '.join(work)}")

    def waiting(self, address: str, reason: str) -> None:
        self._print(f"waiting for {address}: {reason}")

    def _print(self, line: str) -> None:
        print_line(f"epbuild: {line}", sys.stderr)
        sys.stderr.flush()


_RULES = (Excludes(("--init-tls",), ("address",), "--init-tls only writes certificates and does not accept an address"),)


@app.command(
    rules=_RULES,
    exits={
        0: "certificates were written (--init-tls)",
        2: COMMAND_LINE,
        130: "interrupted, which is the normal way to stop a worker",
    },
)
def worker(
    address: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help="Address of the scheduler: tcp://host:8786, or tls:// with --tls.")
    ] = None,
    *,
    slots: Annotated[
        int | None,
        declare_option(
            "--slots", min=1, metavar="N", help="Maximum number of actions that run at once.", default="number of CPUs"
        ),
    ] = None,
    memory: Annotated[
        int | None,
        declare_option(
            "--max-memory",
            parser=arguments.size,
            metavar="SIZE",
            help="Maximum memory of all running actions, such as 8GB.",
            default="all memory of this machine",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        declare_option(
            "--only", metavar="EP", help="Only compile for this EP, or only `prepare` models. Can be given several times."
        ),
    ] = None,
    tls: arguments.Certificates = None,
    insecure: Annotated[bool, declare_option("--insecure", help="Allow a remote cache on another machine without TLS.")] = False,
    init_tls: Annotated[
        Path | None,
        declare_option("--init-tls", metavar="DIR", help="Write certificates for a cluster to a new folder, and exit."),
    ] = None,
) -> int:
    """Execute actions of other machines' builds on this machine, until interrupted.

    Inputs are fetched from the remote cache that EPBUILD_REMOTE_CACHE names. Results are signed with
    EPBUILD_SIGNING_KEY and uploaded to the same cache.
    """
    if init_tls is not None:
        from epbuild.cluster.certificates import make_certificates

        for folder in make_certificates(init_tls):
            typer.echo(f"Wrote {format_path(folder)}")
        return 0
    if address is None:
        raise UsageError("pass the address of the scheduler, such as tcp://host:8786")
    from epbuild.cluster.address import parse_worker_address
    from epbuild.cluster.serve import work

    work(
        parse_worker_address(address, tls or os.environ.get(arguments.CERTIFICATES), where=address),
        WorkerReport(),
        slots=slots,
        memory=memory,
        only=tuple(only or ()),
        insecure=insecure,
    )
    return 0
