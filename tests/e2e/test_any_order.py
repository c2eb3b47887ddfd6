"""Whatever is done to a project, and in whatever order: the next build makes what a build from nothing would make, and loses nothing.

Edits of every kind, two recipes in one folder, settings, tampering with outputs, memory and store, kills and concurrent builds are drawn
at random. After each build: what it owns is what a build in a new folder with a new store makes of the same inputs; what others own,
and what the user has there, is as it was; `--check` finds nothing to do; and `plan` had said what the build would do.

It goes on for as long as the option --any-order-seconds says (6, or 600 with `-m exhaustive`), from the seed --any-order-seed on.
A failure prints the seed that it began with and the steps that led to it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import warm_start
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from projects import Project
from quick_builds import PATIENCE, no_worker_stays, start, write_model
from test_kills import KILLED_BEFORE_A_CHANGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills builds by signals, and finds workers in /proc")

STEPS = 10
"""How many things are done to a project before the next one begins."""
PROJECTS_PER_SEED = 2
RECIPES = ("epbuild.yaml", "b.yaml")
GROUPS = {"epbuild.yaml": ("left", "right"), "b.yaml": ("left",)}
PLACES = ("dist", "out")
SEEDS = (0, 1, 2)
QUALITIES = ("1", "2")

TEXT = """\
epbuild: 1
name: {name}
vars: {{quality: {quality}, where: {where}}}
toolchains:
  qnn: {{packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}}
models: {{left: left.onnx, right: right.onnx}}
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {{backend_type: htp, soc_model: SM8750, htp_graph_finalization_optimization_mode: "${{vars.quality}}"}}
groups:
{groups}
outputs:
  - {{layout: directory, path: "${{vars.where}}/${{group}}{suffix}", model: "${{model}}{model}.onnx"{more}}}
