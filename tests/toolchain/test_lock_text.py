"""A lock is text that people can read and git can merge; what does not belong in one is told with its line, and never guessed at."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_locks import LOCK, NUMPY, ONNXRUNTIME, digest, environment, package

from epbuild.core.errors import PlanError, Position, Problem
from epbuild.toolchain.lock_facts import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package
from epbuild.toolchain.lock_file import read_lock, render, salvage

TEXT = render(LOCK)
HEAD = 2  # the comment and the format


def problem_of(text: str) -> Problem:
    with pytest.raises(PlanError) as caught:
        read_lock(text, "epbuild.lock")
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_code) == ("EPB242", 2)
    return problem


# -- What is written is what is read -----------------------------------------------------------------------------------

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)
digests = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
versions = st.from_regex(r"[0-9]+(\.[0-9]+){0,2}(rc1|\.post1|\+cu12)?", fullmatch=True)
files = st.lists(digests, min_size=1, max_size=3, unique=True).map(lambda found: tuple(sorted(found)))
distributions = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)?", fullmatch=True)
made = st.builds(Package, distributions, versions, files)
installed = st.builds(Package, distributions, versions, st.just(()))


def environments(packages: st.SearchStrategy[Package]) -> st.SearchStrategy[LockedEnvironment]:
    several = st.lists(packages, min_size=1, max_size=4, unique_by=lambda item: item.name)
    return st.builds(
        LockedEnvironment, st.sampled_from(["cpython-3.11", "pypy-3.10"]), several.map(lambda found: tuple(sorted(found)))
    )


platforms = st.dictionaries(
    st.sampled_from(["linux-x86_64", "windows-arm64", "macos-arm64"]), environments(made) | environments(installed), max_size=3
)
requirements = st.lists(
    st.sampled_from(["a==1", "b[x, y]>=1,<2", "c; sys_platform == 'win32'", "python"]), min_size=1, max_size=3, unique=True
)
toolchains = st.builds(LockedToolchain, requirements.map(lambda found: tuple(sorted(found))), platforms)
locations = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() or "\n" in text)
models = st.builds(LockedModel, digests, st.dictionaries(locations, digests, max_size=3))
catalogs = st.dictionaries(st.from_regex(r"[A-Za-z]+(/[a-z-]+)?", fullmatch=True), st.sampled_from(["1", f"2 sha256:{'a' * 64}"]))
releases = st.lists(made, max_size=3, unique_by=lambda item: item.requirement).map(lambda found: tuple(sorted(found)))
locks = st.builds(
    Lock, names, st.dictionaries(names, toolchains, max_size=3), st.dictionaries(names, models, max_size=3), catalogs, releases
)


@pytest.mark.slow
@given(lock=locks)
def test_what_is_written_is_read_as_it_was(lock: Lock) -> None:
    assert read_lock(render(lock), "epbuild.lock") == lock


@pytest.mark.slow
@given(lock=locks)
def test_the_text_has_one_fact_a_line_sorted(lock: Lock) -> None:
    lines = render(lock).removesuffix("\n").split("\n")[HEAD:]
    assert lines == sorted(set(lines))


@pytest.mark.slow
@given(lock=locks, seed=st.integers())
def test_the_order_in_which_facts_were_found_is_not_seen(lock: Lock, seed: int) -> None:
    def shuffled(values: dict[str, Any]) -> dict[str, Any]:
        return dict(random.Random(seed).sample(sorted(values.items(), key=lambda item: item[0]), len(values)))

    other = Lock(
        lock.recipe, shuffled(dict(lock.toolchains)), shuffled(dict(lock.models)), shuffled(dict(lock.catalog)), lock.wheels
    )
    assert render(other) == render(lock)


def test_the_lines_of_a_lock_can_be_read_by_people() -> None:
    assert TEXT.splitlines()[1:] == [
        "epbuild-lock 1",
        f"catalog QNNExecutionProvider/onnxruntime-qnn 1 sha256:{digest('entry')}",
        "catalog session-keys 2",
        *sorted(
            [
                f"model decode sha256:{digest('graph')}",
                f"model decode sha256:{digest('data')} decode.bin",
                f"model decode sha256:{digest('more data')} with space/50%25.bin",
            ]
        ),
        "recipe tiny",
        "toolchain qnn linux-x86_64 (cpython-3.11)",
        *(f"toolchain qnn linux-x86_64 numpy==2.4.6 sha256:{found}" for found in NUMPY.files),
        f"toolchain qnn linux-x86_64 onnxruntime==1.31.1 sha256:{ONNXRUNTIME.files[0]}",
        "toolchain qnn requires onnxruntime==1.31.1",
        "toolchain qnn windows-arm64 (cpython-3.11)",
        *(f"toolchain qnn windows-arm64 numpy==2.4.6 sha256:{found}" for found in NUMPY.files),
        f"toolchain qnn windows-arm64 onnxruntime==1.31.1 sha256:{ONNXRUNTIME.files[0]}",
        f"toolchain qnn windows-arm64 pyreadline3==3.5.6 sha256:{digest('pyreadline3 3.5.6')}",
        "toolchain ryzen windows-x86_64 (cpython-3.10)",
        "toolchain ryzen windows-x86_64 onnxruntime-vitisai==1.22.1 installed",
        *sorted(f"wheel my-models==1.0 sha256:{digest(word)}" for word in ("a wheel", "another wheel")),
        f"wheel my-models==1.1 sha256:{digest('my-models 1.1')}",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.removesuffix("\n"),
        lambda text: "\n".join([*text.splitlines()[:HEAD], *reversed(text.splitlines()[HEAD:])]),
        lambda text: text.replace("recipe tiny", "# a remark\n\nrecipe tiny"),
    ],
    ids=["git's line ends on Windows", "no last line end", "another order", "remarks"],
)
def test_what_git_or_a_person_may_have_done_to_the_lines_changes_nothing(change: object) -> None:
    assert read_lock(change(TEXT), "epbuild.lock") == LOCK  # type: ignore[operator]


def test_a_lock_that_was_written_before_wheels_were_locked_is_read() -> None:
    older = "\n".join(line for line in TEXT.splitlines() if not line.startswith("wheel "))
    assert read_lock(older, "epbuild.lock") == replace(LOCK, wheels=())


# -- Bad input ---------------------------------------------------------------------------------------------------------

AB = "ab" * 32


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("toolchain qnn linux-x86_64 numpy", "this line is no fact of a lock"),
        (f"toolchain qnn linux-x86_64 scipy==1 sha256:{'A' * 64}", "this line is no fact of a lock"),
        (f"toolchain qnn linux-x86_64 scipy==1 sha256:{AB} ", "this line is no fact of a lock"),
        ("toolchain qnn linux-x86_64 scipy @ https://host.example/scipy.whl", "this line is no fact of a lock"),
        (f"model ../decode sha256:{AB}", "this line is no fact of a lock"),
        ("model decode md5:abcd", "this line is no fact of a lock"),
        ("wheel my-models==1.0", "this line is no fact of a lock"),
        (f"wheel My_Models==1.0 sha256:{AB}", "this line is no fact of a lock"),
        ("catalog session-keys", "this line is no fact of a lock"),
        ("Recipe tiny", "this line is no fact of a lock"),
        ("recipe tiny", "the lock repeats line 8"),
        ("recipe other", "the lock names two recipes, 'tiny' and 'other'"),
        ("catalog session-keys 3", "the lock contradicts itself about the catalog's session-keys"),
        (f"model decode sha256:{AB}", "the lock contradicts itself about the model 'decode'"),
        (f"model decode sha256:{AB} decode.bin", "the lock contradicts itself about decode.bin of the model 'decode'"),
        (f"model other sha256:{AB} x.bin", "the lock has the external data of the model 'other', and not its graph"),
        (
            "toolchain qnn linux-x86_64 (cpython-3.12)",
            "the lock contradicts itself about the Python of the toolchain 'qnn' on linux-x86_64",
        ),
        (
            f"toolchain qnn linux-x86_64 numpy==2.5.5 sha256:{AB}",
            "the lock has numpy 2.4.6 and 2.5.5 for the toolchain 'qnn'",
        ),
        (
            f"toolchain qnn macos-arm64 numpy==2.4.6 sha256:{AB}",
            "the lock does not name the Python that the toolchain 'qnn' has on macos-arm64",
        ),
        ("toolchain qnn macos-arm64 (cpython-3.11)", "the lock has no packages of the toolchain 'qnn' on macos-arm64"),
        (
            "toolchain qnn linux-x86_64 scipy==1.0 installed",
            "the lock has the files of only some packages of the toolchain 'qnn' on linux-x86_64",
        ),
    ],
)
def test_a_line_that_does_not_belong_there_is_told_with_its_number(line: str, message: str) -> None:
    text = f"{TEXT}{line}\n"
    problem = problem_of(text)
    assert (problem.message, problem.hint) == (message, "Write it anew with `epbuild lock`.")
    assert problem.where == Position("epbuild.lock", len(text.splitlines()), 1)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the lock is empty"),
        ("# nothing\n", 1, "the lock is empty"),
        (TEXT.replace("recipe tiny\n", ""), len(TEXT.splitlines()) - 1, "the lock does not name its recipe"),
    ],
)
def test_what_is_no_lock_is_told_as_that(text: str, line: int, message: str) -> None:
    problem = problem_of(text)
    assert (problem.message, problem.where) == (message, Position("epbuild.lock", line, 1))


def test_a_file_of_another_program_is_told_and_nothing_is_made_of_it() -> None:
    problem = problem_of('{"nodes": {}}\n')
    assert problem.message == "this is no lock of epbuild: its first line is not 'epbuild-lock 1'"
    assert problem.where == Position("epbuild.lock", 1, 1)
    with pytest.raises(PlanError):
        salvage('{"nodes": {}}\n', "epbuild.lock")


def test_a_lock_of_a_newer_epbuild_is_refused_and_nothing_is_made_of_it() -> None:
    text = TEXT.replace("epbuild-lock 1", "epbuild-lock 2")
    assert problem_of(text).message == "the lock is of a format that this epbuild does not know"
    with pytest.raises(PlanError):
        salvage(text, "epbuild.lock")


# -- Merging -----------------------------------------------------------------------------------------------------------


def with_numpy(lock: Lock, version: str) -> Lock:
    """The lock with another NumPy on Linux."""
    qnn = lock.toolchains["qnn"]
    platforms = {**qnn.platforms, "linux-x86_64": environment(package("numpy", version), ONNXRUNTIME)}
    return Lock(lock.recipe, {**lock.toolchains, "qnn": LockedToolchain(qnn.requires, platforms)}, lock.models, lock.catalog)


def merged(folder: Path, ours: str, base: str, theirs: str) -> tuple[int, str]:
    """What git makes of two changes: the number of conflicts, and the text."""
    paths = [folder / name for name in ("ours", "base", "theirs")]
    for path, text in zip(paths, (ours, base, theirs), strict=True):
        path.write_text(text, encoding="utf-8", newline="\n")
    done = subprocess.run(["git", "merge-file", "-p", *map(str, paths)], capture_output=True, check=False)
    return done.returncode, done.stdout.decode()


git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@git
def test_git_merges_a_new_toolchain_with_an_upgrade_of_another(tmp_path: Path) -> None:
    new = LockedToolchain(("onnxruntime",), {"linux-x86_64": environment(package("onnxruntime", "1.32.0"))})
    extended = Lock(LOCK.recipe, {**LOCK.toolchains, "cpu": new}, LOCK.models, LOCK.catalog)
    upgraded = with_numpy(LOCK, "2.5.5")
    conflicts, text = merged(tmp_path, render(extended), TEXT, render(upgraded))
    assert conflicts == 0
    assert text == render(Lock(LOCK.recipe, {**upgraded.toolchains, "cpu": new}, LOCK.models, LOCK.catalog))


@git
def test_a_conflict_is_told_as_one_and_what_both_sides_have_is_kept(tmp_path: Path) -> None:
    conflicts, text = merged(tmp_path, render(with_numpy(LOCK, "2.5.5")), TEXT, render(with_numpy(LOCK, "2.5.6")))
    assert conflicts == 1
    problem = problem_of(text)
    assert problem.message == "the lock has a merge conflict"
    assert problem.hint == "Run `epbuild lock`: it settles it, and keeps the versions that it can."
    found, told = salvage(text, "epbuild.lock")
    assert told == problem
    linux = found.toolchains["qnn"].platforms["linux-x86_64"]
    assert {(item.name, item.version) for item in linux.packages} == {("numpy", "2.5.5"), ("onnxruntime", "1.31.1")}
    assert found.toolchains["qnn"].platforms["windows-arm64"] == LOCK.toolchains["qnn"].platforms["windows-arm64"]
    assert (found.models, found.catalog) == (LOCK.models, LOCK.catalog)
