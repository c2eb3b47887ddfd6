"""Fixtures for tests of pushes: servers that stop at the end of a test, a registry, and an image to push."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.registry_pushes import Pusher, Start
from tests.support.registry_server import Registry, serving


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Yield a function that starts servers. They stop at the end of the test."""
    with ExitStack() as stack:
        yield lambda kind, *arguments: stack.enter_context(serving(kind, *arguments))


@pytest.fixture
def registry(start: Start[Registry]) -> Registry:
    return start(Registry)


@pytest.fixture
def pusher() -> Pusher:
    return Pusher()
