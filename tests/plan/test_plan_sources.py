"""Source models, and the stats by which a memo knows them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from epbuild.plan.sources import SourceModel, find_source
from tests.recipe.texts import MINIMAL, load_text
from tests.support.commands import write_model


def found(folder: Path) -> SourceModel:
    source = find_source(load_text(folder, MINIMAL).models["prefill"], folder, lambda model: None)
    assert source is not None
    return source


def test_a_graph_replaced_after_its_header_was_read_has_no_stats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time_ns() + 60 * 10**9  # when the times of all files here can be trusted
    monkeypatch.setattr(time, "time_ns", lambda: later)
    write_model(tmp_path / "prefill.onnx")
    assert found(tmp_path).stats is not None
    source = found(tmp_path)
    write_model(tmp_path / "other.onnx", "Sigmoid").replace(tmp_path / "prefill.onnx")
    assert source.stats is None
