"""Pickles in Dask's messages: epbuild reads data, and calls no function that a pickle names."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from pathlib import Path

import distributed
import pytest

from epbuild.cluster import dask
from epbuild.cluster.dask import RefusedPickle, guard, read


class Touch:
    """Object whose pickle creates a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("value", ["text", b"bytes", 5, None, True, ["a", {"b": (1, 2.5)}], {"x"}])
def test_plain_data_is_unpickled(value: object) -> None:
    assert read(pickle.dumps(value)) == value


def test_pickle_that_names_a_function_is_refused_and_not_run(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = read(pickle.dumps(Touch(tmp_path / "made"), protocol=protocol))
        assert isinstance(found, RefusedPickle)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("data", [b"", b"\x80", b"not a pickle", b"\x80\x05cos\nsystem\n.", pickle.dumps([1])[:-3]])
def test_invalid_pickle_is_refused(data: bytes) -> None:
    assert isinstance(read(data), RefusedPickle)


def test_each_pickle_reader_of_dask_is_guarded() -> None:
    """Check the source of the installed release. A new module that reads pickles needs a review."""
    guard()
    root = Path(distributed.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        nodes = () if "tests" in parts or "pickle" not in text else ast.walk(ast.parse(text))
        if any(isinstance(node, ast.Import) and any(alias.name == "pickle" for alias in node.names) for node in nodes):
            found.add(".".join(("distributed", *parts)))
    assert found <= {*dask.READERS, "distributed.scheduler"}, "the scheduler is a process of its own"
