"""`--rebuild-and-compare`: equal results are reported only if they are equal, and earlier files stay unchanged."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace

from epbuild.catalog.facts import KnownDifference
from epbuild.commands.run import run
from epbuild.diff.byte_differences import DifferingBytes, FileDifference
from epbuild.engine.events import EventList, RunFinished, StepFailed
from epbuild.session.events import ComparisonFinished, ComparisonStarted, StepCompared
from epbuild.session.rebuild import get_kept_folder, judge_differences
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, SHARE, STEPS, Workshop

Change = Callable[[Path], None]
"""Additional change of a worker to its output folder."""

MANY_SOCS = ("  plain: {", "  plain: {provider_options: {backend_type: htp, soc_model: 'SM8750,SC8380XP'}, ")
STAMP, LATER = "2026-11-22 00:11:01 UTC", "2026-11-22 00:12:05 UTC"


class Fickle:
    """Wrapper of a workshop's worker that applies `again` to the second result, by the group's first member."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self.first: dict[str, Change] = {}
        self.again: dict[str, Change] = {}
        self.seen: list[str] = []
        workshop.run_worker = self._supervise

    def compare(self, *selection: str, **more: Any) -> RunFinished:
        """Build, rebuild everything and compare. The events are in `workshop.events`."""
        self.seen.clear()
        self.workshop.events = EventList()
        request = replace(self.workshop.request, selection=selection, rebuild_and_compare=True, **more)
        run(request, self.workshop.events)
        [finished] = [event for event in self.workshop.events if isinstance(event, RunFinished)]
        assert finished is self.workshop.events[-1]
        return finished

    def compared(self) -> dict[str, StepCompared]:
        return {event.step: event for event in self.workshop.events if isinstance(event, StepCompared)}

    def codes(self) -> list[str]:
        return [problem.code for event in self.compared().values() for problem in event.problems] + self.workshop.failures

    def kept(self, action: str) -> dict[str, bytes]:
        place = get_kept_folder(self.workshop.folder / ".epbuild", action)
        return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}

    def _supervise(self, command: Any, folder: Path, log: Path, **options: Any) -> Ending:
        ending = self.workshop.worker(command, folder, log, **options)
        name = str(ending.reports[0]["member"])
        change = (self.again if log.name.endswith("++rebuilt.log") else self.first).get(name)
        self.seen.append(name)
        if change is not None:
            change(folder / "out")
        return ending


@pytest.fixture
def fickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fickle:
    return Fickle(Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch))


