"""Progress by bytes: every byte that a step copies, stores or writes is counted once."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

from epbuild import api
from epbuild.cache.blobs import BlobStore
from epbuild.core.byte_progress import ByteProgress, count_bytes
from epbuild.core.clone import copy_file
from epbuild.core.digest import LARGE_BYTES, Blob
from epbuild.core.shown import describe_files
from epbuild.engine.events import StepAdvanced, count_step_bytes
from epbuild.report.listeners import format_bytes
from tests.support.fake_builds import Workshop
from tests.support.moments import at_each_call

GB = 1_000_000_000


@pytest.mark.parametrize("size", [1000, 1 << 17, LARGE_BYTES + 5])
def test_each_way_to_copy_a_file_counts_its_bytes(tmp_path: Path, size: int) -> None:
    store, data, counted = BlobStore(tmp_path / "cache"), bytes(size), [0]

    def take() -> int:
        counted.append(0)
        return counted[-2]

    def count(piece: int) -> None:
        counted[-1] += piece

    for name in ("a", "b"):
        (tmp_path / name).write_bytes(data)
    copy_file(tmp_path / "a", tmp_path / "copy", count)
    assert take() == size
    blob = store.put(tmp_path / "a", count=count)
    assert take() == size
    store.put(tmp_path / "b", move=True, count=count)
    assert take() == size
    store.materialize(blob.digest, tmp_path / "c", count)
    assert take() == size
    other = BlobStore(tmp_path / "other")
    assert other.put_stream(Blob(hashlib.sha256(data).hexdigest(), size), io.BytesIO(data), count)
    assert take() == size


def test_a_build_counts_what_its_steps_store_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    seen: dict[tuple[str, str], int] = {}

    def see(values: Any) -> None:
        seen[values["step"], values["doing"].split()[0]] = values["total"]

    with at_each_call(count_step_bytes, see):
        api.run(workshop.request)
    emitted = {step: total for (step, doing), total in seen.items() if doing == "writing"}
    assert emitted.keys() == {status.step.id for status in api.plan(workshop.request).steps() if status.step.kind == "emit"}
    stored = {step: total for (step, doing), total in seen.items() if doing == "storing"}
    assert all(stored.values())
    assert sum(emitted.values()) == sum(stored.values())


def test_progress_stays_between_nothing_and_the_total() -> None:
    now = [0.0]
    seen: list[ByteProgress] = []
    with count_bytes(100, seen.append, lambda: now[0]) as count:
        for size in (20, -30, 10, 200, -50):
            now[0] += 1
            count(size)
    assert [(found.done, found.ended) for found in seen] == [(20, False), (0, False), (10, False), (50, False), (100, True)]


def test_progress_is_shown_with_the_file_and_the_time_left() -> None:
    event = StepAdvanced("compile:x", "storing decoder.bin", GB, 4 * GB, 14.0)
    assert format_bytes(event) == "storing decoder.bin: 1.0 GB of 4.0 GB, about 14 s left"
    assert format_bytes(StepAdvanced("compile:x", "storing decoder.bin", GB, GB, 0.0)) == "storing decoder.bin: 1.0 GB of 1.0 GB"


def test_files_are_named_by_the_one_with_most_of_the_bytes() -> None:
    assert describe_files({"in/decoder.onnx": 5, "in/decoder.onnx.data": 100}) == "decoder.onnx.data"
    assert describe_files({"a": 5, "b": 5}) == "2 files"
    assert describe_files({}) == "0 files"
    assert describe_files({"a" * 64: 5}) == f"{'a' * 27}..."
