"""Session keys of the pinned ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from epbuild.catalog.catalog import list_session_keys
from tests.support.projects import toolchain_python
from tools.session_keys import find_keys, read_releases


@pytest.mark.usefixtures("quickstart_store")
@pytest.mark.skipif(sys.platform != "linux", reason="the listed keys are those of the Linux wheel")
def test_listed_session_keys_are_those_of_the_library() -> None:
    [site] = toolchain_python("onnxruntime-qnn==2.7.0").parents[1].glob("lib/python*/site-packages")
    keys = find_keys(Path(site))
    assert keys == read_releases()["1.31.1"]
    assert set(keys) <= set(list_session_keys().known)