def appends(name: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(content)

    return change


def everything(workshop: Workshop) -> dict[Path, bytes]:
    """Return everything that a build leaves for users: the outputs, the store and the logs."""
    places = (workshop.folder / "dist", workshop.cache, workshop.folder / ".epbuild/logs")
    return {
        path: path.read_bytes()
        for place in places
        for path in place.rglob("*")
        if path.is_file() and not {"leases", "looks"} & {*path.parts} and path.name != "fingerprint.json"
    }


def test_an_equal_rebuild_is_reported_for_every_group_without_leftovers(fickle: Fickle) -> None:
    assert fickle.workshop.build().exit_code == 0
    before = everything(fickle.workshop)
    finished = fickle.compare()
    assert (finished.exit_code, finished.current, finished.built) == (0, len(STEPS), 0)
    assert sorted(fickle.seen) == ["classifier", "prefill"]
    assert {step: event.verdict for step, event in fickle.compared().items()} == {SHARE: "same", CLASSIFIER: "same"}
    assert fickle.compared()[SHARE].files == 3
    assert everything(fickle.workshop) == before
    assert not (fickle.workshop.folder / ".epbuild/rebuilt").exists()
    assert list((fickle.workshop.folder / ".epbuild/tmp").iterdir()) == []
    assert fickle.workshop.states() == dict.fromkeys(STEPS, "current")


def test_outdated_steps_are_built_first_and_then_rebuilt(fickle: Fickle) -> None:
    finished = fickle.compare()
    assert (finished.exit_code, finished.built) == (0, len(STEPS))
    assert sorted(fickle.seen) == ["classifier", "classifier", "prefill", "prefill"]
    [started] = [event for event in fickle.workshop.events if isinstance(event, ComparisonStarted)]
    [ended] = [event for event in fickle.workshop.events if isinstance(event, ComparisonFinished)]
    assert (started.groups, ended.same, ended.different) == (2, 2, 0)


def test_only_groups_of_selected_steps_are_rebuilt(fickle: Fickle) -> None:
    fickle.workshop.build()
    fickle.compare(EMIT_CLASSIFIER)
    assert fickle.seen == ["classifier"]
    assert fickle.compared().keys() == {CLASSIFIER}


def test_a_difference_fails_with_the_byte_and_keeps_both_trees(fickle: Fickle) -> None:
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", b"!")
    assert fickle.workshop.build().exit_code == 0
    before = everything(fickle.workshop)
    assert fickle.compare().exit_code == 1
    told = fickle.compared()[CLASSIFIER]
    assert (told.verdict, fickle.compared()[SHARE].verdict) == ("different", "same")
    [item] = told.differences
    size = item.old_size or 0
    assert (item.file, item.new_size, item.offset, item.count) == ("classifier_ctx_qnn.bin", size + 1, size, 1)
    [problem] = told.problems
    assert (problem.code, problem.where) == ("EPB650", CLASSIFIER)
    assert f"1 of {size:,} and {size + 1:,} bytes differ, the first at byte {size:,}" in problem.message
    kept = fickle.kept(CLASSIFIER)
    assert kept.keys() == {f"{tree}/classifier_ctx{end}" for tree in ("stored", "rebuilt") for end in (".onnx", "_qnn.bin")}
    assert kept["rebuilt/classifier_ctx_qnn.bin"] == kept["stored/classifier_ctx_qnn.bin"] + b"!"
    assert told.kept is not None
    assert str(get_kept_folder(Path(".epbuild"), CLASSIFIER)) in told.kept
    assert everything(fickle.workshop) == before
    assert fickle.workshop.states() == dict.fromkeys(STEPS, "current")


def test_the_next_comparison_replaces_the_kept_trees(fickle: Fickle) -> None:
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", b"first")
    fickle.compare()
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", b"second")
    fickle.compare()
    assert fickle.kept(CLASSIFIER)["rebuilt/classifier_ctx_qnn.bin"].endswith(b"]second")
    fickle.again.clear()
    assert fickle.compare().exit_code == 0
    assert not (fickle.workshop.folder / ".epbuild/rebuilt").exists()


def test_added_and_missing_files_are_reported(fickle: Fickle) -> None:
    def renames(folder: Path) -> None:
        path = folder / "classifier_ctx.onnx"
        made = onnx.load(path)
        for attribute in made.graph.node[0].attribute:
            if attribute.name == "ep_cache_context":
                attribute.s = b"other.bin"
        onnx.save(made, path)
        (folder / "classifier_ctx_qnn.bin").rename(folder / "other.bin")

    fickle.again["classifier"] = renames
    assert fickle.compare().exit_code == 1
    assert sorted(fickle.codes()) == ["EPB650", "EPB651", "EPB651"]
    sizes = {item.file: (item.old_size is None, item.new_size is None) for item in fickle.compared()[CLASSIFIER].differences}
    assert sizes == {
        "classifier_ctx.onnx": (False, False),
        "classifier_ctx_qnn.bin": (False, True),
        "other.bin": (True, False),
    }


def test_a_target_with_known_timestamps_can_differ_in_timestamps(fickle: Fickle) -> None:
    fickle.workshop.write_recipe(MANY_SOCS)
    fickle.first["classifier"] = appends("classifier_ctx_qnn.bin", STAMP.encode())
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", LATER.encode())
    assert fickle.compare().exit_code == 0
    told = fickle.compared()[CLASSIFIER]
    assert (told.verdict, told.problems) == ("known", ())
    assert told.known is not None
    assert "current time" in told.known
    assert told.kept is not None
    assert [(part.meaning, part.old, part.new) for item in told.differences for part in item.found] == [
        ("timestamp", STAMP, LATER)
    ]


def test_a_target_with_known_timestamps_cannot_differ_otherwise(fickle: Fickle) -> None:
    fickle.workshop.write_recipe(MANY_SOCS)
    fickle.first["classifier"] = appends("classifier_ctx_qnn.bin", b"weights 1 " + STAMP.encode())
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", b"weights 2 " + LATER.encode())
    assert fickle.compare().exit_code == 1
    assert fickle.codes() == ["EPB652"]


def test_a_timestamp_fails_for_a_target_without_known_timestamps(fickle: Fickle) -> None:
    fickle.first["classifier"] = appends("classifier_ctx_qnn.bin", STAMP.encode())
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", LATER.encode())
    assert fickle.compare().exit_code == 1
    assert fickle.codes() == ["EPB650"]


def test_a_compile_that_fails_the_second_time_is_reported_and_the_rest_compared(fickle: Fickle) -> None:
    fickle.again["classifier"] = lambda folder: (folder / "classifier_ctx_qnn.bin").unlink()
    assert fickle.compare(keep_going=True).exit_code == 1
    [failed] = [event for event in fickle.workshop.events if isinstance(event, StepFailed)]
    assert failed.step == CLASSIFIER
    assert [problem.code for problem in failed.problems] == ["EPB431", "EPB605"]
    assert fickle.compared()[SHARE].verdict == "same"
    assert fickle.workshop.states() == dict.fromkeys(STEPS, "current")
    log = failed.problems[0].hint or ""
    assert "compile+classifier+plain+classifier++rebuilt.log" in log


def test_a_failed_build_is_not_rebuilt_for_comparison(fickle: Fickle) -> None:
    fickle.first["classifier"] = lambda folder: (folder / "classifier_ctx_qnn.bin").unlink()
    assert fickle.compare().exit_code == 1
    assert not [event for event in fickle.workshop.events if isinstance(event, ComparisonStarted)]
    fickle.compare(keep_going=True)
    assert fickle.compared().keys() == {SHARE}


def test_an_input_that_changes_meanwhile_voids_the_comparison(fickle: Fickle) -> None:
    fickle.workshop.build()

    def changes_its_source(folder: Path) -> None:
        shutil.copyfile(fickle.workshop.folder / "decode.onnx", fickle.workshop.folder / "classifier.onnx")

    fickle.again["classifier"] = changes_its_source
    assert fickle.compare().exit_code == 1
    assert "EPB415" in fickle.codes()
    assert CLASSIFIER not in fickle.compared()


def test_results_lost_from_the_store_are_compared_by_digest(fickle: Fickle) -> None:
    fickle.workshop.build()
    fickle.workshop.lose_blobs()
    assert fickle.compare().exit_code == 0
    assert {event.verdict for event in fickle.compared().values()} == {"same"}
    assert fickle.workshop.blobs() == []
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", b"!")
    assert fickle.compare().exit_code == 1
    assert fickle.codes() == ["EPB653"]
    assert fickle.kept(CLASSIFIER).keys() == {"rebuilt/classifier_ctx.onnx", "rebuilt/classifier_ctx_qnn.bin"}


def test_trees_that_cannot_be_kept_are_an_environment_error(fickle: Fickle) -> None:
    fickle.workshop.build()
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", b"!")
    (fickle.workshop.folder / ".epbuild/rebuilt").write_text("in the way", encoding="utf-8")
    assert fickle.compare(keep_going=True).exit_code == 3
    assert "EPB432" in fickle.codes()


def test_concurrent_comparisons_have_the_same_verdict(fickle: Fickle) -> None:
    fickle.workshop.build()
    both = threading.Barrier(2, timeout=60)

    def waits(folder: Path) -> None:
        both.wait()

    fickle.again = {"prefill": waits, "classifier": waits}  # neither ends before the other has begun
    assert fickle.compare(jobs=2).exit_code == 0
    assert {event.verdict for event in fickle.compared().values()} == {"same"}


def test_an_interrupted_comparison_is_reported_and_keeps_no_trees(fickle: Fickle) -> None:
    fickle.workshop.build()

    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    fickle.again["prefill"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        fickle.compare()
    assert not (fickle.workshop.folder / ".epbuild/rebuilt").exists()
    assert fickle.workshop.states() == dict.fromkeys(STEPS, "current")


DIFFERENT = FileDifference("x.bin", 4, 4, 0, 1, (DifferingBytes("bytes", "", 0, 1),))
LATER_ONLY = FileDifference("x.bin", 4, 4, 0, 1, (DifferingBytes("timestamp", "", 0, 1),))
GONE = FileDifference("x.bin", 4, None)


@pytest.mark.parametrize(
    ("differences", "by", "verdict"),
    [
        ((), ("timestamp",), "same"),
        ((LATER_ONLY,), (), "different"),
        ((LATER_ONLY,), ("timestamp",), "known"),
        ((LATER_ONLY, DIFFERENT), ("timestamp",), "different"),
        ((GONE,), ("timestamp",), "different"),
        ((DIFFERENT, GONE), (None,), "known"),
        ((DIFFERENT,), ("timestamp", None), "known"),
    ],
)
def test_only_known_differences_of_a_target_are_accepted(differences: Any, by: Any, verdict: str) -> None:
    known = [KnownDifference("because", "measured", by=row) for row in by]
    assert judge_differences(differences, known) == verdict


ACCEPTED = "the recipe accepts that repeated compiles produce different bytes"


def accepts(fickle: Fickle, *, group: bool) -> None:
    old = "    models: [classifier]\n" if group else "  plain: {"
    fickle.workshop.write_recipe(
        (old, f"{old}    allow_nondeterminism: true\n" if group else f"{old}allow_nondeterminism: true, ")
    )


def writes_other_bytes(name: str) -> Change:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    return change


@pytest.mark.parametrize("group", [True, False])
def test_a_recipe_can_accept_other_bytes_of_equal_size(fickle: Fickle, group: bool) -> None:
    accepts(fickle, group=group)
    fickle.again["classifier"] = writes_other_bytes("classifier_ctx_qnn.bin")
    assert fickle.compare().exit_code == 0
    told = fickle.compared()[CLASSIFIER]
    assert (told.verdict, told.known, told.problems) == ("known", ACCEPTED, ())
    assert told.kept is not None


def test_a_recipe_cannot_accept_another_size_of_a_context(fickle: Fickle) -> None:
    accepts(fickle, group=True)
    fickle.again["classifier"] = appends("classifier_ctx_qnn.bin", b"!")
    assert fickle.compare().exit_code == 1
    [problem] = fickle.compared()[CLASSIFIER].problems
    assert problem.code == "EPB652"
    assert "size of the context" in problem.message


def test_a_recipe_cannot_accept_another_graph_around_a_context(fickle: Fickle) -> None:
    def renames_an_output(folder: Path) -> None:
        model = onnx.load(folder / "classifier_ctx.onnx")
        model.graph.output[0].name = model.graph.node[-1].output[0] = "other"
        onnx.save(model, folder / "classifier_ctx.onnx")

    accepts(fickle, group=True)
    fickle.again["classifier"] = renames_an_output
    assert fickle.compare().exit_code == 1
    assert fickle.codes() == ["EPB652"]


def test_accepting_other_bytes_needs_no_compile_and_is_in_the_manifest(fickle: Fickle) -> None:
    assert fickle.workshop.build().exit_code == 0
    fickle.seen.clear()
    accepts(fickle, group=True)
    assert fickle.workshop.build().exit_code == 0
    assert fickle.seen == []
    target = json.loads(fickle.workshop.contents("classifier")["manifest.json"])["target"]
    assert (target["allow_nondeterminism"], target["not_reproducible"]) == (True, ACCEPTED)
