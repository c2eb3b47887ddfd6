"""Output folders: never a mix of two builds, and no loss of users' files."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from epbuild.core.atomic import exchange
from epbuild.core.directory import Owned, find_interrupted_swaps, prepare, recover_swaps, swap_in
from epbuild.core.entries import HiddenFolders, make_hidden_name
from epbuild.core.errors import BuildError, EnvironmentFailure
from tests.core.fake_windows import hold_open_files, know_users

STEP = "emit:decoder/npu/directory"
OURS = frozenset({"model.onnx", "deep/model.bin", "manifest.json"})
BUILT = {"model.onnx": "new", "deep/model.bin": "new", "manifest.json": "new"}

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows renames no folder that is open")
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")


class OwnFiles(Owned):
    """Files of epbuild by name, some of which have changed since."""

    def __init__(self, names: Collection[str], changed: Collection[str] = ()) -> None:
        self._names = frozenset(names)
        self._changed = frozenset(changed)

    def list_written(self, folder: Path) -> Collection[str]:
        return self._names

    def list_unchanged(self, folder: Path) -> Collection[str]:
        return self._names - self._changed


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def read(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_while_writing(destination: Path, files: Mapping[str, str]) -> None:
    """Simulate a build that fails while it writes its files."""
    with prepare(destination, OwnFiles(OURS), STEP) as staged:
        write(staged, files)
        raise RuntimeError


def fail_between_renames(destination: Path) -> None:
    """Simulate a swap whose second rename fails because its source is missing."""
    with prepare(destination, OwnFiles(OURS), STEP) as staged:
        staged.rmdir()
        swap_in(staged, destination, OwnFiles(OURS), STEP)


def emit(destination: Path, files: Mapping[str, str] = BUILT, ours: frozenset[str] = OURS) -> None:
    with prepare(destination, OwnFiles(ours), STEP) as staged:
        write(staged, files)
        swap_in(staged, destination, OwnFiles(ours), STEP)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return an output folder as the previous build left it."""
    folder = tmp_path / "dist" / "decoder"
    emit(folder, dict.fromkeys(OURS, "old"))
    return folder


def test_first_build_creates_the_folder_and_its_parents(tmp_path: Path) -> None:
    emit(tmp_path / "a" / "b" / "decoder")
    assert read(tmp_path / "a" / "b" / "decoder") == BUILT


def test_build_replaces_the_previous_output_without_leftovers(output: Path) -> None:
    emit(output)
    assert read(output) == BUILT
    assert entries(output.parent) == ["decoder"]


def test_files_no_longer_emitted_are_removed(output: Path) -> None:
    emit(output, {"manifest.json": "new"})
    assert read(output) == {"manifest.json": "new"}


@pytest.mark.slow
@posix_only
def test_readers_never_see_a_mix_of_two_builds(output: Path) -> None:
    names = ("a.onnx", "b.onnx", "c.bin", "deep/d.bin", "manifest.json")
    ours = frozenset((*OURS, *names))
    emit(output, dict.fromkeys(names, "build 0"), ours)
    looked, over = threading.Event(), threading.Event()
    seen: list[dict[str, str]] = []

    def look() -> None:
        while not over.is_set():
            try:
                folder = os.open(output, os.O_RDONLY)
            except FileNotFoundError:
                continue  # the instant between the two renames
            found: dict[str, str] = {}
            for name in names:
                try:
                    descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
                except FileNotFoundError:
                    continue  # an old build is being removed under the reader
                with os.fdopen(descriptor, encoding="utf-8") as file:
                    found[name] = file.read()
            os.close(folder)
            seen.append(found)
            looked.set()

    reader = threading.Thread(target=look)
    reader.start()
    try:
        assert looked.wait(10)
        for number in range(1, 51):
            emit(output, dict.fromkeys(names, f"build {number}"), ours)
        looked.clear()
        assert looked.wait(10)
    finally:
        over.set()
        reader.join()
    assert [found for found in seen if len(set(found.values())) > 1] == []
    assert seen[0] == dict.fromkeys(names, "build 0")
    assert seen[-1] == dict.fromkeys(names, "build 50")


