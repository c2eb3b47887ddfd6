"""Docker's credential helpers, which store users and passwords.

Protocol: https://github.com/docker/docker-credential-helpers. `docker-credential-NAME get` reads the registry from standard input and
prints JSON. On failure, it prints one of a few known sentences and exits with a nonzero status. The output never appears in messages, as it
may be a secret.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess

from epbuild.toolchain.process import end_tree

_TIMEOUT_SECONDS = 60  # some helpers prompt the user or query a cloud
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_FOUND = "credentials not found in native keychain"
_INCOMPLETE = {
    "no credentials server URL": "has an entry without a registry",
    "no credentials username": "has an entry without a user",
}


class HelperError(Exception):
    """Missing or failed helper. `reason` completes a sentence that begins with the helper's name, and `cure` is the fix."""

    def __init__(self, reason: str, cure: str, *, missing: bool = False) -> None:
        self.reason = reason
        self.cure = cure
        self.missing = missing
        super().__init__(reason)


def get_program_name(name: str) -> str:
    """Return the program name of the helper that is called `name` in Docker's configuration."""
    return f"docker-credential-{name}"


def run_helper(name: str, host: str) -> tuple[str, str] | None:
    """Return the user and the secret that the helper `name` has for `host[:port]`, or None if there are none. Raises HelperError."""
    program = get_program_name(name)
    # Only names, no paths: the configuration may be part of an untrusted project.
    path = shutil.which(program) if _NAME.fullmatch(name) else None
    if path is None:
        raise HelperError("is not installed, or not in PATH", "Install it", missing=True)
    try:
        with subprocess.Popen([path, "get"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                output, _ = process.communicate(host.encode(), timeout=_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                end_tree(process.pid)  # on Windows, the pipe remains open until its children end
                # `from None`, as the original exception contains the output.
                raise HelperError(f"did not answer within {_TIMEOUT_SECONDS} s", _suggest_check(program, host)) from None
            except BaseException:  # Ctrl-C, for example while the helper waits for an answer
                end_tree(process.pid)
                raise
    except OSError as error:
        raise HelperError(f"cannot be run: {error.strerror or error}", "Fix it") from error
    printed = output.decode("utf-8", "replace").strip()
    if process.returncode:
        if printed == _NOT_FOUND:
            return None
        raise HelperError(_INCOMPLETE.get(printed, f"exited with status {process.returncode}"), _suggest_check(program, host))
    try:
        document = json.loads(printed)
        user, secret = document["Username"], document["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise HelperError("returned invalid credentials", _suggest_check(program, host)) from None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise HelperError("returned invalid credentials", _suggest_check(program, host))
    return (user, secret) if user and secret else None


def _suggest_check(program: str, host: str) -> str:
    return f"Check the output of `echo {host} | {program} get`"
