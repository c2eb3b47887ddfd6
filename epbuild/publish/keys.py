"""Keys of encrypted outputs, from environment variables and from commands."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

from epbuild.core.errors import EnvironmentFailure, Problem, StepId
from epbuild.core.redact import conceal
from epbuild.plan.steps import Emission
from epbuild.recipe.model import Encryption
from epbuild.runtime.encryption import EncryptionError, check_library, parse_key

_SECONDS = 300
"""Time limit of a command, which may ask its user for a password."""
_MAX_BYTES = 1 << 16


class Keys:
    """Keys of the outputs of one build. Each key is read once. Any number of threads may use it.

    No error quotes a key, or what a command printed.
    """

    def __init__(self, folder: Path) -> None:
        """Initialize the keys of a recipe in `folder`, in which commands run."""
        self._folder = folder
        self._read: dict[tuple[str | None, tuple[str, ...]], bytes] = {}
        """Keys by variable and command."""
        self._lock = threading.Lock()

    def check(self, emissions: Iterable[Emission]) -> None:
        """Read the keys of `emissions`, so that a missing key is reported before the first compile. Raises EnvironmentFailure (EPB437)."""
        for emission in emissions:
            if emission.encryption is not None:
                self.read(emission.encryption, emission.id)

    def read(self, encryption: Encryption, step: str | None) -> bytes:
        """Return a key. Raises EnvironmentFailure (EPB437) if it cannot be read or has a wrong length."""
        place = (encryption.key_variable, encryption.key_command)
        with self._lock:
            if place not in self._read:
                self._read[place] = _read_key(encryption, self._folder, StepId(step) if step is not None else None)
            return self._read[place]


def _read_key(encryption: Encryption, folder: Path, step: StepId | None) -> bytes:
    place = _name_place(encryption)
    hint = "Set it to a key of 32 bytes in hex or Base64, such as the output of `openssl rand -hex 32`."
    try:
        check_library()
    except EncryptionError as error:
        message = f"encryption {error}"
        raise EnvironmentFailure(Problem("EPB437", message, step, "Install it: pip install 'epbuild[encrypt]'.")) from None
    if encryption.key_variable is not None:
        text = os.environ.get(encryption.key_variable)
        if not text:
            raise EnvironmentFailure(Problem("EPB437", f"{place} is not set", step, hint))
    else:
        text = _run(encryption.key_command, folder, place, step)
        hint = "The command must print only the key: 32 bytes in hex or Base64."
    conceal(encryption.key_variable or "encrypt", text)
    try:
        return parse_key(text)
    except EncryptionError as error:
        raise EnvironmentFailure(Problem("EPB437", f"{place} {error}", step, hint)) from None


def _name_place(encryption: Encryption) -> str:
    """Return the subject of sentences about a key: where the key comes from."""
    if encryption.key_variable is not None:
        return f"the key in the environment variable {encryption.key_variable}"
    return f"the key from the command '{encryption.key_command[0]}'"


def _run(command: tuple[str, ...], folder: Path, place: str, step: StepId | None) -> str:
    """Run a command in `folder` and return its output. Standard error is dropped, because it may contain the key."""
    hint = "Run the command in a terminal to see its messages."
    program = str(folder / command[0]) if "/" in command[0] else command[0]  # Windows looks for it in epbuild's own folder
    try:
        done = subprocess.run(
            [program, *command[1:]], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        message = f"{place} cannot be read: the command did not end within {_SECONDS} seconds"
        raise EnvironmentFailure(Problem("EPB437", message, step, hint)) from None
    except (OSError, ValueError) as error:
        message = f"{place} cannot be read: {getattr(error, 'strerror', None) or 'the command cannot be started'}"
        raise EnvironmentFailure(Problem("EPB437", message, step, "Check the command's name and its path.")) from None
    if done.returncode != 0:
        message = f"{place} cannot be read: the command failed with the exit code {done.returncode}"
        raise EnvironmentFailure(Problem("EPB437", message, step, hint))
    return done.stdout[:_MAX_BYTES].decode("utf-8", "replace")
