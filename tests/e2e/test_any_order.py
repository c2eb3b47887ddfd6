"""Random sequences of edits, builds and faults, compared with builds from scratch.

Whatever is done to a project, and in whatever order, the next build has the result of a build from scratch and loses nothing.

The random steps are edits of every kind that the recipe's schema allows, two recipes in one folder, settings, prepared,
verified and merged models, a remote cache, tampering with inputs, outputs, workspace state and store, kills and
concurrent builds. After each step, commands that answer from a snapshot must give the same answers as without one.
After each build, the outputs that it owns must equal those of a build in a new folder with a new store. Outputs of
other owners and files of the user must be unchanged, `--check` must find nothing to do, and `plan` must have predicted
the build.

The option --any-order-seconds sets the duration (6 by default, 600 with `-m exhaustive`), and --any-order-seed the first seed.
A failure prints its seed and the steps that led to it. With --any-order-seconds, the run ends with a count of the steps.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from epbuild.remote.keys import SigningKey
from epbuild.survey.snapshot import list_snapshots
from tests.e2e.test_kills import KILLED_BEFORE_A_CHANGE
from tests.support import warm_start
from tests.support.projects import Project
from tests.support.quick_builds import PATIENCE, check_no_workers, start, write_model
from tests.support.recipe_edits import Document, edits_of

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="kills builds by signals, and finds workers in /proc"),
]

STEPS = 20
"""Number of steps in one project."""
PROJECTS_PER_SEED = 1
MAX_REFERENCES = 50
"""Number of builds from scratch to keep for comparison."""
MAX_GROWTH = 1.5
"""Limit on the growth of a recipe by edits."""
RECIPES = ("epbuild.yaml", "b.yaml")
MODELS = {"left": 0, "right": 1}
THIRD = "last"
PLACES = ("dist", "out")
SEEDS = (0, 1, 2)
QUALITIES = (1, 2)
KEY = SigningKey.generate()

PREPARE = """\
import sys

source, made, name = sys.argv[1:]
with open(source, "rb") as file, open(made, "wb") as new:
    # The name of the model's producer, as ONNX has it: what comes last counts.
    new.write(file.read() + bytes([0x12, len(name)]) + name.encode())
"""


def new_recipe(name: str) -> Document:
    """Return the initial recipe of this name.

    `epbuild.yaml` prepares a model and packs an output. `b.yaml` verifies one group and merges another.
    `b.yaml` names its models by a pattern, which a third model may match.
    """
    prepare = [{"run": ["python", "mark.py", "${in}", "${out}", "marked"], "files": ["mark.py"], "toolchain": "qnn"}]
    quick = {"htp_graph_finalization_optimization_mode": "${vars.quality}"}
    own: dict[str, Document] = {
        "epbuild.yaml": {
            "models": {"left": {"path": "left.onnx", "prepare": prepare}, "right": "right.onnx"},
            "groups": {"left": {"models": ["left"], "targets": ["npu"]}, "right": {"models": ["right"], "targets": ["npu"]}},
            "outputs": [
                {"layout": "directory", "path": "${vars.where}/${group}-${target}", "include_source": "base/${model}.onnx"},
                {"layout": "directory", "path": "${vars.where}/${group}-${target}.zip", "archive": "zip", "groups": ["right"]},
            ],
        },
        "b.yaml": {
            "models": "[lr]*.onnx",
            "groups": {
                "left": {"models": ["left"], "targets": ["npu"], "verify": True},
                "chain": {
                    "models": ["left", "right"],
                    "targets": ["npu"],
                    "merge": {"name": "chain", "connect": {"left.y": "right.x"}, "prefixes": {"right": "r_"}},
                },
            },
            "outputs": [{"layout": "directory", "path": "${vars.where}/${group}-${target}"}],
        },
    }
    return {
        "epbuild": 1,
        "name": name.partition(".")[0],
        "vars": {"quality": 1, "where": "dist"},
        "cache": {"remote": "../remote", "trust": [str(KEY.public)]},
        "toolchains": {"qnn": {"packages": ["onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"]}},
        "targets": {
            target: {
                "toolchain": "qnn",
                "ep": "QNNExecutionProvider",
                "provider_options": {"backend_type": "htp", "soc_model": soc, **quick},
            }
            for target, soc in {"npu": "SM8750", "old": "SM8650"}.items()
        },
        **own[name],
    }


CHOICE = st.integers(0, 1 << 24)
"""Range of draws that select an item when the number of items varies, such as the files of a store."""

Owner = tuple[str, str]
"""A recipe, and the value of `vars.where` for its build, or an empty string for the recipe's own value."""

