"""Orphans: a build removes the files that epbuild wrote and the recipe no longer asks for, and no other file."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.cache.state import Memory
from epbuild.commands.run import run
from epbuild.engine.events import EventList, NoProgress
from epbuild.publish.removal import EmittedFiles
from epbuild.session.events import OutputRemoved
from epbuild.survey.orphans import Outputs
from tests.support.fake_builds import Workshop
from tests.support.moments import at_each_call, at_each_return

TARGET = ("targets: [npu]", "targets: [npu, plain]")
PATH = ('path: "dist/${group}"', 'path: "dist/${group}/${target}"')


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Build two groups, one of which has two targets."""
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    workshop.write_recipe(TARGET, PATH)
    workshop.build()
    return workshop


def removed(workshop: Workshop) -> list[OutputRemoved]:
    return [event for event in workshop.events if isinstance(event, OutputRemoved)]


def folders(workshop: Workshop) -> set[str]:
    top = workshop.folder / "dist"
    return {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_dir()}


def test_output_of_a_removed_target_is_removed(built: Workshop) -> None:
    assert folders(built) == {"decoder", "decoder/npu", "decoder/plain", "classifier", "classifier/plain"}
    built.write_recipe(PATH)
    built.build()
    assert folders(built) == {"decoder", "decoder/npu", "classifier", "classifier/plain"}
    [event] = removed(built)
    assert event.step == "emit:decoder/plain/directory"
    assert event.changed == event.foreign == ()
    assert event.files > 2
    assert not built.compiled
    built.build()
    assert not removed(built)


def test_planned_removal_equals_the_removal_of_a_build(built: Workshop) -> None:
    built.write_recipe(PATH)
    [orphan] = built.survey().orphans
    assert orphan.directory == built.folder / "dist" / "decoder" / "plain"
    assert not built.survey().up_to_date
    assert orphan.directory.is_dir()
    built.build()
    assert built.survey().up_to_date


def test_moved_output_leaves_nothing_at_its_old_path(built: Workshop) -> None:
    built.write_recipe(TARGET, ('path: "dist/${group}"', 'path: "dist/${target}/${group}"'))
    built.build()
    assert folders(built) == {"npu", "npu/decoder", "plain", "plain/decoder", "plain/classifier"}
    assert len(removed(built)) == 3


def test_output_moved_back_into_its_old_path_is_kept(built: Workshop) -> None:
    built.write_recipe(("models: [classifier]", "models: [classifier]"))
    built.build()
    assert folders(built) == {"decoder", "classifier"}
    assert built.contents()
    assert built.contents("classifier")


def test_foreign_and_changed_files_are_kept(built: Workshop) -> None:
    folder = built.folder / "dist" / "decoder" / "plain"
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    [binary] = folder.glob("*.bin")
    binary.write_bytes(b"mine too")
    built.write_recipe(PATH)
    built.build()
    assert {path.name for path in folder.iterdir()} == {"notes.txt", binary.name}
    [event] = removed(built)
    assert [Path(path).name for path in event.changed] == [binary.name]
    assert [Path(path).name for path in event.foreign] == ["notes.txt"]


def test_partial_build_removes_nothing(built: Workshop) -> None:
    built.write_recipe(PATH)
    built.build("emit:classifier/*")
    assert "decoder/plain" in folders(built)


def test_failed_build_removes_nothing(built: Workshop) -> None:
    built.write_recipe(PATH, ("fallback_nodes: 1", "fallback_nodes: 0"))
    assert built.build().exit_code == 1
    assert "decoder/plain" in folders(built)


def test_builds_with_other_settings_keep_their_outputs(built: Workshop) -> None:
    by_quality = ('path: "dist/${group}"', 'path: "dist/${vars.quality}/${group}"')
    built.write_recipe(by_quality)
    built.build()
    for setting in ("vars.quality=1", "vars.quality=2"):
        built.build(settings=(setting,))
        assert not removed(built)
    assert {"1/decoder", "2/decoder", "3/decoder"} <= folders(built)


def test_two_recipes_in_one_folder_keep_their_outputs(built: Workshop) -> None:
    other = built.folder / "other.yaml"
    other.write_text((built.folder / "epbuild.yaml").read_text(encoding="utf-8").replace("dist/", "elsewhere/"), encoding="utf-8")
    before = folders(built)
    built.build(recipe=other)
    assert not removed(built)
    assert folders(built) == before


def test_concurrent_builds_remove_an_orphan_once(built: Workshop) -> None:
    folder = built.folder / "dist" / "decoder" / "plain"
    own = {f"notes {number}.txt": b"mine" for number in range(50)}
    for name, content in own.items():
        (folder / name).write_bytes(content)
    built.write_recipe(PATH)
    looked, removals = threading.Barrier(2), list[Path]()

    def slowly(call: object) -> None:
        removals.append(folder)
        time.sleep(0.2)

    events = EventList()
    both_have_seen_it = at_each_return(Outputs.orphans, lambda found: looked.wait(20))
    with both_have_seen_it, at_each_call(EmittedFiles.remove, slowly), ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda _: run(built.request, events), range(2)))
    assert codes == [0, 0]
    assert len(removals) == len([event for event in events if isinstance(event, OutputRemoved)]) == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == own
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_orphan_rewritten_by_another_build_is_kept(built: Workshop) -> None:
    other = built.folder / "other.yaml"
    other.write_bytes((built.folder / "epbuild.yaml").read_bytes())
    built.write_recipe(PATH)

    def write_anew(found: object) -> None:
        assert run(replace(built.request, recipe=other), NoProgress()) == 0

    with at_each_return(Outputs.orphans, write_anew):
        built.build()
    assert removed(built) == []
    assert "decoder/plain" in folders(built)


def test_half_removed_orphan_of_a_killed_build_is_cleaned_up(built: Workshop) -> None:
    folder = built.folder / "dist" / "decoder" / "plain"
    (folder / "notes.txt").write_bytes(b"mine")
    built.write_recipe(PATH)

    def kill(call: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), at_each_call(Memory.release, kill):
        built.build()
    folder.rename(folder.with_name(".plain.epbuild-old-12345678"))
    built.build()
    assert {path.name for path in folder.parent.iterdir()} >= {"plain"}
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []
    assert built.survey().up_to_date
