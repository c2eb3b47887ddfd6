"""Credentials for a registry, from the environment or from `docker login`.

Users and passwords never appear in messages.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epbuild.core.safepath import open_regular
from epbuild.core.shown import format_path
from epbuild.toolchain.process import end_tree

_TIMEOUT_SECONDS = 60  # some helpers prompt the user or query a cloud
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_FOUND = "credentials not found in native keychain"
_INCOMPLETE = {
    "no credentials server URL": "has an entry without a registry",
    "no credentials username": "has an entry without a user",
}
REGISTRY = "EPBUILD_REGISTRY"
USER = "EPBUILD_REGISTRY_USER"
PASSWORD = "EPBUILD_REGISTRY_PASSWORD"  # noqa: S105 - the name of a variable

_MAX_BYTES = 1024 * 1024
_IDENTITY = "<token>"  # user name for an identity token in the helpers' protocol


class CredentialsError(Exception):
    """Error for unusable credentials. Neither the message nor the hint contains a secret."""

    def __init__(self, message: str, hint: str) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)


class MissingHelperError(CredentialsError):
    """Error for a credential helper that is not installed."""


def _run_helper(name: str, host: str, config: Path) -> tuple[str, str] | None:
    """Return the user and the secret that the helper `name` has for `host[:port]`, or None if there are none. Raises CredentialsError.

    Docker's helpers (https://github.com/docker/docker-credential-helpers) read the registry from standard input and print JSON. On
    failure, they print one of a few known sentences, and exit with a nonzero status. Messages never contain the output, because it may be
    a secret.
    """
    program = f"docker-credential-{name}"
    check = f"Check the output of `echo {host} | {program} get`"

    def make_error(reason: str, cure: str = check, kind: type[CredentialsError] = CredentialsError) -> CredentialsError:
        message = f"Docker's credential helper {program}, which {format_path(config)} specifies for this registry, {reason}"
        return kind(message, f"{cure}, or set {REGISTRY}, {USER} and {PASSWORD}.")

    # Only names, no paths: the configuration may be part of an untrusted project.
    path = shutil.which(program) if _NAME.fullmatch(name) else None
    if path is None:
        raise make_error("is not installed, or not in PATH", "Install it", MissingHelperError)
    try:
        with subprocess.Popen([path, "get"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                output, _ = process.communicate(host.encode(), timeout=_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                end_tree(process.pid)  # on Windows, the pipe remains open until its children end
                # `from None`, as the original exception contains the output.
                raise make_error(f"did not answer within {_TIMEOUT_SECONDS} s") from None
            except BaseException:  # Ctrl-C, for example while the helper waits for an answer
                end_tree(process.pid)
                raise
    except OSError as error:
        raise make_error(f"cannot be run: {error.strerror or error}", "Fix it") from error
    printed = output.decode("utf-8", "replace").strip()
    if process.returncode:
        if printed == _NOT_FOUND:
            return None
        raise make_error(_INCOMPLETE.get(printed, f"exited with status {process.returncode}"))
    try:
        document = json.loads(printed)
        user, secret = document["Username"], document["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise make_error("returned invalid credentials") from None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise make_error("returned invalid credentials")
    return (user, secret) if user and secret else None


@dataclass(frozen=True)
class Credentials:
    """User and password (or token) for a registry, and the source of both."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    source: str
    is_identity: bool = False
    """True if the password is an identity token, which only token servers accept."""

    @property
    def basic(self) -> str:
        """Value of an `Authorization` header for Basic authentication (RFC 7617)."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode('ascii')}"


def find_credentials(host: str) -> Credentials | None:
    """Return the credentials for the registry at `host[:port]`, or None if there are none.

    There are three sources, in order of precedence. The first is the environment, for the registry that EPBUILD_REGISTRY names. The second
    is Docker's credential helper for this registry, or else for all registries. The third is Docker's configuration. A recipe alone never
    decides where credentials are sent. Raises CredentialsError.
    """
    credentials = _read_environment(host)
    if credentials is not None:
        return credentials
    path = find_docker_config()
    document = _read_config(path)
    helper = _find_entry(_get_section(document, "credHelpers"), host) or document.get("credsStore")
    try:
        stored = _run_helper(str(helper), host, path) if helper else None
    except MissingHelperError:
        credentials = _read_auths(document, path, host)
        if credentials is None:
            raise
        return credentials
    if stored is not None:
        return _new_credentials(*stored, f"docker-credential-{helper}")
    return _read_auths(document, path, host)


def _read_environment(host: str) -> Credentials | None:
    values = {name: os.environ.get(name, "") for name in (REGISTRY, USER, PASSWORD)}
    if not values[USER] and not values[PASSWORD]:
        return None
    missing = next((name for name, value in values.items() if not value), None)
    if missing is not None:
        present = USER if values[USER] else PASSWORD
        hint = f"Set {REGISTRY} to the registry for these credentials, as HOST or HOST:PORT." if missing == REGISTRY else ""
        raise CredentialsError(f"{present} is set, but {missing} is not", hint or f"Set both {USER} and {PASSWORD}, or neither.")
    if _normalize_host(values[REGISTRY]) != host.lower():
        return None
    return _new_credentials(values[USER], values[PASSWORD], USER)


def _read_auths(document: Mapping[str, Any], path: Path, host: str) -> Credentials | None:
    """Return the credentials of a host in Docker's configuration, or None if there are none."""
    entry = _find_entry(_get_section(document, "auths"), host)
    if not isinstance(entry, Mapping):
        return None
    if entry.get("identitytoken"):
        return _new_credentials(_IDENTITY, str(entry["identitytoken"]), str(path))
    try:
        text = base64.b64decode(entry.get("auth") or "", validate=True).decode()
    except (ValueError, TypeError) as error:
        raise _make_unusable_error(path, f"its 'auth' for {host} is not base64") from error
    user, _, password = text.partition(":")
    user, password = user or str(entry.get("username") or ""), password.rstrip("\0") or str(entry.get("password") or "")
    return _new_credentials(user, password, str(path)) if user and password else None


