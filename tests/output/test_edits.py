"""Every kind of edit of a recipe after two builds, compared with builds from scratch.

Plans, answers and outputs must be the same. The edits come from the recipe's schema, and from the cases of
`test_every_field`, which have a meaningful change for each field.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from epbuild.cli.app import execute
from epbuild.core.canonical import read_schema
from epbuild.survey.snapshot import get_memo_path, list_snapshots, try_fast_path
from tests.output.test_every_field import CASES, Case, Checkout, before_and_after
from tests.support.recipe_edits import Document, edits_of

pytestmark = pytest.mark.slow

SETTLED_SECONDS = 2.1  # like the cache of digests, a memo does not trust the stat of a younger file
SETTLED_AT_ONCE = 32
"""Number of checkouts that are created before one wait."""
EVERY, EVERY_KIND = 12, 6
"""Intervals of the single-field cases that run without `-m exhaustive`, and of the kinds of edits that run without `-m gate`."""

QNN = {"toolchain": "qnn", "ep": "QNNExecutionProvider"}


def recipe_of_several() -> Document:
    """Return a recipe with several entries in each section. Its outputs have one group, several targets, or an archive."""
    return {
        "epbuild": 1,
        "name": "several",
        "description": "What it is for.",
        "vars": {"quality": 1, "unused": 2},
        "toolchains": {
            "qnn": {"packages": ["onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"]},
            "next": {"packages": ["onnxruntime==1.31.1", "onnxruntime-qnn==2.7.1"], "python": "3.12"},
        },
        "models": {"left": "left.onnx", "right": {"path": "right.onnx", "load_from": "memory"}, "other": "other.onnx"},
        "targets": {
            "small": {**QNN, "provider_options": {"soc_model": "SM8650", "vtcm_mb": "${vars.quality}"}},
            "large": {**QNN, "provider_options": {"soc_model": "SM8750"}, "allow_nondeterminism": True},
            "spare": {**QNN, "toolchain": "next", "environment": {"QNN_TRACE": "1"}, "allow_unknown_options": False},
        },
        "groups": {
            "default": "none",
            "one": {"models": ["left"], "targets": ["small"], "expect": {"fallback_nodes": "any"}},
            "pair": {
                "models": ["left", {"model": "right", "compile": {"embed": False}}],
                "targets": ["small", "large"],
                "share_weights": True,
                "expect": {"fallback_nodes": "any"},
                "timeout": 600,
            },
        },
        "outputs": [
            {"layout": "directory", "path": "dist/plain/${group}/${target}", "sbom": True},
            {"layout": "ort-model-package", "path": "dist/packages/${group}", "groups": ["pair"], "targets": ["small", "large"]},
            {
                "layout": "directory",
                "path": "dist/packed/${group}-${target}.zip",
                "groups": ["one"],
                "archive": {"format": "zip", "level": 6},
            },
        ],
    }


EDITS = list(edits_of(recipe_of_several()))
KINDS = list(dict.fromkeys(edit.kind for edit in EDITS))


@dataclass(frozen=True)
class Answers:
    """Answers of commands about a recipe, and the files after its run."""

    code: int
    steps: list[Any]
    """Steps of the plan before and after the run. Many keys are known only after it."""
    keys: list[Any]
    files: Mapping[str, bytes]


@dataclass
class Incremental:
    """A checkout whose recipe is edited and built again and again."""

    checkout: Checkout
    root: Path
    monkeypatch: pytest.MonkeyPatch
    known: dict[str, Answers]
    """Results of builds from scratch, by the text of their recipe."""

    def write(self, recipe: Document) -> None:
        (self.checkout.folder / "epbuild.yaml").write_text(json.dumps(recipe), encoding="utf-8")

    def settle(self, recipe: Document) -> None:
        """Build a recipe twice, so that the second build uses a snapshot."""
        self.write(recipe)
        with in_checkout(self.checkout, self.monkeypatch):
            assert run_command("run", "-j1")[0] == 0
            assert run_command("run", "-j1")[0] == 0
            assert list_snapshots("epbuild.yaml")
            assert Path(str(get_memo_path("epbuild.yaml", ()))).exists()

    def edit(self, recipe: Document) -> None:
        """Edit the recipe. Compare all answers with answers without a snapshot and a memo, and with answers from scratch."""
        expected = self.from_scratch(recipe)
        self.write(recipe)
        with in_checkout(self.checkout, self.monkeypatch):
            line = try_fast_path(["run", "--check"], lambda: 0.0)
            by_snapshot = questions()
            with without_snapshots():
                assert questions() == by_snapshot
            plan, check = by_snapshot
            assert (line is not None) <= (check[0] == 0)
            assert expected.code == 0 or check[0] != 0
            assert run_command("run", "-j1")[0] == expected.code
            if expected.code:
                return
            assert steps_of(plan[1]) == expected.steps
            assert files_of(self.checkout) == expected.files
            after = run_command("plan", "--json")[1]
            assert {step["state"] for step in json.loads(after)["steps"]} <= {"current"}
            assert keys_of(after) == expected.keys
            assert run_command("run", "--check")[0] == 0

    def from_scratch(self, recipe: Document) -> Answers:
        text = json.dumps(recipe)
        if text not in self.known:
            fresh = checkout_at(self.root / f"fresh-{len(self.known)}" / "checkout", self.monkeypatch)
            (fresh.folder / "epbuild.yaml").write_text(text, encoding="utf-8")
            with in_checkout(fresh, self.monkeypatch):
                plan = run_command("plan", "--json")
                code = run_command("run", "-j1")[0]
                after = run_command("plan", "--json")[1] if not code else ""
            self.known[text] = Answers(
                code,
                steps_of(plan[1]) if not code else [],
                keys_of(after) if not code else [],
                files_of(fresh) if not code else {},
            )
            self.monkeypatch.setenv("EPBUILD_CACHE_DIR", str(self.checkout.cache))
        return self.known[text]


def checkout_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    folder.parent.mkdir(parents=True, exist_ok=True)
    checkout = Checkout(folder, monkeypatch)
    (checkout.folder / "fingerprint.json").write_text("{}", encoding="utf-8")
    return checkout


@contextmanager
def in_checkout(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run commands in the folder of a checkout, with its cache and its toolchains."""
    with monkeypatch.context() as here:
        checkout.serve_commands(here)
        yield


