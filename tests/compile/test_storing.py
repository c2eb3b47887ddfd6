"""Storing of artifacts after a worker ends, whatever files it left. The next compile does not wait for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.commands.run import run
from epbuild.engine.events import NoProgress
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import SHARE, Workshop
from tests.support.moments import at_each_call

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows lets few users make links")

PATIENCE = 10
"""Timeout of a wait in seconds. It fails the test."""
LONG_ENOUGH = 0.3
"""Seconds within which a worker starts if it is allowed to."""

MORE = "".join(
    f"  more{number}: {{toolchain: qnn, ep: QNNExecutionProvider, environment: {{N: {number}}}}}\n" for number in range(6)
)


class Overlap:
    """Counter of started workers that blocks all storing until its release, or for `held` seconds."""

    def __init__(self, workshop: Workshop) -> None:
        self.started = 0
        self.let_go = threading.Event()
        self.storing = threading.Event()
        self.held: float = PATIENCE
        self._change = threading.Condition()
        self._worker = workshop.worker
        workshop.run_worker = self._supervise

    def hold_up(self, call: object) -> None:
        self.storing.set()
        self.let_go.wait(self.held)

    def workers(self, count: int, patience: float = PATIENCE) -> bool:
        """Return whether this number of workers starts in time."""
        with self._change:
            return self._change.wait_for(lambda: self.started >= count, patience)

    def _supervise(self, *arguments: Any, **options: Any) -> Ending:
        with self._change:
            self.started += 1
            self._change.notify_all()
        return self._worker(*arguments, **options)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


@pytest.fixture
def overlap(workshop: Workshop) -> Iterator[Overlap]:
    found = Overlap(workshop)
    with at_each_call(BlobStore.put, found.hold_up):
        yield found


def in_the_background(workshop: Workshop) -> Callable[[], int]:
    """Start a build of one action, and return a function that waits for its exit code."""
    codes: list[int] = []
    request = replace(workshop.request, memory=1 << 50)
    build = threading.Thread(target=lambda: codes.append(run(request, NoProgress())))
    build.start()

    def ended() -> int:
        build.join(PATIENCE)
        return codes[0]

    return ended


def test_next_group_is_compiled_while_the_previous_group_is_stored(workshop: Workshop, overlap: Overlap) -> None:
    ended = in_the_background(workshop)
    assert overlap.storing.wait(PATIENCE)
    at_once = overlap.workers(2)
    overlap.let_go.set()
    assert ended() == 0
    assert at_once
    assert workshop.states()[SHARE] == "current"


def test_groups_that_wait_for_a_slow_disk_are_limited(workshop: Workshop, overlap: Overlap) -> None:
    targets = ("groups:\n", f"{MORE}groups:\n"), ("targets: [plain]", "targets: [plain, more*]")
    workshop.write_recipe(*targets, ("dist/${group}", "dist/${group}/${target}"))
    ended = in_the_background(workshop)
    four_and_one = overlap.workers(5)
    more = overlap.workers(6, LONG_ENOUGH)
    overlap.let_go.set()
    assert ended() == 0
    assert (four_and_one, more) == (True, False)
    assert overlap.started == 8


@pytest.mark.slow
def test_group_with_measurements_keeps_its_slot_for_the_measurements(workshop: Workshop, overlap: Overlap) -> None:
    workshop.write_recipe(("fallback_nodes: 1}", "fallback_nodes: 1, shared_bytes: {min_ratio: 0.1, measure: alone}}"))
    overlap.held = LONG_ENOUGH
    assert in_the_background(workshop)() == 0
    assert workshop.compiled == ["prefill+decode", "prefill", "decode", "classifier"]


def by_a_link(out: Path, binary: Path) -> None:
    binary.rename(out / "real.bin")
    binary.symlink_to("real.bin")


def with_another_name(out: Path, binary: Path) -> None:
    os.link(binary, out / "again.bin")


def read_only(out: Path, binary: Path) -> None:
    binary.chmod(0o444)


@posix_only
@pytest.mark.parametrize("rearrange", [by_a_link, with_another_name, read_only])
def test_artifacts_are_stored_from_any_file_layout(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, rearrange: Callable[[Path, Path], None]
) -> None:
    workshop.build("*classifier*")
    expected = artifacts(workshop)
    for path in workshop.output("classifier").iterdir():
        path.unlink()
    workshop.lose_blobs()

    change_results(workshop, lambda out: rearrange(out, out / "classifier_ctx_qnn.bin"))
    assert workshop.build("*classifier*").exit_code == 0
    assert workshop.compiled == ["classifier"]
    assert artifacts(workshop) == expected
    assert not any(blob.is_symlink() for blob in workshop.blobs())


@posix_only
def test_file_named_by_two_artifacts_is_stored_for_both_artifacts(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["data.bin", "link.bin"]

    def refer(out: Path) -> None:
        (out / names[0]).write_bytes(bytes(4))
        (out / names[1]).symlink_to(names[0])
        model = onnx.load(out / "classifier_ctx.onnx")
        for name in names:
            tensor = model.graph.initializer.add(name=name, data_type=onnx.TensorProto.FLOAT, dims=[1])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
        (out / "classifier_ctx.onnx").write_bytes(model.SerializeToString())

    change_results(workshop, refer)
    assert workshop.build("*classifier*").exit_code == 0
    assert [artifacts(workshop)[name] for name in names] == [bytes(4)] * 2


@posix_only
def test_linked_file_outside_the_results_is_kept(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept by the EP"

    def link(out: Path) -> None:
        (out / "classifier_ctx.onnx").rename(kept)
        (out / "classifier_ctx.onnx").symlink_to(kept)

    change_results(workshop, link)
    assert workshop.build("*classifier*").exit_code == 0
    assert kept.read_bytes() in [blob.read_bytes() for blob in workshop.blobs()]


def change_results(workshop: Workshop, change: Callable[[Path], None]) -> None:
    """Pass the folder of the worker's results to `change` after the worker."""

    def supervise(command: object, folder: Path, log: Path, **options: object) -> Ending:
        ending = workshop.worker(command, folder, log, **options)
        change(folder / "out")
        return ending

    workshop.run_worker = supervise


def artifacts(workshop: Workshop) -> Mapping[str, bytes]:
    return {name: data for name, data in workshop.contents("classifier").items() if not name.endswith(".json")}
