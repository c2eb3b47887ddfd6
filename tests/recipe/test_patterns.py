"""File patterns: their matches, and limits so that no pattern and no folder causes endless work."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from epbuild.core.errors import Position, Problem
from epbuild.recipe.model import Reference
from epbuild.recipe.patterns import FileFinder, PatternLimits

WHERE = Position("epbuild.yaml", 7, 12)
FILES = ("a.npz", "a-b/x.npz", "a/x.npz", "a/y.txt", "a/b/x.npz", "a/b/c/x.npz", "b/a/x.npz", "[1]/x.npz", "a/__pycache__/x.npz")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "recipe"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"12345")
    return folder


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each folder is listed."""
    counts: Counter[str] = Counter()
    scandir = os.scandir

    def counting(path: Any) -> Any:
        counts[os.fspath(path)] += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    return counts


def found(folder: Path, *names: str, limits: PatternLimits | None = None) -> list[str]:
    """Return the files that patterns match, below the recipe's folder. Fail if there is a problem."""
    problems: list[Problem] = []
    finder = FileFinder(folder, problems, limits)
    matches = [finder.find(Reference(name, WHERE)) for name in names]
    assert problems == []
    return [Path(place, file).relative_to(folder).as_posix() for match in matches if match for place, file in match.files]


def refused(folder: Path, name: str, limits: PatternLimits | None = None) -> str:
    problems: list[Problem] = []
    finder = FileFinder(folder, problems, limits)
    for _ in range(2):
        assert finder.find(Reference(name, WHERE)) is None
    [problem] = problems
    assert (problem.code, problem.where) == ("EPB273", WHERE)
    assert problem.hint
    return problem.message


@pytest.mark.parametrize(
    "name", ["*.npz", "a/*", "*/x.npz", "**/x.npz", "**/*", "a/**/x.npz", "**/b/**/x.npz", "?/[ab]/*", "*/*/*", "[[]1]/*", "z*"]
)
def test_a_pattern_matches_as_in_pathlib_and_in_the_order_of_paths(recipe: Path, name: str) -> None:
    wanted = sorted(file for file in recipe.glob(name) if file.is_file() and "__pycache__" not in file.parts)
    assert found(recipe, name) == [file.relative_to(recipe).as_posix() for file in wanted]


def test_a_folder_or_a_trailing_double_star_matches_all_its_content(recipe: Path) -> None:
    assert found(recipe, "a") == found(recipe, "a/**") == ["a/b/c/x.npz", "a/b/x.npz", "a/x.npz", "a/y.txt"]
    assert found(recipe, "a/y.txt") == ["a/y.txt"]
    assert found(recipe, "none", "none/*", "a.npz/*", "x" * 5000) == []


def test_each_folder_is_listed_once_for_all_patterns(recipe: Path, listed: Counter[str]) -> None:
    found(recipe, "**/*.npz", "**/**/**/**/**/*", "a", "a/**/x.npz", "*/x.npz", "**/a/**/b/**/c/**/*")
    assert set(listed.values()) == {1}
    assert len(listed) == 8


def test_only_folders_that_can_match_are_listed(recipe: Path, listed: Counter[str]) -> None:
    assert found(recipe, "a/*/x.npz") == ["a/b/x.npz"]
    assert sorted(listed) == [str(recipe / "a"), str(recipe / "a" / "b")]


def test_repeated_double_stars_match_like_one_and_take_no_longer(tmp_path: Path) -> None:
    depth = 50
    deep = tmp_path.joinpath(*["a"] * depth)
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"")
    # Each name is examined once per pattern, whatever the number of ways to match.
    often = "/".join(["**/a"] * 20)
    name = (deep / "x").relative_to(tmp_path).as_posix()
    limits = PatternLimits(entries=3 * (depth + 1))
    assert found(tmp_path, "**/**/**/**/**/*", f"{often}/x", f"{often}/b", limits=limits) == [name, name]


def test_links_to_folders_are_followed_only_if_named_in_the_pattern(recipe: Path) -> None:
    (recipe / "a" / "loop").symlink_to("..")
    (recipe / "link").symlink_to("b")
    (recipe / "b" / "file.npz").symlink_to("a/x.npz")
    assert found(recipe, "**/x.npz") == [name for name in found(recipe, "**/*") if name.endswith("x.npz")]
    assert found(recipe, "b/*.npz") == ["b/file.npz"]
    assert found(recipe, "link/a/*") == ["link/a/x.npz"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_a_pipe_does_not_match(recipe: Path) -> None:
    os.mkfifo(recipe / "b" / "pipe.npz")
    assert found(recipe, "b/*", "b/pipe.npz") == []


@pytest.mark.parametrize("name", ["/**/*", "/*", "/", "..", "../**/*.npz", "../../*", "up/**/*"])
def test_a_pattern_that_would_search_above_the_recipe_is_refused(recipe: Path, listed: Counter[str], name: str) -> None:
    (recipe / "up").symlink_to("../..")
    assert "would search all of" in refused(recipe, name)
    assert not listed


def test_a_folder_outside_the_recipes_folder_can_be_named(recipe: Path) -> None:
    other = recipe.parent / "other"
    other.mkdir()
    (other / "x.npz").write_bytes(b"")
    problems: list[Problem] = []
    finder = FileFinder(recipe, problems)
    for name in ("../other/*.npz", "../other", f"{other}/*", f"{other}/x.npz"):
        matches = finder.find(Reference(name, WHERE))
        assert matches is not None
        assert [Path(*match).resolve() for match in matches.files] == [other / "x.npz"]
    assert problems == []


def test_two_dots_after_a_wildcard_are_refused(recipe: Path) -> None:
    assert "'..' after a wildcard" in refused(recipe, "*/../../**/*")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (PatternLimits(files=3), "matches more than 3 files"),
        (PatternLimits(bytes=4), "GB of files"),
        (PatternLimits(entries=9), "search more than 9 files and folders"),
    ],
)
def test_a_pattern_has_limits(recipe: Path, limits: PatternLimits, said: str) -> None:
    assert said in refused(recipe, "**/*", limits)
