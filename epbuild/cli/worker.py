"""`epbuild worker`: execute what others build, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments, cluster_options
from epbuild.cli.usage import UsageError
from epbuild.report.terminal.worker import WorkerReport

app = arguments.application()


@app.command()
def worker(
    address: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help="The scheduler: tcp://host:8786, or tls:// with --tls.")
    ] = None,
    *,
    slots: Annotated[
        int | None, arguments.option("--slots", min=1, metavar="N", help="How many actions at once; default: a core each.")
    ] = None,
    memory: Annotated[
        int | None,
        arguments.option(
            "--max-memory",
            parser=arguments.size,
            metavar="SIZE",
            help="How much memory they may take together, such as 8GB; default: all there is.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        arguments.option(
            "--only", metavar="EP", help="Compile for this EP alone, or `prepare` models; may be given several times."
        ),
    ] = None,
    tls: cluster_options.Certificates = None,
    insecure: Annotated[
        bool, arguments.option("--insecure", help="Allow a remote cache on another machine without TLS.")
    ] = False,
    init_tls: Annotated[
        Path | None,
        arguments.option("--init-tls", metavar="DIR", help="Make certificates for a cluster in a new folder, and nothing else."),
    ] = None,
) -> int:
    """Execute the compiles of others' builds on this machine, until interrupted.

    Inputs come from the remote cache that EPBUILD_REMOTE_CACHE names, results go there, signed with EPBUILD_SIGNING_KEY.
    """
    if init_tls is not None:
        if address is not None:
            raise UsageError("--init-tls makes certificates, and serves no scheduler")
        from epbuild.cluster.certificates import make_certificates

        for folder in make_certificates(init_tls):
            typer.echo(f"Wrote {folder}")
        return 0
    if address is None:
        raise UsageError("name the scheduler, such as tcp://host:8786")
    from epbuild.commands.worker import work

    work(
        cluster_options.served(address, tls),
        WorkerReport(),
        slots=slots,
        memory=memory,
        only=tuple(only or ()),
        insecure=insecure,
    )
    return 0
