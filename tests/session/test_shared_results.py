"""Results shared through a remote cache: wrong ones are never used, and never fail a build."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.workspace import Workspace
from epbuild.commands.cache import check_cache
from epbuild.commands.log import read_log
from epbuild.commands.plan import explain, survey
from epbuild.commands.run import cover, run
from epbuild.core.errors import BuildError, RecipeError
from epbuild.engine.events import EventList, Warned
from epbuild.remote.cache import RemoteCache
from epbuild.remote.statistics import RemoteStatistics
from epbuild.report.json.build import build_plan_document
from epbuild.report.terminal.event_lines import format_remote, format_upload
from epbuild.session.events import ModelCovered, RemoteCacheUsed, ResultsShared
from epbuild.session.planning import read_plan, resolve_remote
from epbuild.session.request import RemoteChoice
from epbuild.session.shared_results import SharedResults
from epbuild.survey.remote_results import RemoteResults
from tests.session.shared_machines import (
    ALL_COMPILES,
    OURS,
    THEIRS,
    Machines,
    cut,
    origins,
    outputs,
    shared_by,
    signed_by_another,
    used,
    warnings,
)
from tests.support.cache_server import CacheServer, Fault, serving_cache
from tests.support.fake_builds import CLASSIFIER, COMPILES, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, STEPS, Workshop, tamper
from tests.support.moments import at_each_return
from tests.support.remote_caches import Place, ServerPlace

SPACES = ("ac", "cas")


@pytest.fixture
def server() -> Iterator[CacheServer]:
    with serving_cache() as server:
        yield server


def test_results_of_one_machine_are_restored_on_another(place: Place, machines: Machines) -> None:
    made = shared_by(machines)
    reader = machines("reader")
    found = reader.survey()
    assert {status.step.id: (status.state, status.remote) for status in found.steps()} == {
        **dict.fromkeys([*COMPILES, SHARE, CLASSIFIER], ("restorable", True)),
        **dict.fromkeys([EMIT_DECODER, EMIT_CLASSIFIER], ("new", False)),
    }
    assert [step.remote for step in build_plan_document("epbuild.yaml", found).steps].count(True) == 4
    assert not reader.cache.exists()
    assert reader.build().exit_code == 0
    assert (reader.compiled, outputs(reader), warnings(reader)) == ([], made, [])
    assert origins(reader) == {
        **dict.fromkeys([*COMPILES, SHARE, CLASSIFIER], ("restored", "remote")),
        **dict.fromkeys([EMIT_DECODER, EMIT_CLASSIFIER], ("emitted", None)),
    }
    event = used(reader)
    assert (event.asked, event.found, event.unusable, event.published, event.sent_bytes) == (2, 2, 0, 0, 0)
    assert (
        format_remote(replace(event, received_bytes=1_200_000_000, seconds=14.2)) == "remote cache: 2 of 2 found, 1.2 GB in 14 s"
    )
    reader.build()
    assert {outcome for outcome, _ in origins(reader).values()} == {"current"}
    assert not [event for event in reader.events if isinstance(event, RemoteCacheUsed)]
    assert reader.states() == dict.fromkeys(STEPS, "current")


@pytest.mark.waits
@pytest.mark.slow
def test_waiting_for_uploads_reports_bytes_and_the_time_left(
    server: CacheServer, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", server.address)
    server.latency = 0.2
    writer = machines("writer")
    writer.remote = RemoteChoice("write")
    writer.build()
    first, *later, last = [event for event in writer.events if isinstance(event, ResultsShared)]
    assert (first.done, first.done_bytes, first.seconds_left) == (0, 0, None)
    assert (last.done, last.done_bytes) == (last.total, last.total_bytes) == (2, first.total_bytes)
    assert 0 < first.total_bytes <= sum(len(data) for (space, _), data in server.objects.items() if space == "cas")
    assert later
    assert all(0 < event.done_bytes < event.total_bytes and event.seconds_left for event in later)


class FakeCache:
    """Remote cache with given statistics."""

    name = "https://cache.example"

    def __init__(self, statistics: RemoteStatistics, *, writes: bool) -> None:
        self.statistics, self.writes = statistics, writes


@pytest.mark.parametrize(
    ("statistics", "writes", "codes"),
    [
        (RemoteStatistics(asked=3, found=1), False, []),
        (RemoteStatistics(asked=3), True, []),  # this machine is the first one
        (RemoteStatistics(asked=3), False, ["EPB523"]),
        (RemoteStatistics(asked=2), False, []),  # the last result was never looked up
    ],
)
def test_a_cache_that_has_no_result_is_reported_to_readers(
    statistics: RemoteStatistics, writes: bool, codes: list[str], tmp_path: Path
) -> None:
    events = EventList()
    shared = SharedResults(BlobStore(tmp_path), events, threading.Event())
    shared.finish(3)
    assert not events, "there is no remote cache"
    shared.cache = cast("RemoteCache", FakeCache(statistics, writes=writes))
    shared.finish(3)
    assert [event.problem.code for event in events if isinstance(event, Warned)] == codes
    assert [event.asked for event in events if isinstance(event, RemoteCacheUsed)] == [statistics.asked]


def test_the_progress_of_uploads_is_shown_with_the_time_left() -> None:
    event = ResultsShared("https://cache.example", 1, 2, 1_200_000_000, 3_200_000_000, 8.0)
    assert format_upload(event) == "writing results: 1 of 2 done, 1.2 GB of 3.2 GB, about 8 s left"
    assert format_upload(ResultsShared("https://cache.example", 0, 2)) == "writing results: 0 of 2 done"


def test_the_log_of_a_remote_compile_is_downloaded_on_request(place: Place, machines: Machines) -> None:
    shared_by(machines)
    reader = machines("reader")
    reader.build()

    def log() -> str:
        recipe, plan = read_plan(reader.request)
        with Workspace.open(reader.folder / ".epbuild") as workspace:
            return "".join(read_log(plan, CLASSIFIER, workspace, reader.request.recipe, resolve_remote(reader.request, recipe)))

    count = len(reader.blobs())
    assert check_cache(reader.cache).damaged == []  # although no log is here
    assert log() == "compiled classifier\n"
    assert len(reader.blobs()) == count + 1
    reader.lose_blobs()
    evicted(place)
    with pytest.raises(BuildError, match="missing from the remote cache"):
        log()


def test_restored_results_are_kept_in_the_store(place: Place, machines: Machines) -> None:
    made = shared_by(machines)
    reader = machines("reader")
    reader.build()
    reader.remote = None
    for group in made:
        for path in reader.output(group).iterdir():
            path.unlink()
    reader.build()
    assert (reader.compiled, outputs(reader)) == ([], made)


@pytest.mark.parametrize("choice", [None, RemoteChoice("off"), RemoteChoice(offline=True)])
def test_a_disabled_remote_cache_gets_no_requests(
    choice: RemoteChoice | None, server: CacheServer, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", server.address)
    reader = machines("reader")
    reader.remote = choice
    assert reader.build().exit_code == 0
    assert (reader.compiled, server.requests) == (ALL_COMPILES, [])


def test_rebuild_and_compare_ignores_remote_results(place: Place, machines: Machines) -> None:
    shared_by(machines)
    reader = machines("reader")
    reader.events = EventList()
    run(replace(reader.request, rebuild_and_compare=True), reader.events)
    assert sorted(reader.compiled) == sorted(ALL_COMPILES * 2)
    assert "remote" not in {origin for _, origin in origins(reader).values()}


def damaged(place: Place) -> None:
    for name in place.names("cas"):
        data = place.read("cas", name)
        assert data is not None
        place.write("cas", name, bytes([data[0] ^ 1]) + data[1:])


def truncated(place: Place) -> None:
    for name in place.names("cas"):
        place.write("cas", name, (place.read("cas", name) or b"")[:-1])


def evicted(place: Place) -> None:
    for name in place.names("cas"):
        place.write("cas", name, None)


def poisoned(place: Place) -> None:
    """Replace a record by that of another action, signature included."""
    first, second = place.names("ac")
    place.write("ac", first, place.read("ac", second))


@pytest.mark.parametrize("harm", [damaged, truncated, evicted, cut, signed_by_another, poisoned])
def test_an_unusable_result_is_compiled_and_replaced_by_the_next_writer(
    harm: Callable[[Place], None], place: Place, machines: Machines
) -> None:
    made = shared_by(machines)
    harm(place)
    reader = machines("reader")
    assert reader.build().exit_code == 0
    assert outputs(reader) == made
    lost = 1 if harm is poisoned else 2
    assert len(reader.compiled) == lost
    gone = harm is evicted and isinstance(place, ServerPlace)  # such a server returns no record with missing files
    assert [code for code in warnings(reader) if code != "EPB523"] == ["EPB522"] * (0 if gone or _strict(harm, place) else lost)
    mender = machines("mender")
    mender.remote = RemoteChoice("write")
    assert mender.build().exit_code == 0
    assert len(mender.compiled) == lost
    last = machines("last")
    assert last.build().exit_code == 0
    assert (last.compiled, outputs(last), warnings(last)) == ([], made, [])


def _strict(harm: Callable[[Place], None], place: Place) -> bool:
    """Return whether the server itself detects the damage, and answers that there is no record."""
    return isinstance(place, ServerPlace) and harm is truncated


def test_a_result_whose_file_disappears_after_planning_is_compiled(
    server: CacheServer, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", server.address)
    made = shared_by(machines)
    server.faults.append(Fault("status", "GET", "cas", status=404))
    reader = machines("reader")
    assert reader.build().exit_code == 0
    assert (reader.compiled, outputs(reader), warnings(reader)) == (ALL_COMPILES, made, ["EPB522"] * 2)


@pytest.mark.slow  # they wait before the next request
@pytest.mark.parametrize("kind", ["hang", "reset", "nonsense", "status"])
def test_a_faulty_server_causes_one_warning(
    kind: str, server: CacheServer, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", server.address)
    server.faults.append(Fault(kind))  # type: ignore[arg-type]
    reader = machines("reader")
    begin = time.monotonic()
    assert reader.build().exit_code == 0
    assert time.monotonic() - begin < 60  # the remote cache takes less than 10 of them; bench/ measures that
    assert (reader.compiled, warnings(reader)) == (ALL_COMPILES, ["EPB521"])


@pytest.mark.slow
def test_an_unreachable_server_causes_one_warning(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("EPBUILD_REMOTE_CACHE", f"http://127.0.0.1:{free.getsockname()[1]}")
    reader = machines("reader")
    reader.remote = RemoteChoice("write")
    assert reader.build().exit_code == 0
    assert (reader.compiled, warnings(reader)) == (ALL_COMPILES, ["EPB521"])


def test_a_client_without_write_permission_still_reads(
    server: CacheServer, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", server.address)
    shared_by(machines)
    other = machines("other")
    other.remote = RemoteChoice("write")
    server.faults.append(Fault("status", "PUT", status=403))
    tamper(other.folder / "classifier.onnx", (other.folder / "prefill.onnx").read_bytes())
    assert other.build().exit_code == 0
    assert (other.compiled, warnings(other)) == (["classifier"], ["EPB521"])
    assert origins(other)[SHARE] == ("restored", "remote")


def test_a_remote_cache_without_results_of_a_recipe_is_a_warning(place: Place, machines: Machines) -> None:
    place.write("cas", "0" * 64, b"of another recipe")
    reader = machines("reader")
    assert reader.build().exit_code == 0
    assert warnings(reader) == ["EPB523"]
    tamper(reader.folder / "classifier.onnx", (reader.folder / "prefill.onnx").read_bytes())
    assert reader.build().exit_code == 0
    assert (reader.compiled, warnings(reader)) == (["classifier"], [])


@pytest.mark.parametrize(
    ("remote", "key", "choice"),
    [
        ("ftp://cache.example", OURS.text, RemoteChoice()),
        ("http://cache.example/x", OURS.text, RemoteChoice()),
        ("off", OURS.text, RemoteChoice("write")),
        ("directory", "", RemoteChoice("write")),
        ("directory", THEIRS.text, RemoteChoice("write")),
    ],
)
def test_invalid_remote_settings_are_refused_before_any_change(
    remote: str, key: str, choice: RemoteChoice, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = machines("reader")
    reader.remote = choice
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", "" if remote == "off" else remote)
    monkeypatch.setenv("EPBUILD_SIGNING_KEY", key)
    before = sorted(reader.folder.rglob("*"))
    for act in (reader.build, lambda: survey(reader.request)):
        with pytest.raises(RecipeError) as failure:
            act()
        assert failure.value.exit_code == 2
    assert (sorted(reader.folder.rglob("*")), reader.cache.exists()) == (before, False)


def test_results_of_an_earlier_unsigned_build_are_published_later(place: Place, machines: Machines) -> None:
    first = machines("first")
    assert first.build().exit_code == 0
    assert place.names("ac") == []
    first.build()  # it leaves a snapshot of the current steps
    first.remote = RemoteChoice("write")
    assert first.build().exit_code == 0
    assert (first.compiled, used(first).published, len(place.names("ac"))) == ([], 2, 2)
    first.build()
    assert (used(first).published, used(first).found) == (0, 2)
    second = machines("second")
    second.build()
    assert (second.compiled, outputs(second)) == ([], outputs(first))


def test_an_unusable_remote_result_is_replaced_by_a_machine_that_has_it(place: Place, machines: Machines) -> None:
    made = shared_by(machines)
    first = machines("first")
    first.remote = None
    first.build()
    cut(place)
    first.remote = RemoteChoice("write")
    first.build()
    assert (first.compiled, used(first).published) == ([], 2)
    second = machines("second")
    second.build()
    assert (second.compiled, outputs(second), warnings(second)) == ([], made, [])


def test_a_result_completed_later_is_published_again(place: Place, machines: Machines) -> None:
    shared_by(machines)
    expected = "    expect: {ep_context_nodes: 1, fallback_nodes: 1}\n"
    measuring = f"{expected[:-2]}, shared_bytes: {{min_ratio: 0.01, measure: alone}}}}\n"

    def machine(name: str) -> Workshop:
        workshop = machines(name)
        text = (workshop.folder / "epbuild.yaml").read_text(encoding="utf-8")
        assert expected in text
        (workshop.folder / "epbuild.yaml").write_text(text.replace(expected, measuring), encoding="utf-8")
        return workshop

    finisher = machine("finisher")
    finisher.remote = RemoteChoice("write")
    assert finisher.build(SHARE).exit_code == 0
    assert finisher.compiled == ["prefill", "decode"]  # each alone to measure the savings by sharing
    reader = machine("reader")
    assert reader.build(SHARE).exit_code == 0
    assert reader.compiled == []
    older = machines("older")
    assert older.build().exit_code == 0
    assert older.compiled == []


def test_explain_says_why_a_remote_result_is_not_used(place: Place, machines: Machines) -> None:
    shared_by(machines)
    reader = machines("reader")
    [found] = explain(reader.request, [CLASSIFIER])
    assert (found.state, found.remote) == ("restorable", True)
    signed_by_another(place)
    [found] = explain(reader.request, [CLASSIFIER])
    assert (found.state, found.remote) == ("new", False)
    why = f"its result in the remote cache cannot be used: it is signed by a key that the recipe does not trust: {THEIRS.public}"
    assert found.reasons == (why,)
    assert reader.reasons(CLASSIFIER) == (why,)


def test_coverage_of_remote_results_downloads_no_file(place: Place, machines: Machines) -> None:
    shared_by(machines)
    reader = machines("reader")
    reader.events = EventList()
    cover(reader.request, reader.events)
    assert (reader.compiled, reader.blobs()) == ([], [])
    assert [event.outcome for event in reader.events if isinstance(event, ModelCovered)] == ["partial"] * 3


def test_a_result_published_during_a_build_is_not_built_again(place: Place, machines: Machines) -> None:
    made = shared_by(machines)
    held = {(space, name): place.read(space, name) for space in SPACES for name in place.names(space)}
    for space, name in held:
        place.write(space, name, None)
    place.write("cas", "0" * 64, b"of another recipe")  # an empty folder is no remote cache
    reader = machines("reader")

    def offer(found: object) -> None:
        for (space, name), data in held.items():
            place.write(space, name, data)

    with at_each_return(RemoteResults.find, offer):
        assert reader.build().exit_code == 0
    assert (reader.compiled, outputs(reader)) == ([], made)
    assert (used(reader).asked, used(reader).found) == (2, 2)