Tree = dict[str, bytes]
"""The files of an output, by their POSIX paths below it; an archive is one file with an empty path."""


@dataclass
class Owned:
    """Expected output at a place: its owners and its files. The files are None after tampering or an interrupted write."""

    owners: set[Owner]
    tree: Tree | None


T = TypeVar("T")


def chosen(things: Sequence[T], choice: int) -> T:
    """Return one of the things."""
    return things[choice % len(things)]


@dataclass(frozen=True)
class Reference:
    """Result of a build from scratch: an exit code, and each output by its place."""

    code: int
    trees: dict[str, Tree]
    has_failures: bool = False
    """True if steps failed, as the recipe allows. Later builds try them again."""


Rule = TypeVar("Rule", bound=Callable[..., None])


def step(**drawn: Any) -> Callable[[Rule], Any]:
    """Declare a rule whose calls are counted."""

    def counted(function: Rule) -> Any:
        @functools.wraps(function)
        def counting(self: Projects, **given: Any) -> None:
            self.done[function.__name__] += 1
            function(self, **given)

        return cast("Any", rule)(**drawn)(counting)

    return counted


class Projects(RuleBasedStateMachine):
    """One project and the operations on it, in a new folder below `root`, beside the builds from scratch."""

    root: Path
    references: OrderedDict[Any, Reference]
    """Results of builds from scratch by their inputs, the most recently used ones."""
    done: Counter[str]
    """Number of runs of each rule."""

    def __init__(self) -> None:
        super().__init__()
        self.done["projects"] += 1
        self.folder = self.root / f"project-{self.done['projects']}"
        self.project = Project(self.folder / "checkout", self.folder / "cache", {"EPBUILD_SIGNING_KEY": KEY.text})
        self.project.folder.mkdir(parents=True)
        (self.folder / "remote").mkdir()
        (self.folder / "elsewhere").mkdir()
        self.models = dict(MODELS)
        self.recipes = {name: new_recipe(name) for name in RECIPES}
        self.owned: dict[str, Owned] = {}
        self.tampered: dict[str, list[bytes]] = {}
        self.notes: dict[Path, bytes] = {}
        self.half_written: dict[Owner, set[str]] = {}
        self.write_inputs(self.project)
        for name in RECIPES:
            self.write_recipe(name)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def write_inputs(self, project: Project) -> None:
        for name, number in self.models.items():
            write_model(project.folder / f"{name}.onnx", number)
        (project.folder / "mark.py").write_text(PREPARE, encoding="utf-8")

    def write_recipe(self, name: str) -> None:
        (self.project.folder / name).write_text(json.dumps(self.recipes[name], indent=1), encoding="utf-8")

    def epbuild(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that has to end soon."""
        return warm_start.run(arguments, self.project.folder, self.project.command()[1], timeout=PATIENCE)

    @initialize(built=st.booleans())
    def begin(self, built: bool) -> None:
        """Begin without builds, or with builds of both recipes, whose results are also in a remote cache."""
        if not built:
            return
        warm = self.root / "warm cache"
        if warm.exists():
            shutil.copytree(warm, self.project.cache)
        for recipe in RECIPES:
            self.build_as((recipe, ""), "write")
        if not warm.exists():
            shutil.copytree(self.project.cache, warm)

    # Changes of inputs by a user.

    @step(
        model=st.sampled_from((*MODELS,)), number=st.sampled_from(SEEDS), how=st.sampled_from(("write", "replace", "keep time"))
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

    @step(number=st.sampled_from((*SEEDS, None)))
    def add_or_remove_model(self, number: int | None) -> None:
        """Add, change or remove the model that only a pattern matches."""
        path = self.project.folder / f"{THIRD}.onnx"
        if number is None:
            path.unlink(missing_ok=True)
            self.models.pop(THIRD, None)
        else:
            write_model(path, number)
            self.models[THIRD] = number

    @step(recipe=st.sampled_from(RECIPES), name=st.sampled_from(("quality", "where")), first=st.booleans())
    def edit_variable(self, recipe: str, name: str, first: bool) -> None:
        variables = self.recipes[recipe].get("vars", {})
        if name in variables:
            value = (QUALITIES if name == "quality" else PLACES)[not first]
            self.recipes[recipe] = {**self.recipes[recipe], "vars": {**variables, name: value}}
            self.write_recipe(recipe)

    @step(recipe=st.sampled_from(RECIPES), choices=st.lists(CHOICE, min_size=1, max_size=4), anew=st.booleans())
    def edit_recipe(self, recipe: str, choices: list[int], anew: bool) -> None:
        """Apply edits to the current or the initial recipe. Undo an edit that a build from scratch refuses too."""
        before, first = self.recipes[recipe], new_recipe(recipe)
        document = first if anew else before
        for choice in choices:
            edits = list(edits_of(document))
            # Half of the edits change entries. In each half, all kinds are equally likely, whatever their number of places.
            kinds = sorted({edit.kind for edit in edits if edit.is_structural == bool(choice % 2)})
            kind = chosen(kinds, choice // 2)
            edited = chosen([edit for edit in edits if edit.kind == kind], choice // len(edits)).document
            if len(json.dumps(edited)) > MAX_GROWTH * len(json.dumps(first)):
                continue
            self.recipes[recipe] = edited
            self.write_recipe(recipe)
            self.check_answers(recipe)
            if self.epbuild("plan", recipe).returncode == 0:
                document = edited
            else:
                assert self.epbuild("run", recipe).returncode == self.reference((recipe, "")).code != 0, kind
        self.recipes[recipe] = document
        self.write_recipe(recipe)
        code = self.reference((recipe, "")).code
        if code:
            assert self.epbuild("run", recipe, "--check").returncode != 0
            done = self.epbuild("run", recipe)
            assert done.returncode == code, done.stdout + done.stderr
            self.forget_all_content((recipe, ""))
            self.recipes[recipe] = before
            self.write_recipe(recipe)

    @step(recipe=st.sampled_from(RECIPES))
    def restart(self, recipe: str) -> None:
        self.recipes[recipe] = new_recipe(recipe)
        self.write_recipe(recipe)

    @step(model=st.sampled_from((*MODELS,)), how=st.sampled_from(("link", "FIFO", "folder", "nothing")))
    def replace_input(self, model: str, how: str) -> None:
        """Replace an input by a link, which stays, or by something that every command must refuse. Undo the latter."""
        path, away = self.project.folder / f"{model}.onnx", self.folder / "elsewhere" / f"{model}.onnx"
        if path.is_symlink():
            shutil.copyfile(away, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        shutil.move(path, away)
        replace_by(path, away, how)
        if how == "link":
            return
        for recipe in RECIPES:
            self.check_answers(recipe)
            done = self.epbuild("run", recipe)
            if done.returncode == 0:  # it does not need the model
                self.check_outputs((recipe, ""))
            elif done.returncode != 2:
                self.forget_all_content((recipe, ""))
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        shutil.move(away, path)

    @step()
    def touch_all(self) -> None:
        for path in self.project.folder.rglob("*"):
            if path.is_file() and ".epbuild" not in path.parts:
                path.touch()

    # Changes of results by a user or a disk.

    @precondition(lambda self: self.owned)
    @step(data=st.data(), how=st.sampled_from(("change", "remove", "remove all", "link", "FIFO", "folder")))
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
            if how == "change":
                path.write_bytes(path.read_bytes() + b"changed")
            self.tampered.setdefault(place, []).append(path.read_bytes())
            if how != "change":
                away = self.folder / "elsewhere" / f"{second}"
                shutil.move(path, away)
                replace_by(path, away, how)
                self.owned[place].tree = None
                if how != "link":
                    self.check_refused(path)
        if place in self.owned:
            self.owned[place].tree = None

    def check_refused(self, path: Path) -> None:
        """Assert that no build replaces the pipe or the folder in the place of one of its files, and remove that."""
        for recipe in RECIPES:
            self.check_answers(recipe)
            is_pipe = path.is_fifo()
            done = self.epbuild("run", recipe)
            if done.returncode == 0:  # it emits nothing there, and may have removed the output with empty folders in it
                assert path.is_fifo() or not is_pipe
                self.check_outputs((recipe, ""))
            else:
                assert path.is_fifo() or path.is_dir()
                assert (done.returncode, "[EPB423]" in done.stderr) == (1, True), done.stdout + done.stderr
                self.forget_all_content((recipe, ""))
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)

    def remove(self, place: str) -> None:
        """Remove an output, and the user's files in it."""
        path = self.project.folder / place
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.notes = {note: text for note, text in self.notes.items() if not note.is_relative_to(path)}
        self.tampered.pop(place, None)

    @precondition(lambda self: any(not Path(place).suffix for place in self.owned))
    @step(data=st.data())
    def put_notes(self, data: st.DataObject) -> None:
        place = chosen(sorted(place for place in self.owned if not Path(place).suffix), data.draw(CHOICE))
        note = self.project.folder / place / "notes.txt"
        if note.parent.is_dir():
            note.write_text(f"mine {len(self.notes)}", encoding="utf-8")
            self.notes[note] = note.read_bytes()

    @step(what=st.sampled_from(("blob", "record", "state", "cache", "blobs", "results", "memory", "remote")), data=st.data())
    def damage(self, what: str, data: st.DataObject) -> None:
        cache, memory = self.project.cache, self.project.folder / ".epbuild"
        which, where, bit = data.draw(CHOICE), data.draw(CHOICE), data.draw(st.integers(0, 7))
        lost = {
            "cache": [cache],
            "blobs": [cache / "cas"],
            "results": [cache / "cas", cache / "actions"],
            "memory": [memory],
            "remote": [*(self.folder / "remote").iterdir()],
        }.get(what)
        if lost is not None:
            for path in lost:
                shutil.rmtree(path, ignore_errors=True)
            if what in ("cache", "memory"):  # without the key in the cache, the memory is not known to be this user's
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
                # A snapshot covers files and reads no database, so a full check has to find the damage first.
                for recipe in RECIPES:
                    self.answers_in_full(recipe)
                self.forget_owners()
                for output in self.owned.values():
                    output.tree = None  # damage to an unused page loses no record, and orphans are removed

    def move_away_what_was_changed(self, place: str) -> None:
        """Remove an output that was changed.

        Once the owner of an output is forgotten, builds take its changed files for the user's and refuse to write there.
        """
        if place in self.tampered:
            self.remove(place)

    def forget_owners(self) -> None:
        """Forget who wrote the outputs. They stay until a build writes another output in their place."""
        for place in [place for place in self.tampered if place in self.owned]:
            self.move_away_what_was_changed(place)
            del self.owned[place]
        for output in self.owned.values():
            output.owners = set()

    @step(recipe=st.sampled_from(RECIPES))
    def build_on_another_machine(self, recipe: str) -> None:
        """Build in a fresh checkout, on a machine that has only the remote cache."""
        shutil.rmtree(self.project.cache, ignore_errors=True)
        shutil.rmtree(self.project.folder / ".epbuild", ignore_errors=True)
        for place in PLACES:
            shutil.rmtree(self.project.folder / place, ignore_errors=True)
        self.owned, self.tampered, self.notes, self.half_written = {}, {}, {}, {}
        self.build_as((recipe, ""))

    # Builds.

    @step(recipe=st.sampled_from(RECIPES), change=st.integers(1, 120))
    def build_that_is_killed(self, recipe: str, change: int) -> None:
        before, environment = KILLED_BEFORE_A_CHANGE.format(change), self.project.command()[1]
        done = warm_start.run(("run", recipe), self.project.folder, environment, timeout=PATIENCE, before=before)
        check_no_workers(self.project)
        if done.returncode == 0:
            self.check_outputs((recipe, ""))
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        # Its outputs may be old, absent or new, and recorded or not. The next build determines which.
        self.forget_content((recipe, ""))
        self.half_written[(recipe, "")] = set(self.places((recipe, "")))

    @step(recipe=st.sampled_from(RECIPES), where=st.sampled_from(("", *PLACES)), remote=st.sampled_from(("off", "read", "write")))
    def build(self, recipe: str, where: str, remote: str) -> None:
        if remote == "write" and not self.recipes[recipe].get("cache", {}).get("remote"):
            done = self.epbuild("run", *self.arguments((recipe, where)), "--remote-cache", "write")
            assert done.returncode != 0
            remote = "read"
        self.build_as((recipe, where), remote)

    def build_as(self, owner: Owner, remote: str = "read") -> None:
        arguments = self.arguments(owner)
        expected = self.reference(owner)
        if expected.code:  # it sets a variable that the recipe does not have
            assert self.epbuild("run", *arguments).returncode == expected.code
            return
        reads = "off" if remote == "off" else "read"
        told = self.epbuild("plan", *arguments, "--json", "--remote-cache", reads)
        assert told.returncode == 0, told.stdout + told.stderr
        states = {step["id"]: step["state"] for step in json.loads(told.stdout)["steps"]}
        done = self.epbuild("run", *arguments, "--json", "--remote-cache", remote)
        assert done.returncode == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]
        outcomes = {event["step"]: event["outcome"] for event in events if event["event"] == "step_finished"}
        outcomes |= {event["step"]: "failed" for event in events if event["event"] == "step_failed"}  # allowed by the recipe
        for step, state in states.items():
            # Merging is part of the emit step of the merged group.
            is_emission = step.startswith(("emit:", "merge:"))
            # The same model in another group has the same result, which this build may just have created.
            made = {other.rpartition("/")[2] for other, outcome in outcomes.items() if outcome in ("built", "restored")}
            may_be_current = state == "current" or is_emission or step.rpartition("/")[2] in made
            assert (outcomes[step] == "current") <= may_be_current, (step, state, outcomes)
            assert (state == "current") <= (outcomes[step] == "current"), (step, state, outcomes)
            done_without_a_compile = outcomes[step] in ("restored", "emitted", "current") or step.startswith("merge:")
            assert (state == "restorable") <= done_without_a_compile, (step, state, outcomes)
        self.check_outputs(owner)

    @step(owners=st.lists(st.tuples(st.sampled_from(RECIPES), st.sampled_from(("", *PLACES))), min_size=2, max_size=3))
    def build_at_once(self, owners: list[Owner]) -> None:
        for place in [*self.tampered]:  # one build may forget an output that another is about to write
            self.move_away_what_was_changed(place)
            if place in self.owned:
                self.owned[place].tree = None
        builds = [start(self.project, "run", *self.arguments(owner)) for owner in owners]
        for build, owner in zip(builds, owners, strict=True):
            _, said = build.communicate(timeout=PATIENCE)
            assert build.returncode == self.reference(owner).code, said
        for owner in owners:
            self.forget_content(owner)
        # Two builds may have written to one place. Their order is unknown, but each is right when it runs alone.
        self.build_as(owners[0])

    @step(recipe=st.sampled_from(RECIPES))
    def clean(self, recipe: str) -> None:
        done = self.epbuild("clean", recipe)
        assert done.returncode == 0, done.stdout + done.stderr
        for place in self.places((recipe, "")):
            output = self.owned.get(place)
            if output is not None and output.tree is not None and {name for name, _ in output.owners} == {recipe}:
                self.check_absent(place)
                output.owners, output.tree = set(), None  # the user's files may be left
            elif output is not None and not output.owners:
                output.tree = None  # its writer is unknown: files that are recognizably epbuild's are removed
            # A replacement of a file then has no owner, and builds refuse to overwrite it.
            top = self.project.folder / place
            for path in (*sorted(top.rglob("*"), reverse=True), top):
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            if output is not None and not self.tree(place):
                del self.owned[place]

    @step()
    def collect_garbage(self) -> None:
        done = self.epbuild("gc")
        assert done.returncode == 0, done.stdout + done.stderr

    # Invariants.

    def arguments(self, owner: Owner) -> list[str]:
        recipe, where = owner
        return [recipe, *(["--set", f"vars.where={where}"] if where else [])]

    def places(self, owner: Owner) -> list[str]:
        return [*self.reference(owner).trees]

    @invariant()
    def check_fast_path(self) -> None:
        for recipe in RECIPES:
            self.check_answers(recipe)

    @invariant()
    def check_known_outputs(self) -> None:
        for place, output in self.owned.items():
            if output.tree is not None:
                self.check_tree(place, output.tree)

    def check_tree(self, place: str, tree: Tree) -> None:
        found = self.tree(place)
        assert {name: found.get(name) for name in tree} == tree, f"{place} is not what a build from nothing makes"

    def check_answers(self, recipe: str) -> None:
        """Assert that commands give the same answers with and without a snapshot."""
        if not list_snapshots(str(self.project.folder / recipe), str(self.project.cache)):
            return
        fast, full = self.answers(recipe), self.answers_in_full(recipe)
        other = {what: (full.get(what), fast.get(what)) for what in {**full, **fast} if full.get(what) != fast.get(what)}
        assert other == {}, f"{recipe}: answers in full, and from a snapshot: {other}"

    def answers_in_full(self, recipe: str) -> dict[str, Any]:
        """Return the answers of commands about a recipe without a snapshot."""
        looks, away = self.project.cache / "looks", self.project.cache / "looks-away"
        if not looks.exists():
            return self.answers(recipe)
        looks.rename(away)
        try:
            return self.answers(recipe)
        finally:
            away.rename(looks)

    def answers(self, recipe: str) -> dict[str, Any]:
        """Return the answers of commands about a recipe: each step and all other facts of each plan."""
        found: dict[str, Any] = {"run --check": self.epbuild("run", recipe, "--check").returncode}
        for steps in ((), ("compile:*",)):
            plan = self.epbuild("plan", recipe, "--json", *steps)
            document: dict[str, Any] = json.loads(plan.stdout) if plan.returncode == 0 else {"error": plan.stderr}
            found |= {" ".join(("plan", *steps, step["id"])): step for step in document.pop("steps", ())}
            found |= {" ".join(("plan", *steps, name)): value for name, value in document.items()}
        return found

    def check_outputs(self, owner: Owner) -> None:
        """Assert that all outputs are as expected after a successful build of `owner`."""
        expected = self.reference(owner).trees
        for place, output in list(self.owned.items()):
            if owner in output.owners and place not in expected:
                if self.reference(owner).has_failures:
                    output.tree = None  # the output of a step that failed stays as it was
                    continue
                output.owners.discard(owner)
                if not output.owners:
                    if output.tree is not None:
                        self.check_absent(place)
                    self.move_away_what_was_changed(place)
                    del self.owned[place]
        for place, tree in expected.items():
            before = self.owned.get(place)
            others = before.owners if before is not None and before.tree == tree else set()
            self.owned[place] = Owned({owner, *others}, tree)
        for place, output in self.owned.items():
            if output.tree is not None:
                self.check_tree(place, output.tree)
        for place in expected:
            links = [name for name in expected[place] if (self.project.folder / place / name).is_symlink()]
            assert links == [], f"{place} has links"
            strange = self.tree(place).keys() - expected[place].keys() - {"notes.txt"}
            kept = {self.tree(place)[name] for name in strange}
            assert kept <= set(self.tampered.get(place, ())), f"{place} has files that are nobody's: {sorted(strange)}"
        for note, text in self.notes.items():
            assert note.read_bytes() == text
        self.half_written.pop(owner, None)
        # The next build of its recipe removes the leftovers of a killed build beside its outputs.
        others_halves = {place for places in self.half_written.values() for place in places}
        hidden = [
            path.name
            for place in expected.keys() - others_halves
            for path in (self.project.folder / place).parent.glob(f".{Path(place).name}.*")
        ]
        assert hidden == [], "a build leaves nothing beside its outputs"
        check = self.epbuild("run", *self.arguments(owner), "--check")
        assert check.returncode == 0 or self.reference(owner).has_failures, check.stdout + check.stderr

    def forget_content(self, owner: Owner) -> None:
        """Forget the expected content and ownership of the outputs of `owner`."""
        for place, output in self.owned.items():
            if owner in output.owners or place in self.places(owner):
                output.owners, output.tree = {owner, *output.owners}, None

    def forget_all_content(self, owner: Owner) -> None:
        """Forget the expected content and ownership of all outputs, after a build that failed."""
        for output in self.owned.values():
            output.owners, output.tree = {owner, *output.owners}, None

    def check_absent(self, place: str) -> None:
        kept = self.tree(place).keys() - {"notes.txt"}
        strange = [name for name in kept if self.tree(place)[name] not in self.tampered.get(place, ())]
        assert strange == [], f"{place} was not removed"

    def tree(self, place: str) -> Tree:
        """Return the files at a place."""
        return tree_at(self.project.folder / place)

    def reference(self, owner: Owner) -> Reference:
        """Return the result of a build of the same inputs in a new folder with a new store."""
        recipe, where = owner
        key = (recipe, where, json.dumps(self.recipes[recipe]), *self.models.values())
        if key not in self.references:
            self.done["builds from nothing"] += 1
            folder = self.root / "reference"
            project = Project(folder / "checkout", folder / "cache")
            project.folder.mkdir(parents=True)
            self.write_inputs(project)
            (project.folder / recipe).write_text(json.dumps(self.recipes[recipe], indent=1), encoding="utf-8")
            done = project.epbuild("run", *self.arguments(owner), "--json", "--remote-cache", "off")
            events = [json.loads(line) for line in done.stdout.splitlines()] if not done.returncode else []
            places = [event["note"] for event in events if event["event"] == "step_finished" and event["outcome"] == "emitted"]
            trees = {place: tree_at(project.folder / place) for place in places}
            failed = any(event["event"] == "step_failed" for event in events)
            self.references[key] = Reference(done.returncode, trees, failed)
            shutil.rmtree(folder)
            if len(self.references) > MAX_REFERENCES:
                self.references.popitem(last=False)
        self.references.move_to_end(key)
        return self.references[key]


def tree_at(path: Path) -> Tree:
    if path.is_file():
        return {"": path.read_bytes()}
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def replace_by(path: Path, away: Path, how: str) -> None:
    """Put a link to `away`, a pipe or a folder in the place of a file."""
    match how:
        case "link":
            path.symlink_to(away)
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()


def test_after_any_sequence_of_changes_a_build_equals_one_from_scratch(
    tmp_path: Path, pytestconfig: pytest.Config, exhaustive: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = pytestconfig.getoption("any_order_seconds")
    seconds = asked or (600 if exhaustive else 6)
    first = pytestconfig.getoption("any_order_seed") or 0
    begin = time.monotonic()
    done: Counter[str] = Counter()
    machine = type("Projects", (Projects,), {"root": tmp_path, "references": OrderedDict(), "done": done})
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
    if asked is not None:
        others = {name: done.pop(name) for name in ("projects", "builds from nothing")}
        with capsys.disabled():
            print(f"\nseeds {first} to {number - 1}, {done.total()} steps, {others}, of each rule: {dict(done.most_common())}")  # noqa: T201
