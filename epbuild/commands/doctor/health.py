"""`HealthCheck`: one thing that was looked at, how it is, and what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from msgspec import Struct

from epbuild.core.errors import EpbuildError

HealthState = Literal["ok", "note", "warning", "error"]
"""An `error` has to be mended before builds can work; with a `warning` they do, though not all of what they could; a `note` is to know."""

Topic = Literal[
    "python", "uv", "clock", "locale", "memory", "recipe", "cache", "toolchains", "workspace", "paths", "remote cache",
    "signing key", "cluster", "toolchain", "ep",
]  # fmt: skip

T = TypeVar("T")


class HealthCheck(Struct, frozen=True):
    """One thing: what it is about, which one of several (`name`), how it is, in words, and what to do."""

    topic: Topic
    state: HealthState
    text: str
    hint: str | None = None
    code: str | None = None
    name: str = ""


def of_error(topic: Topic, error: EpbuildError, state: HealthState = "error", name: str = "") -> HealthCheck:
    """The first of an error's problems, and how many more there are."""
    first, *more = error.problems
    place = f"{first.where}: " if first.where is not None else ""
    rest = f" (and {len(more)} more)" if more else ""
    return HealthCheck(topic, state, f"{place}{first.message.rstrip('.')}{rest}", first.hint, first.code, name)


class TooSlow(Exception):
    """Something did not end in its time; it may go on."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises. Raises TooSlow where that takes longer: it then goes on in a thread that holds nobody up."""
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not found:
        raise TooSlow
    return found[0]
