"""Results of a recipe in its remote cache: published after the build, and checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.commands.remote_cache import Push, RemoteCheck, check_results, push_results
from epbuild.core.errors import Cancelled, RecipeError
from epbuild.report.json.store import build_push_document, build_remote_check_document
from epbuild.report.terminal.store import print_push, print_remote_check
from epbuild.session.request import RemoteChoice
from tests.session.shared_machines import (
    THEIRS,
    Machines,
    cut,
    machines_in,
    outputs,
    remote_place,
    shared_by,
    signed_by_another,
    warnings,
)
from tests.support.cache_server import CacheServer, Fault
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, SHARE, Workshop
from tests.support.remote_caches import DirectoryPlace, Place, ServerPlace


@pytest.fixture(params=["directory", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with remote_place(request.param, tmp_path, monkeypatch) as place:
        yield place


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheServer]:
    with remote_place("server", tmp_path, monkeypatch) as place:
        assert isinstance(place, ServerPlace)
        yield place.server


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return machines_in(tmp_path, monkeypatch)


def push(workshop: Workshop, *selection: str, again: bool = False) -> Push:
    request = replace(workshop.request, selection=selection, emits=False, remote=RemoteChoice("write"))
    return push_results(request, replace=again)


def check(workshop: Workshop, *selection: str) -> RemoteCheck:
    return check_results(replace(workshop.request, selection=selection, emits=False, remote=RemoteChoice()))


def pushed(done: Push) -> dict[str, str]:
    return {result.step: result.outcome for result in done.results}


def checked(found: RemoteCheck) -> dict[str, tuple[str, str]]:
    return {result.step: (result.outcome, result.why) for result in found.results}


def built(machines: Machines, name: str = "first") -> Workshop:
    """Return a machine that has built and published nothing."""
    workshop = machines(name)
    workshop.remote = None
    assert workshop.build().exit_code == 0
    return workshop


def test_earlier_results_of_a_machine_are_published(place: Place, machines: Machines) -> None:
    first = built(machines)
    seen: list[tuple[int, int]] = []
    done = push_results(replace(first.request, emits=False, remote=RemoteChoice("write")), lambda *found: seen.append(found))
    assert pushed(done) == {SHARE: "written", CLASSIFIER: "written"}
    assert (done.sent_bytes > 0, done.warnings) == (True, ())
    assert seen[-1][0] == seen[-1][1] == sum(result.size for result in done.results)
    assert pushed(push(first)) == {SHARE: "there", CLASSIFIER: "there"}
    second = machines("second")
    assert second.build().exit_code == 0
    assert (second.compiled, outputs(second), warnings(second)) == ([], outputs(first), [])


def test_only_requested_results_are_published(place: Place, machines: Machines) -> None:
    first = built(machines)
    assert pushed(push(first, EMIT_CLASSIFIER)) == {CLASSIFIER: "written"}
    assert len(place.names("ac")) == 1


def test_results_missing_on_this_machine_are_counted(place: Place, machines: Machines) -> None:
    first = machines("first")
    first.build(CLASSIFIER)
    assert pushed(push(first)) == {SHARE: "not here", CLASSIFIER: "written"}


def test_results_of_other_machines_are_published_without_their_logs(
    place: Place, machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shared_by(machines)
    reader = machines("reader")
    reader.build()
    with remote_place("server", tmp_path, monkeypatch) as other:
        assert pushed(push(reader)) == {SHARE: "written", CLASSIFIER: "written"}
        third = machines("third")
        third.build()
        assert (third.compiled, outputs(third)) == ([], made)
        assert len(other.names("ac")) == 2


def test_nothing_is_published_without_a_valid_signing_key(
    place: Place, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built(machines)
    for key in ("", THEIRS.text):
        monkeypatch.setenv("EPBUILD_SIGNING_KEY", key)
        with pytest.raises(RecipeError):
            push(first)
    assert place.names("ac") == []


def test_failed_upload_is_reported(server: CacheServer, machines: Machines) -> None:
    first = built(machines)
    server.faults.append(Fault("status", "PUT", status=403))
    done = push(first)
    assert (set(pushed(done).values()), [problem.code for problem in done.warnings]) == ({"failed"}, ["EPB521"])


def test_results_in_the_remote_cache_are_checked(place: Place, machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    shared_by(machines)
    reader = machines("reader")
    assert checked(check(reader)) == dict.fromkeys([SHARE, CLASSIFIER], ("sound", ""))
    assert (reader.blobs(), (reader.folder / ".epbuild").exists()) == ([], False)
    assert list(checked(check(reader, CLASSIFIER))) == [CLASSIFIER]
    (reader.folder / "classifier.onnx").write_bytes((reader.folder / "prefill.onnx").read_bytes())
    found = check(reader)
    assert checked(found) == {SHARE: ("sound", ""), CLASSIFIER: ("not there", "")}
    print_remote_check(found)
    text = capsys.readouterr().out
    assert f"not there  {CLASSIFIER}\n" in text
    assert "2 results, 1 sound" in text
    assert build_remote_check_document(found).results[0].outcome == "sound"


def damaged(place: Place) -> None:
    for name in place.names("cas"):
        data = place.read("cas", name) or b""
        place.write("cas", name, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (damaged, "one of its files is damaged in the remote cache: "),
        (cut, "it is damaged, or not a record of epbuild"),
        (signed_by_another, f"it is signed by a key that the recipe does not trust: {THEIRS.public}"),
    ],
)
def test_unusable_results_are_reported_and_replaced(
    harm: Callable[[Place], None], why: str, place: Place, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    first = built(machines)
    push(first)
    harm(place)
    found = check(first)
    assert {result.outcome for result in found.results} == {"unusable"}
    assert all(result.why.startswith(why) for result in found.results)
    assert found.warnings == ()
    print_remote_check(found)
    assert "`epbuild cache push --replace STEP`" in capsys.readouterr().out
    done = push(first, again=True)
    assert set(pushed(done).values()) == {"written"}
    print_push(done)
    assert "2 results, 2 written (" in capsys.readouterr().out
    assert build_push_document(done).results[0].outcome == "written"
    assert {result.outcome for result in check(first).results} == {"sound"}


def test_missing_remote_file_is_reported(tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with remote_place("directory", tmp_path, monkeypatch) as place:
        assert isinstance(place, DirectoryPlace)
        shared_by(machines)
        for name in place.names("cas"):
            place.write("cas", name, None)
        found = check(machines("reader"))
    assert {why.partition(":")[0] for _, why in checked(found).values()} == {"one of its files is missing from the remote cache"}


def test_unreachable_server_leaves_results_unknown(server: CacheServer, machines: Machines) -> None:
    shared_by(machines)
    server.faults.append(Fault("reset"))
    found = check(machines("reader"))
    assert {result.outcome for result in found.results} == {"unknown"}
    assert [problem.code for problem in found.warnings] == ["EPB521"]


def test_check_without_a_remote_cache_is_refused(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", "off")
    with pytest.raises(RecipeError) as failure:
        check(machines("reader"))
    assert failure.value.problems[0].code == "EPB275"


def test_push_ends_when_cancelled(place: Place, machines: Machines) -> None:
    first = built(machines)
    stop = threading.Event()
    stop.set()
    request = replace(first.request, emits=False, remote=RemoteChoice("write"))
    with pytest.raises(Cancelled):
        push_results(request, cancelled=stop)
    assert place.names("ac") == []
