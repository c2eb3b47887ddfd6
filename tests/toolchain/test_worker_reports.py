"""Reports of a worker: valid ones become events, invalid ones an error, and other output is ignored."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.toolchain.process import Ending, WorkerListener, supervise
from epbuild.toolchain.reports import BadReport, read_report
from tests.support.fake_builds import Workshop

GOOD: list[Mapping[str, Any]] = [
    {"event": "started", "onnxruntime": "1.31.1"},
    {"event": "device", "ep": "A", "type": "npu", "vendor": "B", "metadata": {}},
    {"event": "offered", "ep": "A", "type": "npu", "vendor": "B", "metadata": {"version": "1"}},
    {"event": "member_started", "member": "a"},
    {"event": "member_finished", "member": "a", "seconds": 0.5},
    {"event": "compatibility", "model": "a", "ep": "A", "answer": None, "reason": "none"},
    {"event": "ran", "model": "a", "run": 0, "outputs": ["y"], "seconds": 0.1},
    {"event": "failed", "kind": "error", "type": "X", "message": "no", "peak_memory": 7, "mapped": 1, "mappable": 2},
    {"event": "finished", "peak_memory": None},
    {"event": "of a later worker", "anything": [1]},
]
OTHERS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers()), st.just({})
)


@pytest.mark.parametrize("report", GOOD)
def test_valid_worker_report_is_read_unchanged(report: Mapping[str, Any]) -> None:
    assert read_report(json.dumps(report).encode()) == report


@pytest.mark.parametrize(
    "line", [b"", b"hello\n", b"[1]", b"null", b"\xff", b"{}", b'{"event": 7}', b"[" * 100_000, b'{"a": "b"}']
)
def test_line_that_is_not_a_report_is_ignored(line: bytes) -> None:
    assert read_report(line) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "member_started"}',
        '{"event": "member_started", "member": ["a"]}',
        '{"event": "member_finished", "member": "a", "seconds": NaN}',
        '{"event": "member_finished", "member": "a", "seconds": -1}',
        '{"event": "member_finished", "member": "a", "seconds": true}',
        '{"event": "finished", "peak_memory": "much"}',
        '{"event": "finished", "peak_memory": 9223372036854775808}',
        '{"event": "failed"}',
        '{"event": "ran", "model": "a", "run": 0, "outputs": "y"}',
        r'{"event": "member_finished", "member": "a", "seconds": "\ud800"}',
    ],
)
def test_report_without_a_required_field_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(BadReport) as caught:
        read_report(text.encode())
    assert str(caught.value) == text


def test_long_report_is_shortened_and_stripped_of_control_characters() -> None:
    with pytest.raises(BadReport) as caught:
        read_report(b'{"event": "failed", "message": "\xc2\x9b2J' + b"x" * 10_000_000 + b'"}')
    assert len(str(caught.value)) < 300
    assert "\x9b" not in str(caught.value)


@given(report=st.sampled_from(GOOD), name=st.text(max_size=12), other=OTHERS)
def test_any_report_is_read_or_refused(report: Mapping[str, Any], name: str, other: Any) -> None:
    for key in [*report, name]:
        try:
            read = read_report(json.dumps({**report, key: other}).encode())
        except BadReport:
            continue
        assert read is None or isinstance(read["event"], str)


def test_worker_with_an_invalid_report_is_ended_at_once(tmp_path: Path) -> None:
    script = """import time; print('{"event": "member_started"}', flush=True); time.sleep(600)"""
    with pytest.raises(BadReport):
        supervise(
            [sys.executable, "-c", script],
            tmp_path,
            tmp_path / "log",
            WorkerListener(),
            timeout=60,
            environment={},
            cancelled=threading.Event(),
        )


@pytest.mark.parametrize("wrong", ["of nobody", None])
def test_build_names_the_invalid_worker_report_in_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)

    def worker(command: Any, folder: Path, log: Path, listener: WorkerListener, **options: Any) -> Ending:
        if wrong is None:
            raise BadReport("{}")
        listener.reported({"event": "member_started", "member": wrong})
        raise AssertionError("it is refused")

    workshop.run_worker = worker
    assert workshop.build().exit_code == 1
    assert workshop.failures
    assert set(workshop.failures) == {"EPB311"}