def test_user_files_survive_a_build_at_any_path(output: Path) -> None:
    mine = {"notes.txt": "mine", "deep/notes.txt": "mine", "own/folder/notes.txt": "mine"}
    write(output, mine)
    emit(output)
    assert read(output) == {**BUILT, **mine}


@needs_links
def test_user_links_survive_as_links_even_if_broken(output: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, {"kept.txt": "kept"})
    links = {"file": elsewhere / "kept.txt", "folder": elsewhere, "broken": tmp_path / "nowhere"}
    for name, target in links.items():
        (output / "deep" / name).symlink_to(target)
    emit(output)
    assert {name: (output / "deep" / name).readlink() for name in links} == links
    assert read(elsewhere) == {"kept.txt": "kept"}
    assert {name: text for name, text in read(output).items() if name in BUILT} == BUILT


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        ("new.onnx", "decoder/new.onnx"),
        ("new.onnx/inside.txt", "decoder/new.onnx/inside.txt"),
        ("folder", "decoder/folder"),
    ],
)
def test_conflicting_user_file_stops_the_build_and_nothing_changes(output: Path, mine: str, told: str) -> None:
    write(output, {mine: "mine"})
    before = read(output)
    with pytest.raises(BuildError) as refused:
        emit(output, {"new.onnx": "new", "folder/inside.bin": "new"})
    [problem] = refused.value.problems
    assert (problem.code, problem.where) == ("EPB423", STEP)
    assert told in problem.message
    assert read(output) == before
    assert entries(output.parent) == ["decoder"]


def test_file_in_place_of_the_folder_stops_the_build_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "decoder").write_text("mine", encoding="utf-8")
    with pytest.raises(BuildError, match="EPB423"):
        emit(tmp_path / "decoder")
    assert entries(tmp_path) == ["decoder"]
    assert (tmp_path / "decoder").read_text(encoding="utf-8") == "mine"


@needs_links
def test_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", {"model.onnx": "mine"})
    (tmp_path / "decoder").symlink_to("elsewhere")
    with pytest.raises(BuildError, match="EPB423"):
        emit(tmp_path / "decoder")
    assert read(tmp_path / "elsewhere") == {"model.onnx": "mine"}


def test_unwritable_place_is_reported_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "dist").write_text("a file", encoding="utf-8")
    with pytest.raises(EnvironmentFailure) as refused:
        emit(tmp_path / "dist" / "decoder")
    [problem] = refused.value.problems
    assert (problem.code, problem.where) == ("EPB424", STEP)
    assert "dist exists and is not a folder" in problem.message
    assert problem.hint == "Move it away, or change the output's path."


def test_failed_build_keeps_the_previous_output(output: Path) -> None:
    before = read(output)
    with pytest.raises(RuntimeError):
        fail_while_writing(output, {"model.onnx": "half of it"})
    assert read(output) == before
    assert entries(output.parent) == ["decoder"]


def test_failed_swap_restores_the_previous_output(output: Path) -> None:
    before = read(output)
    with pytest.raises(EnvironmentFailure, match="EPB424"):
        fail_between_renames(output)
    assert read(output) == before
    assert entries(output.parent) == ["decoder"]


def killed_between_the_renames(output: Path, user: Mapping[str, str]) -> None:
    """Create the state of a folder after a kill between the two renames of a swap."""
    write(output, user)
    write(output.with_name(".decoder.epbuild-1234abcd"), {**BUILT, **user})
    output.rename(output.with_name(".decoder.epbuild-old-5678abcd"))


def test_build_killed_between_the_renames_is_repaired_and_keeps_user_files(output: Path) -> None:
    mine = {"notes.txt": "mine", "deep/notes.txt": "mine"}
    killed_between_the_renames(output, mine)
    emit(output)
    assert read(output) == {**BUILT, **mine}
    assert entries(output.parent) == ["decoder"]


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links and modes")
@pytest.mark.parametrize("suffix", ["1234abcd", "old-1234abcd"])
def test_link_that_resembles_a_leftover_is_not_followed(output: Path, suffix: str) -> None:
    elsewhere = output.parent / "elsewhere"
    (elsewhere / "closed").mkdir(parents=True)
    (elsewhere / "closed").chmod(0o555)
    link = output.with_name(make_hidden_name(output.name, suffix))
    link.symlink_to(elsewhere)
    recover_swaps(output, OwnFiles(OURS))
    assert link.is_symlink()
    assert (elsewhere / "closed").stat().st_mode & 0o777 == 0o555


