"""`epbuild worker`: run actions of other machines' builds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.cli.options import Excludes, UsageError, application, option
from epbuild.report.terminal.cluster import WorkerReport

app = application()


_RULES = (Excludes(("--init-tls",), ("address",), "--init-tls makes certificates, and serves no scheduler"),)


@app.command(rules=_RULES)
def worker(
    address: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help="The scheduler: tcp://host:8786, or tls:// with --tls.")
    ] = None,
    *,
    slots: Annotated[
        int | None, option("--slots", min=1, metavar="N", help="How many actions at once; default: a core each.")
    ] = None,
    memory: Annotated[
        int | None,
        option(
            "--max-memory",
            parser=arguments.size,
            metavar="SIZE",
            help="How much memory they may take together, such as 8GB; default: all there is.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        option("--only", metavar="EP", help="Compile for this EP alone, or `prepare` models; may be given several times."),
    ] = None,
    tls: arguments.Certificates = None,
    insecure: Annotated[bool, option("--insecure", help="Allow a remote cache on another machine without TLS.")] = False,
    init_tls: Annotated[
        Path | None,
        option("--init-tls", metavar="DIR", help="Make certificates for a cluster in a new folder, and nothing else."),
    ] = None,
) -> int:
    """Execute the compiles of others' builds on this machine, until interrupted.

    Inputs come from the remote cache that EPBUILD_REMOTE_CACHE names, results go there, signed with EPBUILD_SIGNING_KEY.
    """
    if init_tls is not None:
        from epbuild.cluster.certificates import make_certificates

        for folder in make_certificates(init_tls):
            typer.echo(f"Wrote {folder}")
        return 0
    if address is None:
        raise UsageError("name the scheduler, such as tcp://host:8786")
    from epbuild.cluster.address import worker_address
    from epbuild.commands.worker import work

    work(
        worker_address(address, tls or os.environ.get(arguments.CERTIFICATES), where=address),
        WorkerReport(),
        slots=slots,
        memory=memory,
        only=tuple(only or ()),
        insecure=insecure,
    )
    return 0