@contextmanager
def without_snapshots() -> Iterator[None]:
    """Move all snapshots and memos away while the block runs."""
    looks = Path(os.environ["EPBUILD_CACHE_DIR"]) / "looks"
    away = looks.with_name("looks-away")
    if looks.exists():
        looks.rename(away)
    yield
    assert not looks.exists(), "a command that only looks takes no snapshot"
    if away.exists():
        away.rename(looks)


def run_command(*arguments: str) -> tuple[int, str, str]:
    """Run a command, and return its exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = execute(arguments)
    return code, out.getvalue(), err.getvalue()


def questions() -> list[tuple[int, str, str]]:
    return [run_command("plan", "--json"), run_command("run", "--check", "--json")]


def steps_of(plan: str) -> list[Any]:
    """Return the facts of a plan's steps that do not depend on earlier builds."""
    return [{name: step[name] for name in ("id", "kind", "needs", "outputs")} for step in json.loads(plan)["steps"]]


def keys_of(plan: str) -> list[Any]:
    return [step["key"] for step in json.loads(plan)["steps"]]


def files_of(checkout: Checkout) -> dict[str, bytes]:
    dist = checkout.folder / "dist"
    return {path.relative_to(dist).as_posix(): path.read_bytes() for path in sorted(dist.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def known() -> dict[str, Answers]:
    return {}


@pytest.fixture(scope="module")
def settled_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return folders with the files of a checkout, which are old enough for a memo to trust their stat."""

    def folders() -> Iterator[Path]:
        root = tmp_path_factory.mktemp("settled")
        with pytest.MonkeyPatch.context() as monkeypatch:
            first = checkout_at(root / "first", monkeypatch).folder
        while True:
            batch = [Path(shutil.copytree(first, Path(tempfile.mkdtemp(dir=root)) / "copy")) for _ in range(SETTLED_AT_ONCE)]
            time.sleep(SETTLED_SECONDS)
            yield from batch

    return folders()


@pytest.fixture
def incremental(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: dict[str, Answers], settled_folders: Iterator[Path]
) -> Incremental:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    checkout = checkout_at(tmp_path / "edited" / "checkout", monkeypatch)
    shutil.rmtree(checkout.folder)
    next(settled_folders).rename(checkout.folder)  # which keeps the stat of each file
    return Incremental(checkout, tmp_path, monkeypatch, known)


def test_edit_kinds_cover_every_section_of_a_recipe() -> None:
    sections = {kind.partition(":")[0].partition(".")[0].removesuffix("[]") for kind in KINDS}
    assert sections >= {"name", "description", "vars", "toolchains", "models", "targets", "groups", "outputs"}
    assert sections | {name.partition(".")[0].removesuffix("[]") for name in CASES} == set(read_schema("recipe")["properties"])
    assert len(KINDS) >= 31


def kinds() -> Iterator[Any]:
    """Yield all kinds of edits. Most run at night: `test_every_field` changes each value, and sections have the same kinds."""
    for number, kind in enumerate(KINDS):
        is_structural = next(edit for edit in EDITS if edit.kind == kind).is_structural
        rest = pytest.mark.gate if is_structural and number % 2 else pytest.mark.exhaustive
        yield pytest.param(kind, marks=() if number % EVERY_KIND == 0 else rest)


@pytest.mark.parametrize("kind", list(kinds()))
def test_incremental_build_after_an_edit_equals_a_clean_build(kind: str, incremental: Incremental, exhaustive: bool) -> None:
    found = [edit for edit in EDITS if edit.kind == kind]
    for edit in found if exhaustive else found[:1]:
        incremental.settle(recipe_of_several())
        incremental.edit(edit.document)


def fields() -> Iterator[Any]:
    number = count()
    for name, case in CASES.items():
        if isinstance(case, Case):
            yield pytest.param(name, marks=() if next(number) % EVERY == 0 else pytest.mark.exhaustive)


@pytest.mark.parametrize("name", list(fields()))
def test_changed_removed_and_restored_field_builds_like_a_clean_build(name: str, incremental: Incremental) -> None:
    case = CASES[name]
    assert isinstance(case, Case)
    before, after = before_and_after(case)
    incremental.settle(before)
    incremental.edit(after)
    incremental.settle(after)
    incremental.edit(before)
