"""Git merges of two changes of a lock: the combined lock or a conflict, and never anything else."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.core.errors import PlanError
from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedToolchain, Package
from epbuild.toolchain.lock_file import read_lock, render, salvage
from tests.support.locks import LOCK, ONNXRUNTIME, environment, package
from tests.toolchain.lock_strategies import digests, locks, models, toolchains, versions

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


def merged(folder: Path, ours: str, base: str, theirs: str) -> tuple[int, str]:
    """Merge two changes with git, and return the number of conflicts and the text."""
    paths = [folder / name for name in ("ours", "base", "theirs")]
    for path, text in zip(paths, (ours, base, theirs), strict=True):
        path.write_text(text, encoding="utf-8", newline="\n")
    done = subprocess.run(["git", "merge-file", "-p", *map(str, paths)], capture_output=True, check=False)
    return done.returncode, done.stdout.decode()


def with_numpy(lock: Lock, version: str) -> Lock:
    """Return the lock with another NumPy on Linux."""
    qnn = lock.toolchains["qnn"]
    platforms = {**qnn.platforms, "linux-x86_64": environment(package("numpy", version), ONNXRUNTIME)}
    return replace(lock, toolchains={**lock.toolchains, "qnn": replace(qnn, platforms=platforms)})


def test_new_toolchain_merges_with_an_upgrade_of_another(tmp_path: Path) -> None:
    new = LockedToolchain(("onnxruntime",), {"linux-x86_64": environment(package("onnxruntime", "1.32.0"))})
    extended = replace(LOCK, toolchains={**LOCK.toolchains, "cpu": new})
    upgraded = with_numpy(LOCK, "2.5.5")
    conflicts, text = merged(tmp_path, render(extended), render(LOCK), render(upgraded))
    assert conflicts == 0
    assert text == render(replace(LOCK, toolchains={**upgraded.toolchains, "cpu": new}))


def test_merge_conflict_is_reported_and_common_facts_are_kept(tmp_path: Path) -> None:
    conflicts, text = merged(tmp_path, render(with_numpy(LOCK, "2.5.5")), render(LOCK), render(with_numpy(LOCK, "2.5.6")))
    assert conflicts == 1
    found, problem = salvage(text, "epbuild.lock")
    assert problem is not None
    assert problem.message == "the lock has a merge conflict"
    assert problem.hint == "Run `epbuild lock`: it resolves the conflict and keeps as many versions as possible."
    with pytest.raises(PlanError, match="the lock has a merge conflict"):
        read_lock(text, "epbuild.lock")
    linux = found.toolchains["qnn"].platforms["linux-x86_64"]
    assert {(item.name, item.version) for item in linux.packages} == {("numpy", "2.5.5"), ("onnxruntime", "1.31.1")}
    assert found.toolchains["qnn"].platforms["windows-arm64"] == LOCK.toolchains["qnn"].platforms["windows-arm64"]
    assert (found.models, found.catalog, found.wheels) == (LOCK.models, LOCK.catalog, LOCK.wheels)


# -- Arbitrary changes -------------------------------------------------------------------------------------------------

PACKAGES = [f"{letter}{number}" for letter in "abc" for number in range(4)]
PLATFORMS = ["linux-x86_64", "macos-arm64", "windows-arm64"]


@st.composite
def wide_locks(draw: st.DrawFn) -> Lock:
    """Draw locks with enough packages to separate two changes by unchanged lines."""
    lock = draw(locks)
    for name in draw(st.lists(st.sampled_from(["npu", "qnn"]), min_size=1, unique=True)):
        platforms = {
            platform: LockedEnvironment("cpython-3.11", tuple(Package(name, "1.0", ("0" * 64,)) for name in PACKAGES))
            for platform in draw(st.lists(st.sampled_from(PLATFORMS), min_size=1, unique=True))
        }
        lock = replace(lock, toolchains={**lock.toolchains, name: LockedToolchain(("a1", "b2"), platforms)})
    return lock


@st.composite
def changed(draw: st.DrawFn, lock: Lock) -> Lock:
    """Draw a change as `epbuild lock` makes it: added, updated and removed packages, toolchains and models."""
    for _ in range(draw(st.integers(1, 4))):
        table = draw(st.sampled_from(["packages", "packages", "toolchains", "models", "catalog", "wheels"]))
        if table == "packages":
            name = draw(st.sampled_from(sorted(lock.toolchains)))
            toolchain = lock.toolchains[name]
            if not toolchain.platforms:
                continue
            platform = draw(st.sampled_from(sorted(toolchain.platforms)))
            found = {item.name: item for item in toolchain.platforms[platform].packages}
            other = draw(st.sampled_from([*found, "a1a", "b0b", "d"]))
            if len(found) > 1 and draw(st.booleans()):
                found.pop(other, None)
            else:
                found[other] = Package(other, draw(versions), (draw(digests),))
            platforms = {**toolchain.platforms, platform: LockedEnvironment("cpython-3.11", tuple(sorted(found.values())))}
            lock = replace(lock, toolchains={**lock.toolchains, name: replace(toolchain, platforms=platforms)})
        elif table == "wheels":
            lock = replace(
                lock,
                wheels=draw(st.lists(st.sampled_from(lock.wheels or [Package("w", "1", ("1" * 64,))]), unique=True).map(tuple)),
            )
        else:
            values: dict[str, st.SearchStrategy[Any]] = {"toolchains": toolchains, "models": models, "catalog": st.just("7")}
            held: dict[str, Any] = dict(getattr(lock, table))
            name = draw(st.sampled_from([*sorted(held), "aa", "mm", "zz"]))
            if draw(st.booleans()) and len(held) > 1:
                held.pop(name, None)
            else:
                held[name] = draw(values[table])
            change: dict[str, Any] = {table: held}
            lock = replace(lock, **change)
    return lock


def facts(text: str) -> dict[tuple[str, ...], object]:
    """Return the facts of a lock as a TOML parser reads them."""

    def leaves(value: object, key: tuple[str, ...]) -> dict[tuple[str, ...], object]:
        if not isinstance(value, Mapping):
            return {key: value}
        return {found: leaf for part, inner in value.items() for found, leaf in leaves(inner, (*key, part)).items()}

    return leaves(tomllib.loads(text), ())


@pytest.mark.slow
@given(data=st.data(), base=wide_locks())
def test_any_two_changes_merge_correctly_or_conflict(data: st.DataObject, base: Lock) -> None:
    ours, theirs = (render(data.draw(changed(base))) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        conflicts, text = merged(Path(folder), ours, render(base), theirs)
    lock, problem = salvage(text, "epbuild.lock")
    if conflicts:
        assert problem is not None
        assert problem.message == "the lock has a merge conflict"
        return
    was, mine, yours = facts(render(base)), facts(ours), facts(theirs)
    both = {key: (mine if mine.get(key) != was.get(key) else yours).get(key) for key in {**mine, **yours}}
    assert facts(text) == {key: value for key, value in both.items() if value is not None}
    assert problem is not None or render(lock) == text
