"""What a user may rely on from an output folder: never a mix of two builds, and nothing of theirs is ever lost."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from epbuild.emit import Ours, prepare, swap_in
from epbuild.emit.directory import mend, unfinished
from epbuild.errors import BuildError, EnvironmentFailure

STEP = "emit:decoder/npu/directory"
OURS = frozenset({"model.onnx", "deep/model.bin", "manifest.json"})
BUILT = {"model.onnx": "new", "deep/model.bin": "new", "manifest.json": "new"}

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows renames no folder that is open")
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")


def made(ours: frozenset[str]) -> Ours:
    return lambda folder: ours


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


def broken_off(destination: Path, files: Mapping[str, str]) -> None:
    """A build that fails while it writes its files."""
    with prepare(destination, made(OURS), STEP) as staged:
        write(staged, files)
        raise RuntimeError


def swap_in_nothing(destination: Path) -> None:
    """A swap whose second rename fails, as what it renames is not there."""
    with prepare(destination, made(OURS), STEP) as staged:
        staged.rmdir()
        swap_in(staged, destination, made(OURS), STEP)


def emit(destination: Path, files: Mapping[str, str] = BUILT, ours: frozenset[str] = OURS) -> None:
    with prepare(destination, made(ours), STEP) as staged:
        write(staged, files)
        swap_in(staged, destination, made(ours), STEP)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output folder as the build before left it."""
    folder = tmp_path / "dist" / "decoder"
    emit(folder, dict.fromkeys(OURS, "old"))
    return folder


def test_a_first_build_makes_the_folder_and_those_above_it(tmp_path: Path) -> None:
    emit(tmp_path / "a" / "b" / "decoder")
    assert read(tmp_path / "a" / "b" / "decoder") == BUILT


def test_a_build_replaces_the_one_before_and_leaves_nothing_beside_it(output: Path) -> None:
    emit(output)
    assert read(output) == BUILT
    assert entries(output.parent) == ["decoder"]


def test_what_is_not_emitted_any_more_is_gone(output: Path) -> None:
    emit(output, {"manifest.json": "new"})
    assert read(output) == {"manifest.json": "new"}


@posix_only
def test_no_reader_ever_sees_a_mix_of_two_builds(output: Path) -> None:
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


def test_files_of_the_users_survive_a_build_wherever_they_are(output: Path) -> None:
    mine = {"notes.txt": "mine", "deep/notes.txt": "mine", "own/folder/notes.txt": "mine"}
    write(output, mine)
    emit(output)
    assert read(output) == {**BUILT, **mine}


@needs_links
def test_links_of_the_users_survive_as_links_also_when_they_lead_nowhere(output: Path, tmp_path: Path) -> None:
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
def test_a_file_of_the_users_in_the_way_stops_the_build_and_nothing_has_changed(output: Path, mine: str, told: str) -> None:
    write(output, {mine: "mine"})
    before = read(output)
    with pytest.raises(BuildError) as refused:
        emit(output, {"new.onnx": "new", "folder/inside.bin": "new"})
    [problem] = refused.value.problems
    assert (problem.code, problem.where) == ("EPB423", STEP)
    assert told in problem.message
    assert read(output) == before
    assert entries(output.parent) == ["decoder"]


def test_a_file_where_the_folder_belongs_stops_the_build_and_stays(tmp_path: Path) -> None:
    (tmp_path / "decoder").write_text("mine", encoding="utf-8")
    with pytest.raises(BuildError, match="EPB423"):
        emit(tmp_path / "decoder")
    assert entries(tmp_path) == ["decoder"]
    assert (tmp_path / "decoder").read_text(encoding="utf-8") == "mine"


@needs_links
def test_a_link_where_the_folder_belongs_is_not_written_through(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", {"model.onnx": "mine"})
    (tmp_path / "decoder").symlink_to("elsewhere")
    with pytest.raises(BuildError, match="EPB423"):
        emit(tmp_path / "decoder")
    assert read(tmp_path / "elsewhere") == {"model.onnx": "mine"}


def test_a_place_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "dist").write_text("a file", encoding="utf-8")
    with pytest.raises(EnvironmentFailure) as refused:
        emit(tmp_path / "dist" / "decoder")
    [problem] = refused.value.problems
    assert (problem.code, problem.where) == ("EPB424", STEP)
    assert problem.hint == "Check the space and the permissions of its folder."


def test_a_build_that_breaks_off_leaves_the_one_before(output: Path) -> None:
    before = read(output)
    with pytest.raises(RuntimeError):
        broken_off(output, {"model.onnx": "half of it"})
    assert read(output) == before
    assert entries(output.parent) == ["decoder"]


def test_a_swap_that_fails_half_way_puts_the_build_before_back(output: Path) -> None:
    before = read(output)
    with pytest.raises(EnvironmentFailure, match="EPB424"):
        swap_in_nothing(output)
    assert read(output) == before
    assert entries(output.parent) == ["decoder"]


def killed_between_the_renames(output: Path, user: Mapping[str, str]) -> None:
    """The folder as it is when a swap was killed after its first rename."""
    write(output, user)
    write(output.with_name(".decoder.epbuild-1234abcd"), {**BUILT, **user})
    output.rename(output.with_name(".decoder.epbuild-old-5678abcd"))


def test_a_build_that_was_killed_between_the_renames_is_mended_and_nothing_of_the_users_is_lost(output: Path) -> None:
    mine = {"notes.txt": "mine", "deep/notes.txt": "mine"}
    killed_between_the_renames(output, mine)
    emit(output)
    assert read(output) == {**BUILT, **mine}
    assert entries(output.parent) == ["decoder"]


def test_mending_alone_gives_the_build_before_back(output: Path) -> None:
    before = read(output)
    killed_between_the_renames(output, {"notes.txt": "mine"})
    with pytest.raises(RuntimeError):
        broken_off(output, {})
    assert read(output) == {**before, "notes.txt": "mine"}


def test_a_build_that_was_killed_after_the_swap_is_cleaned_up_and_nothing_of_the_users_is_lost(output: Path) -> None:
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


def test_a_build_that_was_killed_while_it_removed_the_one_before_never_puts_the_rest_of_it_back(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        broken_off(output, {})
    assert entries(output.parent) == []


def test_what_killed_builds_left_is_found_and_goes_away_without_another_build(output: Path) -> None:
    others = [output.with_name("other"), output.parent.parent / "not there" / "decoder"]
    killed_between_the_renames(output, {"notes.txt": "mine"})
    write(output.with_name(".other.epbuild-2.epbuild-1234abcd"), BUILT)
    assert unfinished([output, *others]) == [output]
    mend(output, made(OURS))
    assert unfinished([output, *others]) == []
    assert read(output) == {**dict.fromkeys(OURS, "old"), "notes.txt": "mine"}


def test_what_a_killed_build_of_another_output_left_is_not_touched(output: Path) -> None:
    other = output.with_name(".decoder-2.epbuild-1234abcd")
    write(other, {"model.onnx": "somebody is at it"})
    emit(output)
    assert read(other) == {"model.onnx": "somebody is at it"}


@posix_only
def test_a_file_of_the_users_keeps_what_it_is_and_is_not_copied(output: Path) -> None:
    write(output, {"big.bin": "mine"})
    before = (output / "big.bin").stat()
    emit(output)
    after = (output / "big.bin").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
