"""Options of the remote cache, for the commands that use one."""

from __future__ import annotations

from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.usage import UsageError
from epbuild.commands.request import RemoteChoice
from epbuild.remote.settings import Mode

RemoteCacheMode = Annotated[
    Mode,
    arguments.option(
        "--remote-cache",
        **arguments.choice(("off", "read", "write")),
        help="What to do with the remote cache, if one is named: read it (default), write what is made to it as well, or neither.",
    ),
]
RemoteCacheReading = Annotated[
    Mode,
    arguments.option(
        "--remote-cache",
        **arguments.choice(("off", "read")),
        help="Whether to look for results in the remote cache, if one is named; default: read.",
    ),
]
Offline = Annotated[bool, arguments.option("--offline", help="Ask no other machine: no remote cache, and nothing is fetched.")]
Insecure = Annotated[bool, arguments.option("--insecure", help="Allow a remote cache at http:// that is not on this machine.")]


def remote_choice(mode: Mode, *, offline: bool, insecure: bool) -> RemoteChoice:
    """What is to be done with a remote cache. Raises UsageError."""
    if offline and mode == "write":
        raise UsageError("--remote-cache write speaks to another machine; --offline to none")
    return RemoteChoice(mode, offline, insecure)
