"""Source models, and the stats by which a memo knows them."""

from __future__ import annotations

import errno
import io
import time
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.memo import Memo
from epbuild.plan.planner import make_plan
from epbuild.plan.sources import SourceModel, find_source
from tests.recipe.texts import MINIMAL, load_text
from tests.support.commands import write_model
from tests.support.plan_recipes import RECIPE, write_models


def found(folder: Path) -> SourceModel:
    source = find_source(load_text(folder, MINIMAL).models["prefill"], folder, lambda model: None)
    assert source is not None
    return source


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock a minute ahead, so that the times of all files can be trusted."""
    later = time.time_ns() + 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)


@pytest.mark.usefixtures("later")
def test_a_replaced_graph_has_other_stats(tmp_path: Path) -> None:
    write_model(tmp_path / "prefill.onnx")
    source = found(tmp_path)
    assert source.stats == found(tmp_path).stats is not None
    write_model(tmp_path / "other.onnx", "Sigmoid").replace(tmp_path / "prefill.onnx")
    assert found(tmp_path).stats not in (source.stats, None)


def test_a_new_graph_has_no_stats(tmp_path: Path) -> None:
    write_model(tmp_path / "prefill.onnx")
    assert found(tmp_path).stats is None


@pytest.mark.usefixtures("later")
def test_a_memo_does_not_record_unreadable_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_models(tmp_path)
    (tmp_path / "models" / "decode.bin").write_bytes(b"\1" * 16)  # not the weight of `prefill`
    recipe, place, opened = load_text(tmp_path, RECIPE), str(tmp_path / "memo"), io.FileIO

    def warnings() -> list[str]:
        memo = Memo.read(place)
        found = make_plan(recipe, memo=memo).warnings
        memo.write(place, is_whole=True)
        return [warning.code for warning in found]

    def busy(path: Any) -> io.FileIO:
        if Path(path).name == "decode.bin":
            raise OSError(errno.EIO, "Input/output error")
        return opened(path)

    with monkeypatch.context() as patch:
        patch.setattr(io, "FileIO", busy)
        assert warnings() == []
    assert warnings() == ["EPB233", "EPB233"]
    assert warnings() == ["EPB233", "EPB233"]