"""


@dataclass(frozen=True)
class Text:
    """What a recipe says, as far as it is edited here."""

    name: str
    quality: str = "1"
    where: str = "dist"
    pack: str = ""
    model: str = "_ctx"

    def render(self, groups: tuple[str, ...]) -> str:
        return TEXT.format(
            name=self.name,
            quality=self.quality,
            where=self.where,
            groups="\n".join(f"  {group}: {{models: [{group}], targets: [npu]}}" for group in groups),
            suffix=f".{self.pack}" if self.pack else "",
            model=self.model,
            more=f", pack: {self.pack}" if self.pack else "",
        )


CHOICE = st.integers(0, 1 << 24)
"""What is drawn where the number of things to choose from is no matter of the draws: how many files a store has, for instance."""

Owner = tuple[str, str]
"""A recipe, and the value of `vars.where` that it is built with, or an empty string for its own."""

Tree = dict[str, bytes]
"""The files of an output, by their POSIX paths below it; an archive is one file with an empty path."""


@dataclass
class Owned:
    """What is known of the output at a place: who has it, and what is in it; None where that was tampered with or cut short."""

    owners: set[Owner]
    tree: Tree | None


T = TypeVar("T")


def chosen(things: Sequence[T], choice: int) -> T:
    """One of them."""
    return things[choice % len(things)]


class Projects(RuleBasedStateMachine):
    """One project and what is done to it; it lies in a new folder below `root`, beside the builds from nothing."""

    root: Path
    references: dict[Any, dict[str, Tree]]
    """The trees that builds from nothing made, by what they were made from."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.root / f"project-{len(list(self.root.iterdir()))}"
        self.project = Project(self.folder / "checkout", self.folder / "cache")
        self.project.folder.mkdir(parents=True)
        self.models = {"left": 0, "right": 1}
        self.texts = {name: Text(name.partition(".")[0]) for name in RECIPES}
        self.owned: dict[str, Owned] = {}
        self.tampered: dict[str, list[bytes]] = {}
        self.notes: dict[Path, bytes] = {}
        for name, number in self.models.items():
            write_model(self.project.folder / f"{name}.onnx", number)
        for name in RECIPES:
            self.write_recipe(name)

    def write_recipe(self, name: str) -> None:
        (self.project.folder / name).write_text(self.texts[name].render(GROUPS[name]), encoding="utf-8")

    # What a user does to the inputs.

    @rule(
        model=st.sampled_from(("left", "right")),
        number=st.sampled_from(SEEDS),
        how=st.sampled_from(("write", "replace", "keep time")),
    )
    def edit_model(self, model: str, number: int, how: str) -> None:
        path = self.project.folder / f"{model}.onnx"
        before = path.stat()
        new = path.with_suffix(".new") if how == "replace" else path
        write_model(new, number)
        if how == "replace":
            new.replace(path)
        if how == "keep time":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.models[model] = number

    @rule(recipe=st.sampled_from(RECIPES), quality=st.sampled_from(QUALITIES))
    def edit_option(self, recipe: str, quality: str) -> None:
        self.texts[recipe] = replace(self.texts[recipe], quality=quality)
        self.write_recipe(recipe)

    @rule(recipe=st.sampled_from(RECIPES), where=st.sampled_from(PLACES))
    def move_outputs(self, recipe: str, where: str) -> None:
        self.texts[recipe] = replace(self.texts[recipe], where=where)
        self.write_recipe(recipe)

    @rule(recipe=st.sampled_from(RECIPES), pack=st.sampled_from(("", "zip")), model=st.sampled_from(("_ctx", "_npu")))
    def rename_outputs(self, recipe: str, pack: str, model: str) -> None:
        self.texts[recipe] = replace(self.texts[recipe], pack=pack, model=model)
        self.write_recipe(recipe)

    @rule()
    def touch_all(self) -> None:
        for path in self.project.folder.rglob("*"):
            if path.is_file() and ".epbuild" not in path.parts:
                path.touch()

    # What a user, or a disk, does to what was made.

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), how=st.sampled_from(("change", "remove", "remove all")))
    def tamper(self, data: st.DataObject, how: str) -> None:
        first, second = data.draw(CHOICE), data.draw(CHOICE)
        place = chosen(sorted(self.owned), first)
        name = chosen(sorted(self.owned[place].tree or {"": b""}), second)
        path = self.project.folder / place / name if name else self.project.folder / place
        if how == "remove all" or (how == "remove" and path.is_dir()):
            self.remove(place)
        elif how == "remove":
            path.unlink(missing_ok=True)
        elif path.is_file():
            path.write_bytes(path.read_bytes() + b"changed")
            self.tampered.setdefault(place, []).append(path.read_bytes())
        self.owned[place].tree = None

    def remove(self, place: str) -> None:
        """Remove an output, and what the user has in it."""
        path = self.project.folder / place
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.notes = {note: text for note, text in self.notes.items() if not note.is_relative_to(path)}
        self.tampered.pop(place, None)

    @precondition(lambda self: any(not Path(place).suffix for place in self.owned))
    @rule(data=st.data())
    def put_notes(self, data: st.DataObject) -> None:
        place = chosen(sorted(place for place in self.owned if not Path(place).suffix), data.draw(CHOICE))
        note = self.project.folder / place / "notes.txt"
        if note.parent.is_dir():
            note.write_text(f"mine {len(self.notes)}", encoding="utf-8")
            self.notes[note] = note.read_bytes()

    @rule(what=st.sampled_from(("blob", "record", "state", "cache", "memory")), data=st.data())
    def damage(self, what: str, data: st.DataObject) -> None:
        cache, memory = self.project.cache, self.project.folder / ".epbuild"
        which, where, bit = data.draw(CHOICE), data.draw(CHOICE), data.draw(st.integers(0, 7))
        if what in ("cache", "memory"):
            shutil.rmtree(cache if what == "cache" else memory, ignore_errors=True)
            if what == "memory":
                self.forget_owners()
            return
        pattern = {"blob": "cas/sha256/*/*", "record": "actions/*/*", "state": "state.sqlite"}[what]
        files = sorted(path for path in (memory if what == "state" else cache).glob(pattern) if path.is_file())
        if files:
            path = chosen(files, which)
            damaged = bytearray(path.read_bytes())
            if damaged:
                damaged[where % len(damaged)] ^= 1 << bit
                path.chmod(0o644)
                path.write_bytes(damaged)
            if what == "state":
                self.forget_owners()
                for output in self.owned.values():
                    output.tree = None  # what was hit may be of no use: then all is remembered, and what nobody asks for goes

    def forget_owners(self) -> None:
        """Outputs whose writer nobody remembers stay, until another is written in their place.

        Of a file that was changed nobody knows any more that epbuild once made it: a build refuses to write there, so it is moved away.
        """
        for place in [place for place in self.tampered if place in self.owned]:
            self.remove(place)
            del self.owned[place]
        for output in self.owned.values():
            output.owners = set()

    # Builds.

    @rule(recipe=st.sampled_from(RECIPES), change=st.integers(1, 120))
    def build_that_is_killed(self, recipe: str, change: int) -> None:
        before, environment = KILLED_BEFORE_A_CHANGE.format(change), self.project.command()[1]
        done = warm_start.run(("run", recipe), self.project.folder, environment, timeout=PATIENCE, before=before)
        no_worker_stays(self.project)
        if done.returncode == 0:
            self.is_right((recipe, ""))
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        # Its outputs may be the old ones, absent or the new ones, and known or not: the next build says which.
        self.leave_open((recipe, ""))

    @rule(recipe=st.sampled_from(RECIPES), where=st.sampled_from(("", *PLACES)))
    def build(self, recipe: str, where: str) -> None:
        owner = (recipe, where)
        arguments = self.arguments(owner)
        told = self.project.epbuild("plan", *arguments, "--json")
        assert told.returncode == 0, told.stdout + told.stderr
        states = {step["id"]: step["state"] for step in json.loads(told.stdout)["steps"]}
        events = self.project.build(*arguments)
        outcomes = {event["step"]: event["outcome"] for event in events if event["event"] == "step_finished"}
        for step, state in states.items():
            assert (outcomes[step] == "current") <= (state == "current" or step.startswith("emit:")), (step, state, outcomes)
            assert (state == "current") <= (outcomes[step] == "current"), (step, state, outcomes)
            assert (state == "restorable") <= (outcomes[step] in ("restored", "emitted", "current")), (step, state, outcomes)
        self.is_right(owner)

    @rule(owners=st.lists(st.tuples(st.sampled_from(RECIPES), st.sampled_from(("", *PLACES))), min_size=2, max_size=3))
    def build_at_once(self, owners: list[Owner]) -> None:
        builds = [start(self.project, "run", *self.arguments(owner)) for owner in owners]
        for build in builds:
            _, said = build.communicate(timeout=PATIENCE)
            assert build.returncode == 0, said
        for owner in owners:
            self.leave_open(owner)
        # Two of them may have wanted one place: which was last is not known, but each is right once it is alone.
        self.build(*owners[0])

    @rule(recipe=st.sampled_from(RECIPES))
    def clean(self, recipe: str) -> None:
        done = self.project.epbuild("clean", recipe)
        assert done.returncode == 0, done.stdout + done.stderr
        for place in self.places((recipe, "")):
            output = self.owned.get(place)
            if output is not None and output.tree is not None and {name for name, _ in output.owners} == {recipe}:
                self.is_gone(place)
            if output is not None and not self.tree(place):
                del self.owned[place]

    @rule()
    def collect_garbage(self) -> None:
        done = self.project.epbuild("gc")
        assert done.returncode == 0, done.stdout + done.stderr

    # What must hold.

    def arguments(self, owner: Owner) -> list[str]:
        recipe, where = owner
        return [recipe, *(["--set", f"vars.where={where}"] if where else [])]

    def places(self, owner: Owner) -> list[str]:
        recipe, where = owner
        text = self.texts[recipe]
        return [f"{where or text.where}/{group}{'.zip' if text.pack else ''}" for group in GROUPS[recipe]]

    def is_right(self, owner: Owner) -> None:
        """After a build of `owner` that ended well: all is as it must be."""
        expected = self.reference(owner)
        for place, output in list(self.owned.items()):
            if owner in output.owners and place not in expected:
                output.owners.discard(owner)
                if not output.owners:
                    if output.tree is not None:
                        self.is_gone(place)
                    del self.owned[place]
        for place, tree in expected.items():
            before = self.owned.get(place)
            others = before.owners if before is not None and before.tree == tree else set()
            self.owned[place] = Owned({owner, *others}, tree)
        for place, output in self.owned.items():
            if output.tree is not None:
                found = self.tree(place)
                assert {name: found.get(name) for name in output.tree} == output.tree, (
                    f"{place} is not what a build from nothing makes"
                )
        for place in expected:
            strange = self.tree(place).keys() - expected[place].keys() - {"notes.txt"}
            kept = {self.tree(place)[name] for name in strange}
            assert kept <= set(self.tampered.get(place, ())), f"{place} has files that are nobody's: {sorted(strange)}"
        for note, text in self.notes.items():
            assert note.read_bytes() == text
        hidden = [path.name for place in expected for path in (self.project.folder / place).parent.glob(f".{Path(place).name}.*")]
        assert hidden == [], "a build leaves nothing beside its outputs"
        check = self.project.epbuild("run", *self.arguments(owner), "--check")
        assert check.returncode == 0, check.stdout + check.stderr

    def leave_open(self, owner: Owner) -> None:
        """What the outputs of `owner` are now, and which are its, is not known."""
        for place, output in self.owned.items():
            if owner in output.owners or place in self.places(owner):
                output.owners, output.tree = {owner, *output.owners}, None

    def is_gone(self, place: str) -> None:
        kept = self.tree(place).keys() - {"notes.txt"}
        strange = [name for name in kept if self.tree(place)[name] not in self.tampered.get(place, ())]
        assert strange == [], f"{place} was not removed"

    def tree(self, place: str) -> Tree:
        """What is at a place now."""
        path = self.project.folder / place
        if path.is_file():
            return {"": path.read_bytes()}
        return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def reference(self, owner: Owner) -> dict[str, Tree]:
        """What a build in a new folder with a new store makes of the same inputs, by the place of each output."""
        recipe, where = owner
        text = self.texts[recipe]
        key = (recipe, where, text, *(self.models[group] for group in GROUPS[recipe]))
        if key not in self.references:
            folder = self.root / f"reference-{len(self.references)}"
            project = Project(folder / "checkout", folder / "cache")
            project.folder.mkdir(parents=True)
            for name, number in self.models.items():
                write_model(project.folder / f"{name}.onnx", number)
            (project.folder / recipe).write_text(text.render(GROUPS[recipe]), encoding="utf-8")
            project.build(*self.arguments(owner))
            made = {place: (project.folder / place) for place in self.places(owner)}
            self.references[key] = {
                place: {"": path.read_bytes()}
                if path.is_file()
                else {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}
                for place, path in made.items()
            }
            shutil.rmtree(folder)
        return self.references[key]


def test_whatever_is_done_the_next_build_is_as_one_from_nothing(
    tmp_path: Path, pytestconfig: pytest.Config, exhaustive: bool
) -> None:
    seconds = pytestconfig.getoption("any_order_seconds") or (600 if exhaustive else 6)
    first = pytestconfig.getoption("any_order_seed") or 0
    begin = time.monotonic()
    machine = type("Projects", (Projects,), {"root": tmp_path, "references": {}})
    bounds = settings(
        max_examples=PROJECTS_PER_SEED,
        stateful_step_count=STEPS,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    for number in itertools.count(first):
        if time.monotonic() - begin >= seconds:
            break
        print(f"--any-order-seed {number}")  # noqa: T201 - what pytest shows of a failure
        run_state_machine_as_test(seed(number)(machine), settings=bounds)