def test_repair_without_a_build_restores_the_previous_output(output: Path) -> None:
    before = read(output)
    killed_between_the_renames(output, {"notes.txt": "mine"})
    with pytest.raises(RuntimeError):
        fail_while_writing(output, {})
    assert read(output) == {**before, "notes.txt": "mine"}


def test_build_killed_after_the_swap_is_cleaned_up_and_keeps_user_files(output: Path) -> None:
    old = output.with_name(".decoder.epbuild-old-5678abcd")
    output.rename(old)
    write(old, {"notes.txt": "mine", "late/notes.txt": "came in the instant of the swap", "edited.txt": "as it was"})
    write(output, {**BUILT, "notes.txt": "mine", "edited.txt": "as it became"})
    emit(output)
    assert read(output) == {
        **BUILT,
        "notes.txt": "mine",
        "late/notes.txt": "came in the instant of the swap",
        "edited.txt": "as it became",
        "edited.txt.saved": "as it was",
    }
    assert entries(output.parent) == ["decoder"]


def test_partly_removed_old_output_is_never_restored(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(folder: Path, **options: object) -> None:
        (folder / "manifest.json").unlink(missing_ok=True)
        raise KeyboardInterrupt

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        emit(output)
    monkeypatch.setattr(shutil, "rmtree", remove)
    assert read(output) == BUILT
    remove(output)
    with pytest.raises(RuntimeError):
        fail_while_writing(output, {})
    assert entries(output.parent) == []


def test_leftovers_of_killed_builds_are_found_and_removed(output: Path) -> None:
    others = [output.with_name("other"), output.parent.parent / "not there" / "decoder"]
    killed_between_the_renames(output, {"notes.txt": "mine"})
    write(output.with_name(".other.epbuild-2.epbuild-1234abcd"), BUILT)
    assert find_interrupted_swaps([output, *others]) == [output]
    recover_swaps(output, OwnFiles(OURS))
    assert find_interrupted_swaps([output, *others]) == []
    assert read(output) == {**dict.fromkeys(OURS, "old"), "notes.txt": "mine"}


def test_leftovers_of_another_output_are_not_touched(output: Path) -> None:
    other = output.with_name(".decoder-2.epbuild-1234abcd")
    write(other, {"model.onnx": "somebody is at it"})
    emit(output)
    assert read(other) == {"model.onnx": "somebody is at it"}


@posix_only
def test_user_file_keeps_its_identity_and_is_not_copied(output: Path) -> None:
    write(output, {"big.bin": "mine"})
    before = (output / "big.bin").stat()
    emit(output)
    after = (output / "big.bin").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)


needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes in the file system")
two_renames = pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "two renames"])


