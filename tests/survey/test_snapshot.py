"""Fast path: it answers only while no input of the last answer has changed, and it imports nothing else."""

from __future__ import annotations

import hashlib
import marshal
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild import __version__
from epbuild.cli import app
from epbuild.cli.app import execute
from epbuild.commands.plan import survey
from epbuild.commands.run import run
from epbuild.core.errors import Argument, EpbuildError, Location, Position, Problem, ProblemRecord, StepId
from epbuild.core.own_files import list_own_files
from epbuild.session.request import RemoteChoice, Request
from epbuild.survey import snapshot
from epbuild.survey.snapshot import FORMAT, list_snapshots, read, read_clock, read_unchanged, remove_older, try_fast_path
from tests.support.fake_cpu import on_cpu
from tests.support.moments import at_each_call
from tests.support.snapshots import take_snapshot

MARGIN_SECONDS = 0.12  # a little more than file systems with fine timestamps require
needs_links = pytest.mark.skipif(os.name == "nt", reason="only administrators may make links on Windows")
NOTHING_TO_DO = "Nothing to do: 3 steps are current"


class Folder:
    """Recipe with a workspace and two files that a build depends on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "epbuild.yaml"
        self.files = [self.recipe, path / "model.onnx", path / "dist" / "model_ctx.onnx"]
        (path / ".epbuild").mkdir(parents=True)
        (path / ".epbuild" / "state.sqlite").touch()
        (path / "dist").mkdir()
        for file in self.files:
            file.write_bytes(b"as it was")
        time.sleep(MARGIN_SECONDS)

    def take(
        self,
        files: Iterable[Path] | None = None,
        absent: Iterable[Path] = (),
        environment: Mapping[str, str | None] | None = None,
        began: tuple[int, int] | None = None,
        *,
        locked: bool = False,
    ) -> None:
        moment = began or read_clock(str(self.recipe)) or (0, 0)
        watched = self.files if files is None else files
        lock = "held" if locked else "none"
        take_snapshot(self.recipe, watched, moment, environment=environment, absent=list(absent), lock=lock)

    @property
    def snapshots(self) -> list[Path]:
        return [Path(place) for place in list_snapshots(str(self.recipe))]

    def try_fast_path(self, *arguments: str) -> str | None:
        return try_fast_path(["run", *arguments, str(self.recipe)], lambda: 0.25)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    return Folder(tmp_path / "checkout")


@pytest.fixture
def with_snapshot(folder: Folder) -> Folder:
    folder.take()
    return folder


def test_fast_path_reports_up_to_date_like_a_build(with_snapshot: Folder) -> None:
    assert with_snapshot.try_fast_path() == f"{NOTHING_TO_DO} (0.25 s)"
    assert with_snapshot.try_fast_path("--check") == f"{NOTHING_TO_DO}."


def rewrite_in_place(file: Path) -> None:
    """Write other bytes of the same length, and reset the modification time."""
    before = file.stat()
    file.write_bytes(b"otherwise")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_another(file: Path) -> None:
    """Replace a file by a new one of the same length and times."""
    other = file.with_name("other")
    shutil.copy2(file, other)
    other.replace(file)


CHANGES: list[Callable[[Path], object]] = [
    rewrite_in_place,
    replace_by_another,
    lambda file: file.write_bytes(b""),
    lambda file: file.unlink(),
    lambda file: os.utime(file, (1, 1)),
]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("change", CHANGES, ids=["rewritten", "replaced", "emptied", "deleted", "touched"])
def test_every_change_of_a_file_is_detected(with_snapshot: Folder, number: int, change: Callable[[Path], object]) -> None:
    change(with_snapshot.files[number])
    assert with_snapshot.try_fast_path() is None


@pytest.mark.parametrize(("size", "is_hashed"), [(1 << 20, True), (129 << 20, False)])
def test_touched_file_is_hashed_only_if_hashing_is_fast(folder: Folder, size: int, is_hashed: bool) -> None:
    weights = folder.path / "weights.bin"
    with weights.open("wb") as file:
        file.truncate(size)
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    time.sleep(MARGIN_SECONDS)
    folder.take({weights: digest})
    assert folder.try_fast_path() is not None
    os.utime(weights, (1, 1))
    hashed: list[str] = []
    with at_each_call(snapshot._hash_file, lambda values: hashed.append(values["path"])):
        assert (folder.try_fast_path() is not None) is is_hashed
    assert bool(hashed) is is_hashed


@needs_links
@pytest.mark.parametrize("relative", [False, True], ids=["from the root", "from the working directory"])
def test_parent_of_a_linked_path_is_resolved_like_the_system_does(
    folder: Folder, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "real" / "deep").mkdir(parents=True)
    (folder.path / "link").symlink_to(Path("real", "deep"))
    (folder.path / "real" / "x.onnx").write_bytes(b"as it was")
    (folder.path / "x.onnx").write_bytes(b"another of the same name")
    time.sleep(MARGIN_SECONDS)
    monkeypatch.chdir(folder.path)
    folder.take(files=[*folder.files, Path("link/../x.onnx") if relative else folder.path / "link" / ".." / "x.onnx"])
    (folder.path / "x.onnx").write_bytes(b"which nobody asked for")
    assert folder.try_fast_path() is not None
    (folder.path / "real" / "x.onnx").write_bytes(b"otherwise")
    assert folder.try_fast_path() is None


@needs_links
@pytest.mark.parametrize("name", ["link/x.onnx", "x.onnx", "../other.onnx"])
def test_retargeted_link_is_detected_even_with_an_equal_file(with_snapshot: Folder, name: str) -> None:
    """Check this because other files beside the link's new target may differ."""
    folders = [with_snapshot.path / "one", with_snapshot.path / "two"]
    for place in folders:
        place.mkdir()
    (folders[0] / "x.onnx").write_bytes(b"as it was")
    (folders[1] / "x.onnx").hardlink_to(folders[0] / "x.onnx")
    (with_snapshot.path / "link").symlink_to("one")
    (with_snapshot.path / "x.onnx").symlink_to(Path("link", "x.onnx"))
    (with_snapshot.path.parent / "other.onnx").symlink_to(with_snapshot.path / "x.onnx")
    time.sleep(MARGIN_SECONDS)
    with_snapshot.take(files=[*with_snapshot.files, with_snapshot.path / name])
    assert with_snapshot.try_fast_path() is not None
    (with_snapshot.path / "link").unlink()
    (with_snapshot.path / "link").symlink_to("two")
    assert with_snapshot.try_fast_path() is None


