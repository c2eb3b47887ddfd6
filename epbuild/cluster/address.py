"""`ClusterAddress`: the address of a scheduler, and the certificates for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.cluster.dask import import_distributed
from epbuild.core.errors import Argument, PlanError, Problem
from epbuild.core.shown import format_path
from epbuild.recipe.remote_address import is_loopback

CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
"""Names of the files in a folder with certificates."""

_LOOPBACK = "127.0.0.1"
_INSECURE_HINT = (
    "Pass the folder with this machine's certificates with --tls DIR (EPBUILD_CLUSTER_TLS), "
    "or allow an insecure connection with --insecure."
)
_ADDRESS = re.compile(r"(?P<scheme>dask|tcp|tls)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})/?")


class ClusterAddress(Struct, frozen=True):
    """Address of a scheduler in Dask's form, and the folder with this machine's certificates, if any."""

    text: str
    certificates: Path | None = None

    @property
    def listening_host(self) -> str | None:
        """Host that a worker listens on: loopback if there are no certificates, and otherwise None, which means every interface."""
        return None if self.certificates is not None else _LOOPBACK

    def build_security(self) -> Any:
        """Return Dask's settings for mutual TLS, or None if there are no certificates."""
        if self.certificates is None:
            return None
        ca, certificate, key = (str(self.certificates / name) for name in (CA, CERTIFICATE, KEY))
        return import_distributed().Security(
            require_encryption=True,
            tls_ca_file=ca,
            tls_client_cert=certificate,
            tls_client_key=key,
            tls_worker_cert=certificate,
            tls_worker_key=key,
            tls_scheduler_cert=certificate,
            tls_scheduler_key=key,
        )


def parse_worker_address(text: str, certificates: str | None, *, where: str) -> ClusterAddress:
    """Return the address of the scheduler that a worker serves. Raises PlanError (EPB536) as `parse_cluster_address` does.

    There is no way to allow an insecure address: users who can reach a scheduler without certificates can make its workers execute any
    code.
    """
    hint = (
        "Pass the folder with this machine's certificates with --tls DIR (EPBUILD_CLUSTER_TLS). "
        "`epbuild worker --init-tls DIR` creates such folders."
    )
    return parse_cluster_address(text, certificates, insecure=False, where=where, hint=hint)


def parse_cluster_address(
    text: str, certificates: str | None, *, insecure: bool, where: str, hint: str = _INSECURE_HINT
) -> ClusterAddress:
    """Parse an address such as `dask://HOST:PORT`, and check the certificate folder.

    Raises PlanError (EPB536) for an invalid address. If there are no certificates, any address other than loopback is also an error unless
    `insecure` is set. `hint` is the hint of this error.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        message = f"invalid scheduler address '{text}'"
        raise PlanError(Problem("EPB536", message, Argument(where), "Write the address as dask://host:8786."))
    folder = Path(certificates).absolute() if certificates else None
    if folder is not None:
        missing = [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).is_file()]
        if missing:
            message = f"the certificate folder {format_path(folder)} does not contain {missing[0]}"
            raise PlanError(
                Problem("EPB536", message, Argument(where), "Create certificate folders with `epbuild worker --init-tls DIR`.")
            )
    if folder is None and (match["scheme"] == "tls" or not (is_loopback(match["host"]) or insecure)):
        message = f"the connection to the scheduler {text} would not use TLS"
        raise PlanError(Problem("EPB536", message, Argument(where), hint))
    scheme = "tls" if folder is not None else "tcp"
    return ClusterAddress(f"{scheme}://{match['host']}:{match['port']}", folder)