@pytest.fixture
def swap_method(exchanges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Select how the trees are swapped."""
    if not exchanges and sys.platform == "linux":
        monkeypatch.setattr(sys, "platform", "one that exchanges nothing")


def changed(output: Path, files: Mapping[str, str], names: Collection[str]) -> Mapping[str, str]:
    """Emit over changed files `names`, and return the kept copies with their paths."""
    owned = OwnFiles(OURS, names)
    with prepare(output, owned, STEP) as staged:
        write(staged, files)
        return swap_in(staged, output, owned, STEP)


@pytest.mark.usefixtures("swap_method")
@two_renames
def test_changed_files_are_saved_and_reported(output: Path) -> None:
    write(output, {"model.onnx": "edited", "deep/model.bin": "edited too", "model.onnx.saved": "mine"})
    kept = changed(output, {"model.onnx": "new", "manifest.json": "new"}, {"model.onnx", "deep/model.bin"})
    assert kept == {"model.onnx": "model.onnx.saved-2", "deep/model.bin": "deep/model.bin"}
    assert read(output) == {
        "model.onnx": "new",
        "manifest.json": "new",
        "model.onnx.saved": "mine",
        "model.onnx.saved-2": "edited",
        "deep/model.bin": "edited too",
    }
    assert changed(output, {"model.onnx": "new", "manifest.json": "new"}, {"manifest.json"}) == {}, "it is what it becomes"


@needs_pipes
@pytest.mark.usefixtures("swap_method")
@two_renames
def test_user_pipe_stays_a_pipe_under_its_name(output: Path) -> None:
    os.mkfifo(output / "deep" / "pipe")
    before = (output / "deep" / "pipe").stat()
    for _ in range(2):
        emit(output)
    assert entries(output / "deep") == ["model.bin", "pipe"]
    assert os.path.samestat((output / "deep" / "pipe").stat(), before)


@posix_only
@pytest.mark.usefixtures("swap_method")
@two_renames
def test_user_folders_keep_their_metadata_even_if_empty(output: Path) -> None:
    for name, mode in {
        "private/inner": 0o755,
        "private": 0o700,
        "empty": 0o1777,
        "locked": 0o555,
        "deep": 0o750,
        ".": 0o2710,
    }.items():
        (output / name).mkdir(parents=True, exist_ok=True)
        (output / name).chmod(mode)
    os.utime(output / "empty", ns=(10**18, 10**18))
    before = {path: path.stat() for path in (output, *output.rglob("*")) if path.is_dir()}
    for _ in range(2):
        emit(output)
    after = {path: path.stat() for path in (output, *output.rglob("*")) if path.is_dir()}
    assert {path: status.st_mode for path, status in after.items()} == {path: status.st_mode for path, status in before.items()}
    assert after[output / "empty"].st_mtime_ns == 10**18
    assert entries(output.parent) == ["decoder"]


def test_folder_of_files_no_longer_emitted_is_removed(output: Path) -> None:
    emit(output, {"manifest.json": "new"})
    assert entries(output) == ["manifest.json"]


@pytest.mark.usefixtures("swap_method")
@two_renames
def test_unlinkable_files_are_moved(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    write(output, {"notes.txt": "mine", "own/notes.txt": "mine"})
    before = (output / "notes.txt").stat()
    emit(output)
    assert read(output) == {**BUILT, "notes.txt": "mine", "own/notes.txt": "mine"}
    assert os.path.samestat((output / "notes.txt").stat(), before)


def test_mounted_folder_is_not_touched(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(output, {"disk/weights.bin": "mine"})
    before, stat = read(output), os.lstat

    def as_mounted(path: Any, **options: Any) -> Any:
        status = stat(path, **options)
        return status if not os.fspath(path).endswith("disk") else os.stat_result((*status[:2], status.st_dev + 1, *status[3:10]))

    monkeypatch.setattr(os, "lstat", as_mounted)
    with pytest.raises(BuildError, match="EPB436") as refused:
        emit(output)
    assert "decoder/disk is on a different file system" in refused.value.problems[0].message
    assert read(output) == before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux exchanges two folders in one call")
def test_output_exists_at_every_moment(output: Path) -> None:
    over, missing, looks = threading.Event(), [], 0

    def look() -> None:
        nonlocal looks
        while not over.is_set():
            looks += 1
            if not (output / "manifest.json").exists():
                missing.append(looks)

    one, other = output.with_name("one"), output.with_name("other")
    one.mkdir()
    other.mkdir()
    if not exchange(one, other):
        pytest.skip("this file system exchanges nothing")
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(30):
            emit(output)
    finally:
        over.set()
        reader.join()
    assert looks > 30
    assert missing == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux exchanges two folders in one call")
@pytest.mark.parametrize("when", ["before", "after"])
def test_build_killed_at_the_exchange_is_repaired_and_keeps_user_files(output: Path, when: str) -> None:
    def kill(frame: Any, event: str, argument: object) -> Any:
        if frame.f_code is exchange.__code__ and event == {"before": "call", "after": "return"}[when]:
            os._exit(9)
        return kill

    write(output, {"notes.txt": "mine"})
    pid = os.fork()
    if not pid:
        sys.settrace(kill)
        emit(output)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    built = BUILT if when == "after" else dict.fromkeys(OURS, "old")
    assert read(output) == {**built, "notes.txt": "mine"}
    assert find_interrupted_swaps([output]) == [output]
    [left] = [path for path in output.parent.iterdir() if "swap-" in path.name]
    if when == "after":
        write(left, {"late.txt": "came in the instant of the swap"})
    else:
        (output / "notes.txt").unlink()  # edited, as some editors do it
        write(output, {"notes.txt": "edited"})
    recover_swaps(output, OwnFiles(OURS))
    notes = {"late.txt": "came in the instant of the swap", "notes.txt": "mine"} if when == "after" else {"notes.txt": "edited"}
    assert read(output) == {**built, **notes}
    assert entries(output.parent) == ["decoder"]


@pytest.mark.parametrize("length", [1, 216, 217, 233, 250, 255])
def test_output_name_may_have_the_maximum_length(tmp_path: Path, length: int) -> None:
    output, other = (tmp_path / f"{'d' * (length - 1)}{last}" for last in "ab")
    for folder in (output, other):
        emit(folder, dict.fromkeys(OURS, folder.name[-1]))
    write(output, {"x" * 255: "mine"})
    hidden = output.with_name(make_hidden_name(output.name, "1234abcd"))
    write(hidden, {"model.onnx": "half of it"})
    assert find_interrupted_swaps([output, other]) == [output]
    emit(output)
    assert read(output) == {**BUILT, "x" * 255: "mine"}
    assert entries(tmp_path) == sorted([output.name, other.name])
    long = "m" * 255
    write(output, {long: "edited"})
    with prepare(output, OwnFiles({long}, {long}), STEP) as staged:
        write(staged, {long: "new"})
        [kept] = swap_in(staged, output, OwnFiles({long}, {long}), STEP).values()
    assert read(output)[kept] == "edited"


def test_swaps_wait_for_programs_that_hold_files_on_windows(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the first attempts of each rename, as antivirus programs and indexers cause it."""
    replace, refusals, pauses = Path.replace, [3, 3, 3, 3], list[float]()

    def replace_later(source: Path, destination: Path) -> Path:
        number = next((count for count, left in enumerate(refusals) if left), None)
        if number is not None:
            refusals[number] -= 1
            if refusals[number]:
                raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        return replace(source, destination)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(Path, "replace", replace_later)
    emit(output)
    assert read(output) == BUILT
    assert refusals == [0, 0, 0, 0]
    assert pauses == [0.01, 0.05] * 4


def test_swap_that_windows_keeps_refusing_restores_the_previous_output(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, before = Path.replace, read(output)

    def refuse(source: Path, destination: Path) -> Path:
        if "swap-" in source.name:
            raise PermissionError(13, "Access is denied")
        return replace(source, destination)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(EnvironmentFailure, match="EPB424"):
        emit(output)
    assert read(output) == before
    assert entries(output.parent) == ["decoder"]


@pytest.mark.skipif(sys.platform == "win32", reason="imitates Windows")
def test_output_in_use_on_windows_is_kept_and_the_program_is_named(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_open_files(monkeypatch)
    know_users(monkeypatch, {output / "manifest.json": (12, "Notepad")})
    with (output / "manifest.json").open("rb"), pytest.raises(EnvironmentFailure) as failure:
        emit(output)
    [problem] = failure.value.problems
    assert problem.message == f"cannot write the output decoder: {output / 'manifest.json'} is used by Notepad (process 12)"
    assert problem.hint == "Close the program that uses it, and run the command again."
    assert set(read(output).values()) == {"old"}
    assert entries(output.parent) == ["decoder"]
    emit(output)
    assert read(output) == BUILT


def test_folder_is_listed_once_for_all_outputs(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, longer = output.with_name("other"), output.with_name("other.epbuild-2")
    for place in (other, longer):
        write(place.with_name(f".{place.name}.epbuild-1234abcd"), BUILT)
    looked: list[Any] = []
    scan = os.scandir

    def scanning(place: Any) -> Any:
        looked.append(place)
        return scan(place)

    monkeypatch.setattr(os, "scandir", scanning)
    hidden = HiddenFolders()
    for place in (output, other):
        recover_swaps(place, OwnFiles(OURS), hidden)
    assert looked.count(output.parent) == 1
    assert find_interrupted_swaps([output, other, longer]) == [longer]