@needs_links
def test_recipe_behind_a_link_belongs_to_the_target_of_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that two copies with equal inodes are two workspaces."""
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    one = Folder(tmp_path / "one")
    (tmp_path / "link").symlink_to("one")
    behind = tmp_path / "link" / "epbuild.yaml"
    take_snapshot(behind, one.files, read_clock(str(behind)) or (0, 0))
    assert one.try_fast_path() is not None
    shutil.copytree(one.path, tmp_path / "two", copy_function=os.link)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("two")
    assert try_fast_path(["run", str(behind)], lambda: 0.0) is None


@needs_links
def test_missing_file_is_searched_at_the_current_target_of_a_link(folder: Folder) -> None:
    for name in ("one", "two"):
        (folder.path / name).mkdir()
    (folder.path / "link").symlink_to("one")
    folder.take(absent=[folder.path / "link" / ".." / "epbuild.lock", folder.path / "link" / "x.lock"])
    assert folder.try_fast_path() is not None
    (folder.path / "two" / "x.lock").write_bytes(b"")
    (folder.path / "link").unlink()
    (folder.path / "link").symlink_to("two")
    assert folder.try_fast_path() is None


def test_appearance_of_a_missing_file_is_detected(folder: Folder) -> None:
    lock = folder.path / "epbuild.lock"
    folder.take(absent=[lock])
    assert folder.try_fast_path() is not None
    lock.write_bytes(b"")
    assert folder.try_fast_path() is None
    lock.unlink()
    assert folder.try_fast_path() is not None


def test_file_that_appears_during_the_run_prevents_a_snapshot(folder: Folder) -> None:
    folder.take(absent=[folder.files[1]])
    assert not folder.snapshots


def test_only_a_locked_run_answers_locked(folder: Folder) -> None:
    folder.take()
    assert folder.try_fast_path("--locked") is None
    folder.take(locked=True)
    assert folder.try_fast_path("--locked") == folder.try_fast_path() == f"{NOTHING_TO_DO} (0.25 s)"
    assert folder.try_fast_path("--locked", "--check") == f"{NOTHING_TO_DO}."


WARNING = Problem("EPB233", "nothing is shared", Position("epbuild.yaml", 3, 5))


def test_warnings_are_repeated_by_a_run_but_not_by_a_check(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    here = Path("epbuild.yaml")
    take_snapshot(here, folder.files, read_clock(str(here)) or (0, 0), warnings=[WARNING])
    given: list[Any] = []
    assert try_fast_path(["run"], lambda: 0.25, given.extend) == f"{NOTHING_TO_DO} (0.25 s)"
    assert [msgspec.convert(record, ProblemRecord).problem for record in given] == [WARNING]
    assert try_fast_path(["run", "--check"], lambda: 0.25, given.extend) == f"{NOTHING_TO_DO}."
    assert [msgspec.convert(record, ProblemRecord).problem for record in given] == [WARNING]
    # Otherwise it would name the file.
    assert try_fast_path(["run", str(folder.recipe)], lambda: 0.25, given.extend) is None
    assert try_fast_path(["run", "./epbuild.yaml"], lambda: 0.25, given.extend) is None


def test_run_with_a_summary_file_writes_the_summary(with_snapshot: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert with_snapshot.try_fast_path() is None
    assert with_snapshot.try_fast_path("--check") == f"{NOTHING_TO_DO}."


PLACES = [None, StepId("emit:a"), Position("epbuild.yaml", 3, 5), Path("epbuild.lock"), Argument("--set a=b")]


@pytest.mark.parametrize("where", PLACES)
def test_stored_problem_survives_a_round_trip(where: Location | None) -> None:
    for hint, reason in ((None, None), ("Mend it.", "it is so")):
        problem = Problem("EPB233", "nothing is shared", where, hint, reason)
        kept = marshal.loads(marshal.dumps(msgspec.to_builtins(ProblemRecord.of(problem))))
        assert msgspec.convert(kept, ProblemRecord).problem == problem


def test_variable_read_by_the_recipe_is_watched(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOC", raising=False)
    folder.take(environment={"SOC": None})
    assert folder.try_fast_path() is not None
    monkeypatch.setenv("SOC", "")
    assert folder.try_fast_path() is None


def test_value_of_a_variable_is_watched_but_not_stored(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    folder.take(environment={"TOKEN": "hunter2"})
    assert folder.try_fast_path() is not None
    [kept] = folder.snapshots
    assert b"hunter2" not in kept.read_bytes()
    if os.name != "nt":
        assert kept.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("TOKEN", "hunter3")
    assert folder.try_fast_path() is None


@pytest.mark.parametrize("name", ["EPBUILD_CACHE_DIR", "EPBUILD_TOOLCHAIN_DIR"])
def test_changed_cache_or_toolchain_folder_is_detected(with_snapshot: Folder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/elsewhere")
    assert with_snapshot.try_fast_path() is None


@pytest.mark.parametrize("own", [__version__.encode(), marshal.dumps(FORMAT)], ids=["version", "format"])
def test_snapshot_of_another_epbuild_is_ignored(with_snapshot: Folder, own: bytes) -> None:
    [kept] = with_snapshot.snapshots
    written = kept.read_bytes()
    assert own in written
    kept.write_bytes(written.replace(own, own.translate(bytes((number ^ 1) for number in range(256))), 1))
    assert with_snapshot.try_fast_path() is None


def test_changed_cpu_is_detected(with_snapshot: Folder) -> None:
    with on_cpu("another CPU"):
        assert with_snapshot.try_fast_path() is None


def test_arguments_are_part_of_the_snapshot(with_snapshot: Folder) -> None:
    assert with_snapshot.try_fast_path("--set", "vars.quality=3") is None
    assert try_fast_path(["run", str(with_snapshot.recipe), "emit:*"], lambda: 0.0) is None
    assert try_fast_path(["plan", str(with_snapshot.recipe)], lambda: 0.0) is None


def test_copied_workspace_is_checked_again(with_snapshot: Folder, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(with_snapshot.path, copy)
    assert try_fast_path(["run", str(copy / "epbuild.yaml")], lambda: 0.0) is None


def test_file_as_recent_as_the_run_is_not_trusted(folder: Folder) -> None:
    began = read_clock(str(folder.recipe))
    folder.files[1].write_bytes(b"as it was")
    folder.take(began=began)
    assert folder.try_fast_path() is None


def test_file_from_the_future_is_not_trusted(folder: Folder) -> None:
    later = time.time() + 3600
    os.utime(folder.files[1], (later, later))
    time.sleep(MARGIN_SECONDS)
    folder.take()
    assert folder.try_fast_path() is None


def test_file_system_with_coarse_times_gets_two_seconds(folder: Folder) -> None:
    began = read_clock(str(folder.recipe))
    assert began is not None
    folder.take(began=(began[0], began[1] + 1))  # as if the files were on another, unknown file system
    assert folder.try_fast_path() is None


def test_missing_file_prevents_a_snapshot(folder: Folder) -> None:
    folder.files[2].unlink()
    folder.take()
    assert not folder.snapshots


def test_snapshot_of_a_failed_run_has_no_answer(folder: Folder) -> None:
    take_snapshot(folder.recipe, folder.files, read_clock(str(folder.recipe)) or (0, 0), is_current=False)
    assert folder.try_fast_path() is None


@needs_links
@pytest.mark.parametrize("number", range(3))
def test_link_in_place_of_a_file_is_a_change(with_snapshot: Folder, number: int) -> None:
    file = with_snapshot.files[number]
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)
    assert with_snapshot.try_fast_path() is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("number", [1, 2])
def test_pipe_in_place_of_a_file_is_a_change_and_is_not_opened(with_snapshot: Folder, number: int) -> None:
    file = with_snapshot.files[number]
    file.unlink()
    os.mkfifo(file)
    assert with_snapshot.try_fast_path() is None


def test_missing_workspace_has_no_clock_and_no_answer(tmp_path: Path) -> None:
    assert read_clock(str(tmp_path / "epbuild.yaml")) is None
    assert try_fast_path(["run", str(tmp_path / "epbuild.yaml")], lambda: 0.0) is None


def test_truncated_snapshot_is_ignored(with_snapshot: Folder) -> None:
    [place] = with_snapshot.snapshots
    whole = place.read_bytes()
    for length in range(len(whole)):
        place.write_bytes(whole[:length])
        assert with_snapshot.try_fast_path() is None
    place.write_bytes(b"not a snapshot at all")
    assert with_snapshot.try_fast_path() is None


def test_incomplete_snapshot_is_ignored_once_a_file_changes(folder: Folder) -> None:
    folder.take({file: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.files})
    [place] = folder.snapshots
    damaged = read(str(place))
    damaged.digests = marshal.dumps([])
    damaged.write(str(place))
    assert folder.try_fast_path() is not None
    folder.files[1].touch()
    assert folder.try_fast_path() is None


OPTIONS = [name for parameter in app._Modules().get("run").params for name in parameter.opts if "-" in name]
VALUES = ["4", "0", "-1", "8GB", "vars.a=b", "a.yaml", "./a.yaml", "sub/b.yaml", "C:\\c.yaml", "d:e.yaml", "emit:*"]
VALUES += ["compile:x/y/z", "*", "a[1].yaml", "sub/odd:name.yaml", "", "x y", "=", "²"]
WORDS = st.sampled_from(
    [
        *OPTIONS,
        *VALUES,
        "--",
        "-j4",
        "-kj2",
        "-ra.yaml",
        "-kr",
        "--keep",
        *(f"{name}={value}" for name in OPTIONS for value in VALUES),
    ]
)


def requested_run(words: list[str]) -> tuple[int, Request | None, bool]:
    """Return the exit code of `run` for a command line, the request that it made, and True if it would have built."""
    seen: list[tuple[Request, bool]] = []

    def note(call: Mapping[str, Any], *, builds: bool) -> None:
        seen.append((call["request"], builds))
        raise EpbuildError(Problem("EPB999", "enough"))

    with at_each_call(survey, partial(note, builds=False)), at_each_call(run, partial(note, builds=True)):
        code = execute(["run", *words])
    return code, *(seen[0] if seen else (None, False))


def check_equal(words: list[str]) -> None:
    """Compare the answer of the fast path, if there is one, with the request that the full parser makes of the same words."""
    looked_up: list[str] = []
    with at_each_call(read_unchanged, lambda call: looked_up.append(call["recipe"])):
        try_fast_path(["run", *words], lambda: 0.0)
    if not looked_up:
        return
    _, request, builds = requested_run(words)
    assert request is not None, words
    expected = Request(Path(looked_up[0]), locked="--locked" in words, remote=RemoteChoice())
    assert request == expected
    assert builds is ("--check" not in words)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_parsed_like_the_command_or_not_at_all(option: str) -> None:
    lines = [[option], [option, "emit:*"], *([option, value] for value in VALUES), *([f"{option}={value}"] for value in VALUES)]
    for words in [[*before, *line] for before in ([], ["a.yaml"]) for line in lines]:
        check_equal(words)


@given(words=st.lists(WORDS, max_size=6))
def test_command_line_is_parsed_like_the_command_or_not_at_all(words: list[str]) -> None:
    check_equal(words)


@pytest.mark.parametrize("words", [[], ["a.yaml"], ["--check"], ["--check", "a.yaml", "--locked"], ["sub/b.yaml", "--locked"]])
def test_plain_command_lines_use_the_snapshot(words: list[str]) -> None:
    looked_up: list[object] = []
    with at_each_call(read_unchanged, looked_up.append):
        try_fast_path(["run", *words], lambda: 0.0)
    assert looked_up


@pytest.fixture
def process(with_snapshot: Folder) -> list[str]:
    with_snapshot.take(files=[*with_snapshot.files, *map(Path, list_own_files())])
    return [sys.executable, "-X", "importtime", "-m", "epbuild", "run", str(with_snapshot.recipe)]


@pytest.mark.slow
def test_fast_path_imports_nothing_heavy(process: list[str]) -> None:
    done = subprocess.run(process, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(NOTHING_TO_DO)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    own = {"", ".core", ".core.defaults", ".core.host", ".core.own_files", ".core.user_folders", ".survey", ".survey.snapshot"}
    assert {name for name in imported if name.partition(".")[0] == "epbuild"} == {f"epbuild{name}" for name in own}
    assert not imported & {"typer", "yaml", "json", "sqlite3", "pathlib", "hashlib", "typing", "onnx"}


def test_old_snapshots_are_removed(with_snapshot: Folder) -> None:
    [place] = with_snapshot.snapshots
    root = place.parents[1]
    remove_older(str(root), time.time() - 3600)
    assert with_snapshot.snapshots
    os.utime(place, (1, 1))
    remove_older(str(root), time.time() - 3600)
    assert not with_snapshot.snapshots
    remove_older(str(root / "nothing"), time.time())
