"""Two recipes in one folder, and one recipe with several settings: each has its own steps and outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.cache.workspace import Workspace
from epbuild.commands.clean import clean
from epbuild.commands.gc import find_needed_entries
from epbuild.commands.plan import survey
from epbuild.engine.events import Warned
from epbuild.publish.removal import Cleaned
from epbuild.session.events import OutputRemoved
from epbuild.survey.status import StepStatus
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, STEPS, Workshop

CURRENT = dict.fromkeys(STEPS, "current")
BY_QUALITY = ('path: "dist/${group}"', 'path: "dist/${vars.quality}/${group}"')
ZIPPED = (
    '{layout: directory, path: "dist/${group}"}',
    '{layout: directory, path: "dist/${vars.quality}/${group}.zip", archive: zip}',
)
FAST = ("vars.quality=1",)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "project", tmp_path / "cache", monkeypatch)


@pytest.fixture
def other(workshop: Workshop) -> Path:
    """Copy the recipe to a second file that writes the same outputs."""
    path = workshop.folder / "b.yaml"
    path.write_bytes(workshop.request.recipe.read_bytes())
    return path


def edit(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text(encoding="utf-8")
    assert old in text
    recipe.write_text(text.replace(old, new), encoding="utf-8")


def steps(workshop: Workshop, recipe: Path | None = None, settings: tuple[str, ...] = ()) -> dict[str, StepStatus]:
    request = replace(workshop.request, recipe=recipe or workshop.request.recipe, settings=settings)
    return {status.step.id: status for status in survey(request).steps()}


def states(workshop: Workshop, recipe: Path | None = None, settings: tuple[str, ...] = ()) -> dict[str, str]:
    return {ident: status.state for ident, status in steps(workshop, recipe, settings).items()}


def cleaned(workshop: Workshop, recipe: Path | None = None, settings: tuple[str, ...] = ()) -> dict[str, Cleaned]:
    request = replace(workshop.request, recipe=recipe or workshop.request.recipe, settings=settings)
    return {found.step: found for found in clean(request)}


def removed(workshop: Workshop) -> list[str]:
    return [event.directory for event in workshop.events if isinstance(event, OutputRemoved)]


def files(workshop: Workshop) -> dict[str, bytes]:
    top = workshop.folder / "dist"
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_an_identical_output_of_another_recipe_is_current(workshop: Workshop, other: Path) -> None:
    workshop.build(recipe=other)
    assert states(workshop) == CURRENT
    for recipe in (None, other, None):
        finished = workshop.build(recipe=recipe)
        assert (finished.current, workshop.compiled) == (len(STEPS), [])
        assert states(workshop) == states(workshop, other) == CURRENT


@pytest.mark.parametrize("order", ["b", "ab", "ba", "aba", "bab", "abab"])
def test_moving_an_output_keeps_the_same_output_of_another_recipe(workshop: Workshop, other: Path, order: str) -> None:
    for name in order:
        workshop.build(recipe=other if name == "b" else None)
    workshop.build()
    before = files(workshop)
    edit(other, "dist/", "elsewhere/")
    workshop.build(recipe=other)
    assert removed(workshop) == []
    assert files(workshop) == before
    assert states(workshop) == states(workshop, other) == CURRENT
    messages = [event.problem.message for event in workshop.events if isinstance(event, Warned)]
    assert [message.partition(", which ")[2] for message in messages] == ["is kept because epbuild.yaml also emits it"] * 2
    workshop.build(recipe=other)
    assert not any(isinstance(event, Warned) for event in workshop.events), "it is said once"
    edit(workshop.request.recipe, "dist/", "third/")
    workshop.build()
    assert not (workshop.folder / "dist").exists(), "no recipe asks for it any more"
    assert len(removed(workshop)) == 2


def test_an_output_belongs_to_the_recipe_that_wrote_it_last(workshop: Workshop, other: Path) -> None:
    edit(other, "name: small", "name: other")
    workshop.build()
    workshop.build(recipe=other)
    assert states(workshop, other) == CURRENT
    status = steps(workshop)[EMIT_DECODER]
    assert (status.state, status.reasons) == ("restorable", ("b.yaml wrote a different output to this path",))
    workshop.build()
    assert states(workshop) == CURRENT
    before = files(workshop)
    edit(other, "dist/", "elsewhere/")
    workshop.build(recipe=other)
    assert (removed(workshop), files(workshop)) == ([], before)
    assert states(workshop) == CURRENT


def test_moving_an_output_removes_the_old_one_of_the_last_writer(workshop: Workshop, other: Path) -> None:
    edit(other, "name: small", "name: other")
    workshop.build()
    workshop.build(recipe=other)
    edit(other, "dist/", "elsewhere/")
    workshop.build(recipe=other)
    assert len(removed(workshop)) == 2
    assert not (workshop.folder / "dist").exists()
    assert steps(workshop)[EMIT_DECODER].reasons == ("the output no longer exists",)
    assert workshop.build().built == 2


def test_recipes_with_separate_outputs_do_not_outdate_each_other(workshop: Workshop, other: Path) -> None:
    edit(other, "dist/", "elsewhere/")
    edit(other, "quality: 3", "quality: 1")
    workshop.build()
    workshop.build(recipe=other)
    for recipe in (None, other, None):
        assert states(workshop, recipe) == CURRENT
        assert workshop.build(recipe=recipe).current == len(STEPS)
        assert removed(workshop) == []


def test_settings_with_separate_outputs_do_not_outdate_each_other(workshop: Workshop) -> None:
    workshop.write_recipe(BY_QUALITY)
    workshop.build()
    workshop.build(settings=FAST)
    for settings in ((), FAST, ("vars.quality=2", *FAST), ()):
        assert states(workshop, settings=settings) == CURRENT
        assert workshop.build(settings=settings).current == len(STEPS)


def test_settings_with_a_common_output_path_replace_each_others_output(workshop: Workshop) -> None:
    workshop.build()
    plain = files(workshop)
    workshop.build(settings=FAST)
    assert states(workshop, settings=FAST) == CURRENT
    found = steps(workshop)
    assert {ident for ident, status in found.items() if status.state != "current"} == {EMIT_DECODER}
    assert found[EMIT_DECODER].reasons == ("epbuild.yaml with other settings wrote a different output to this path",)
    assert workshop.build().built == 1
    assert (files(workshop), workshop.compiled) == (plain, [])
    assert states(workshop) == CURRENT


def test_a_changed_setting_is_explained_by_its_difference(workshop: Workshop) -> None:
    workshop.build()
    status = steps(workshop, settings=FAST)[SHARE]
    assert status.state == "out of date"
    assert any("htp_graph_finalization_optimization_mode" in reason for reason in status.reasons)


@pytest.mark.parametrize("change", [BY_QUALITY, ZIPPED])
def test_an_output_of_another_setting_is_cleaned_completely(workshop: Workshop, change: tuple[str, str]) -> None:
    workshop.write_recipe(change)
    workshop.build()
    workshop.build(settings=FAST)
    found = cleaned(workshop)
    assert [item.kept for item in found.values()] == [{}, {}]
    assert all(item.removed for item in found.values())
    assert sorted(path.name for path in (workshop.folder / "dist").iterdir()) == ["1"]
    assert set(states(workshop, settings=FAST).values()) == {"current"}
    assert all(item.removed for item in cleaned(workshop, settings=FAST).values())
    assert not (workshop.folder / "dist").exists()


@pytest.mark.parametrize(
    "change", [('"dist/${group}"', '"dist/${group}"'), (ZIPPED[0], ZIPPED[1].replace("${vars.quality}/", ""))]
)
def test_an_output_of_another_setting_is_cleaned_at_its_own_path(workshop: Workshop, change: tuple[str, str]) -> None:
    workshop.write_recipe(change)
    workshop.build()
    workshop.build(settings=FAST)
    found = cleaned(workshop)
    assert [(item.kept, bool(item.removed)) for item in found.values()] == [({}, True)] * 2
    assert not (workshop.folder / "dist").exists()
    assert workshop.build(settings=FAST).built == 2


@pytest.mark.parametrize("name", ["small", "other"])
def test_cleaning_one_recipe_keeps_outputs_of_another_recipe(workshop: Workshop, other: Path, name: str) -> None:
    edit(other, "name: small", f"name: {name}")
    workshop.build(recipe=other)
    workshop.build()
    before = files(workshop)
    found = cleaned(workshop, other)
    assert {(item.owner, item.removed) for item in found.values()} == {("epbuild.yaml", ())}
    assert files(workshop) == before
    assert states(workshop) == CURRENT
    assert all(item.removed for item in cleaned(workshop).values())
    assert not (workshop.folder / "dist").exists()


def test_an_output_shared_with_a_deleted_recipe_can_be_cleaned(workshop: Workshop, other: Path) -> None:
    workshop.build(recipe=other)
    workshop.build()
    other.unlink()
    assert cleaned(workshop)[EMIT_DECODER].removed
    workshop.build()
    other.write_bytes(workshop.request.recipe.read_bytes())
    workshop.build(recipe=other)
    other.unlink()
    edit(workshop.request.recipe, "dist/", "elsewhere/")
    workshop.build()
    assert len(removed(workshop)) == 2


def test_only_results_of_existing_outputs_are_needed(workshop: Workshop) -> None:
    workspace = workshop.folder / ".epbuild"
    workshop.build()
    slow = {workshop.record(step).action_key for step in (SHARE, CLASSIFIER)}
    workshop.build(settings=FAST)
    fast = find_needed_entries([workspace], workshop.cache).keys
    assert fast & slow == {workshop.record(CLASSIFIER).action_key}
    assert len(fast) == 2
    workshop.write_recipe(BY_QUALITY)
    workshop.build()
    workshop.build(settings=FAST)
    assert find_needed_entries([workspace], workshop.cache).keys == slow | fast


def test_results_of_another_recipes_outputs_are_needed(workshop: Workshop, other: Path) -> None:
    edit(other, "quality: 3", "quality: 1")
    edit(other, "dist/", "elsewhere/")
    workshop.build(recipe=other)
    theirs = find_needed_entries([workshop.folder / ".epbuild"], workshop.cache).keys
    workshop.build()
    assert theirs < find_needed_entries([workshop.folder / ".epbuild"], workshop.cache).keys


@pytest.mark.slow
def test_records_of_many_settings_do_not_accumulate(workshop: Workshop) -> None:
    workshop.write_recipe(("vars: {quality: 3}", "vars: {quality: 3, number: 0}"))
    for number in range(30):
        workshop.build(settings=(f"vars.quality={1 + number % 2}", f"vars.number={number}"))
    with Workspace.open(workshop.folder / ".epbuild") as workspace:
        assert len({configuration for configuration, _ in workspace.steps()}) <= 21
        assert max(len(output.owners) for output in workspace.outputs()) <= 20


def test_each_recipe_has_its_own_logs(workshop: Workshop, other: Path) -> None:
    edit(other, "models: [classifier]", "models: [decode]")
    edit(other, "groups:\n", "groups:\n  default: none\n")
    workshop.build()
    workshop.build(recipe=other)
    logs = sorted(path.name for path in (workshop.folder / ".epbuild" / "logs").iterdir())
    assert [name for name in logs if "classifier" in name] == [
        "compile+classifier+plain+classifier.log",
        "compile+classifier+plain+decode+b.yaml.log",
    ]
    assert EMIT_CLASSIFIER in states(workshop)