def find_docker_config() -> Path:
    """Return the path of Docker's `config.json` in $DOCKER_CONFIG, or else in `.docker` of the user's home directory."""
    folder = os.environ.get("DOCKER_CONFIG", "")
    return Path(folder or os.path.expanduser("~/.docker")) / "config.json"  # noqa: PTH111 - raises no error without a home directory


def _new_credentials(user: str, password: str, source: str) -> Credentials:
    if ":" in user:
        raise CredentialsError(f"the user name from {source} contains ':', which no registry accepts", "Remove the colon.")
    return Credentials(user, password, source, user == _IDENTITY)


def _read_config(path: Path) -> Mapping[str, Any]:
    """Read Docker's configuration. Return an empty mapping if the file is missing."""
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
        document = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise _make_unusable_error(path, error.strerror or "it cannot be read") from error
    except (ValueError, RecursionError) as error:
        raise _make_unusable_error(path, "it is not JSON") from error
    if not isinstance(document, Mapping):
        raise _make_unusable_error(path, "it is not a JSON object")
    return document


def _get_section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = document.get(name)
    return section if isinstance(section, Mapping) else {}


def _find_entry(section: Mapping[str, Any], host: str) -> Any:
    """Return the entry whose key is the host's name or, in files of older tools, a URL with this host."""
    if host in section:
        return section[host]
    return next((section[key] for key in sorted(section) if _normalize_host(key) == host), None)


def _normalize_host(key: str) -> str:
    return key.removeprefix("https://").removeprefix("http://").partition("/")[0].lower()


def _make_unusable_error(path: Path, reason: str) -> CredentialsError:
    return CredentialsError(
        f"Docker's {format_path(path)} cannot be used: {reason}", f"Fix it, or set {REGISTRY}, {USER} and {PASSWORD}."
    )
