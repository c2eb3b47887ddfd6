"""Health of the servers that a build uses: the remote cache and the cluster."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.placement import Offer
from epbuild.commands.doctor.health import HealthCheck, TooSlow, make_error_check, run_within
from epbuild.core.errors import EpbuildError, Problem
from epbuild.core.units import format_count
from epbuild.plan.remote_record import COMPILE
from epbuild.recipe.remote_address import CacheChoice
from epbuild.remote.settings import SIGNING_KEY, RemoteSettings, read_signing_key, read_user_cache, resolve_remote_settings

ANSWER_SECONDS = 6.0
"""Maximum number of seconds to wait for a server's answer."""
_CONNECT_SECONDS = 3.0
_NETWORK_HINT = "Check the address and the network. Builds work without the remote cache."


class Servers(Struct, frozen=True):
    """Settings that determine the servers of a build. `choice` is the recipe's remote cache."""

    choice: CacheChoice | None
    folder: Path
    environment: Mapping[str, str]
    cluster: ClusterAddress | EpbuildError | None = None
    """Address of the scheduler, the error for an invalid address, or None if no cluster is used."""
    insecure: bool = False


def check_servers(servers: Servers) -> list[HealthCheck]:
    """Check the servers concurrently, and return the results."""
    cluster = servers.cluster
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(_check_remote, servers), *([pool.submit(_check_cluster, cluster)] if cluster is not None else [])]
        remote, *others = (future.result() for future in asked)
    return [remote, *filter(None, [_check_signing_key(servers)]), *others]


def _check_remote(servers: Servers) -> HealthCheck:
    try:
        settings = resolve_remote_settings(
            servers.choice, servers.folder, servers.environment, "read", insecure=servers.insecure, user=read_user_cache()
        )
    except EpbuildError as error:
        return make_error_check("remote cache", error)
    if settings is None:
        return HealthCheck("remote cache", "note", "not configured, so results are not shared")
    if settings.address.is_directory and not Path(settings.address.text).is_dir():
        text = f"the folder does not exist: {settings.address}"
        return HealthCheck(
            "remote cache",
            "warning",
            text,
            "Mount the folder, or let the first build that uploads a result create it. Builds work without the remote cache.",
        )
    try:
        return run_within(ANSWER_SECONDS, lambda: _try_look_up(settings))
    except TooSlow:
        return HealthCheck(
            "remote cache", "warning", f"{settings.address} did not answer within {ANSWER_SECONDS:g} s", _NETWORK_HINT
        )
    except EpbuildError as error:  # A package is missing, or environment variables of the cloud are invalid.
        return make_error_check("remote cache", error)


def _try_look_up(settings: RemoteSettings) -> HealthCheck:
    """Check the remote cache by looking up a random key."""
    from epbuild.remote.cache import Miss  # Import these modules only if a remote cache is used.
    from epbuild.remote.opening import open_remote

    warnings: list[Problem] = []
    begin = time.monotonic()
    cache = open_remote(settings, warnings.append)
    try:
        while cache.look_up(COMPILE, secrets.token_hex(32)) == Miss(answered=False) and not warnings:
            pass  # Repeat until a warning states the reason.
    finally:
        cache.close()
    took = f"{(time.monotonic() - begin) * 1000:.0f} ms"
    if warnings:
        return HealthCheck("remote cache", "warning", warnings[0].message, warnings[0].hint, warnings[0].code)
    trust = "results of all writers are used" if settings.trust is None else f"{format_count(len(settings.trust), 'key')} trusted"
    return HealthCheck("remote cache", "ok", f"{settings.address} answers in {took}; {trust}")


def _check_signing_key(servers: Servers) -> HealthCheck | None:
    try:
        key = read_signing_key(servers.environment)
    except EpbuildError as error:
        return make_error_check("signing key", error, "warning")
    if key is None:
        return None
    trust = servers.choice.trust if servers.choice is not None else ()
    if trust and key.public not in trust:
        hint = "Add the key to `cache.trust` in the recipe. Otherwise, results signed with the key are ignored."
        return HealthCheck("signing key", "warning", f"the recipe does not trust the public key {key.public}", hint, "EPB277")
    return HealthCheck("signing key", "ok", f"{SIGNING_KEY} has the public key {key.public}")


def _check_cluster(address: ClusterAddress | EpbuildError) -> HealthCheck:
    if isinstance(address, EpbuildError):
        return make_error_check("cluster", address)
    url = urlsplit(address.text)
    try:
        # Dask needs longer to detect an unreachable scheduler.
        with socket.create_connection((url.hostname, url.port), _CONNECT_SECONDS):
            pass
        offers = run_within(ANSWER_SECONDS, lambda: _list_offers(address))
    except EpbuildError as error:
        return make_error_check("cluster", error)
    except (OSError, TooSlow) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or "no answer"
        text = f"the cluster's scheduler {address.text} cannot be reached: {why}"
        return HealthCheck(
            "cluster",
            "error",
            text,
            "Check that the scheduler runs at this address, or build on this machine with --executor local.",
            "EPB535",
        )
    if not offers:
        text = f"{address.text} answers, but no machine is connected"
        return HealthCheck("cluster", "error", text, "Start workers with `epbuild worker`.", "EPB539")
    slots = sum(offer.slots for offer in offers)
    return HealthCheck(
        "cluster", "ok", f"{address.text}: {format_count(len(offers), 'machine')}, up to {format_count(slots, 'action')} at once"
    )


def _list_offers(address: ClusterAddress) -> tuple[Offer, ...]:
    with closing(DaskExecutor(address, threading.Event())) as executor:
        return tuple(executor.offers())
