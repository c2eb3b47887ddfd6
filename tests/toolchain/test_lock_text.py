"""Text of a lock: readable, mergeable by git, with line numbers in messages about invalid contents."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.core.errors import PlanError, Position, Problem
from epbuild.toolchain.lock import Lock
from epbuild.toolchain.lock_file import read_lock, render, salvage
from tests.support.locks import LOCK, NUMPY, digest
from tests.toolchain.lock_strategies import locks

TEXT = render(LOCK)
HEAD = 2  # the comment and the format


def problem_of(text: str) -> Problem:
    with pytest.raises(PlanError) as caught:
        read_lock(text, "epbuild.lock")
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_code) == ("EPB242", 2)
    return problem


# -- Round trips -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(lock=locks)
def test_lock_survives_a_round_trip(lock: Lock) -> None:
    assert read_lock(render(lock), "epbuild.lock") == lock


@pytest.mark.slow
@given(lock=locks)
def test_lock_has_one_sorted_fact_per_line(lock: Lock) -> None:
    lines = render(lock).removesuffix("\n").split("\n")[HEAD:]
    assert lines == sorted(set(lines))


@pytest.mark.slow
@given(lock=locks, seed=st.integers())
def test_lock_text_does_not_depend_on_the_order_of_facts(lock: Lock, seed: int) -> None:
    def shuffled(values: dict[str, Any]) -> dict[str, Any]:
        return dict(random.Random(seed).sample(sorted(values.items(), key=lambda item: item[0]), len(values)))

    other = Lock(
        lock.recipe, shuffled(dict(lock.toolchains)), shuffled(dict(lock.models)), shuffled(dict(lock.catalog)), lock.wheels
    )
    assert render(other) == render(lock)


@pytest.mark.slow
@given(lock=locks)
def test_lock_is_complete_for_any_toml_parser(lock: Lock) -> None:
    document = tomllib.loads(render(lock))
    assert document["recipe"] == lock.recipe
    assert document.get("toolchain", {}).keys() == {name for name, it in lock.toolchains.items() if it.requires or it.platforms}


def of(file: str) -> str:
    return f"sha256:{digest(file)}"


def test_lock_lines_are_readable() -> None:
    numpy = '", "'.join(f"sha256:{found}" for found in NUMPY.files)
    wheels = '", "'.join(sorted(map(of, ("a wheel", "another wheel"))))
    assert TEXT.splitlines()[1:] == [
        "epbuild-lock = 2",
        f'catalog."QNNExecutionProvider/onnxruntime-qnn" = "1 {of("entry")}"',
        'catalog.session-keys = "2"',
        f'model.decode.data."decode.bin" = "{of("data")}"',
        f'model.decode.data."with space/50%.bin" = "{of("more data")}"',
        f'model.decode.graph = "{of("graph")}"',
        'recipe = "tiny"',
        'toolchain.qnn.linux-x86_64.Python = "cpython-3.11"',
        f'toolchain.qnn.linux-x86_64.numpy = ["2.4.6", "{numpy}"]',
        f'toolchain.qnn.linux-x86_64.onnxruntime = ["1.31.1", "{of("onnxruntime 1.31.1")}"]',
        'toolchain.qnn.requires."onnxruntime==1.31.1" = true',
        'toolchain.qnn.windows-arm64.Python = "cpython-3.11"',
        f'toolchain.qnn.windows-arm64.numpy = ["2.4.6", "{numpy}"]',
        f'toolchain.qnn.windows-arm64.onnxruntime = ["1.31.1", "{of("onnxruntime 1.31.1")}"]',
        f'toolchain.qnn.windows-arm64.pyreadline3 = ["3.5.6", "{of("pyreadline3 3.5.6")}"]',
        'toolchain.ryzen.windows-x86_64.Python = "cpython-3.10"',
        'toolchain.ryzen.windows-x86_64.onnxruntime-vitisai = ["1.22.1", "installed"]',
        f'wheel.my-models."1.0" = ["{wheels}"]',
        f'wheel.my-models."1.1" = ["{of("my-models 1.1")}"]',
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.removesuffix("\n"),
        lambda text: "\n".join([*text.splitlines()[:HEAD], *reversed(text.splitlines()[HEAD:])]),
        lambda text: text.replace('recipe = "tiny"', '# a remark\n\nrecipe = "tiny"  # another'),
    ],
    ids=["CRLF line ends", "no final line end", "another order", "comments"],
)
def test_harmless_edits_of_lock_lines_change_nothing(change: object) -> None:
    assert read_lock(change(TEXT), "epbuild.lock") == LOCK  # type: ignore[operator]


def test_lock_without_wheels_is_read() -> None:
    older = "\n".join(line for line in TEXT.splitlines() if not line.startswith("wheel."))
    assert read_lock(older, "epbuild.lock") == replace(LOCK, wheels=())


# -- Bad input ---------------------------------------------------------------------------------------------------------

AB = "ab" * 32
NO_FACT = "this line is not a valid lock entry"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('toolchain.qnn.linux-x86_64.scipy = "1"', NO_FACT),
        ('toolchain.qnn.linux-x86_64.scipy = ["1"]', NO_FACT),
        (f'toolchain.qnn.linux-x86_64.scipy = ["1", "sha256:{"A" * 64}"]', NO_FACT),
        (f'toolchain.qnn.linux-x86_64.scipy = ["1", "{AB}"]', NO_FACT),
        (f'toolchain.qnn.linux-x86_64.scipy = ["1", "sha256:{AB}", "installed"]', NO_FACT),
        (f'toolchain.qnn.linux-x86_64.scipy = [1, "sha256:{AB}"]', NO_FACT),
        (f'toolchain.qnn.linux-x86_64.scipy = ["@ https://host.example/scipy.whl", "sha256:{AB}"]', NO_FACT),
        (f'toolchain.qnn.linux-x86_64.scipy = ["1", "sha256:{AB}"', NO_FACT),
        ('toolchain.qnn.requires."scipy" = false', NO_FACT),
        ('toolchain.qnn.requires." scipy" = true', NO_FACT),
        ("toolchain.qnn = {}", NO_FACT),
        ("[toolchain.qnn.linux-x86_64]", NO_FACT),
        ('model = {a.graph = "", b.graph = ""}', NO_FACT),
        (f'model."../decode".graph = "sha256:{AB}"', NO_FACT),
        ('model.other.graph = "md5:abcd"', NO_FACT),
        ('wheel.my-models."1.2" = []', NO_FACT),
        ('wheel.my-models."1.2" = ["installed"]', NO_FACT),
        (f'wheel.My_Models."1.0" = ["sha256:{AB}"]', NO_FACT),
        ("catalog.other = 3", NO_FACT),
        ('Recipe = "tiny"', NO_FACT),
        ("recipe tiny", NO_FACT),
        pytest.param(f"x = {'[' * 10000}", NO_FACT, id="deeper than Python reads"),
        pytest.param(f"x = {'9' * 10000}", NO_FACT, id="more digits than Python reads"),
        ('recipe = "tiny"', "this line repeats line 8"),
        ('recipe = "other"', "this line contradicts line 8"),
        ("epbuild-lock = 1", "this line contradicts line 2"),
        ('catalog.session-keys = "3"', "this line contradicts line 4"),
        (f'model.decode.graph = "sha256:{AB}"', "this line contradicts line 7"),
        (f'model.decode.data."decode.bin" = "sha256:{AB}"', "this line contradicts line 5"),
        (
            f'model.other.data."x.bin" = "sha256:{AB}"',
            "the lock has the external data of the model 'other' but not its graph",
        ),
        ('toolchain.qnn.linux-x86_64.Python = "cpython-3.12"', "this line contradicts line 9"),
        (f'toolchain.qnn.linux-x86_64.numpy = ["2.5.5", "sha256:{AB}"]', "this line contradicts line 10"),
        (
            f'toolchain.qnn.macos-arm64.numpy = ["2.4.6", "sha256:{AB}"]',
            "the lock does not name the Python of the toolchain 'qnn' on macos-arm64",
        ),
        (
            'toolchain.qnn.macos-arm64.Python = "cpython-3.11"',
            "the lock has no packages of the toolchain 'qnn' on macos-arm64",
        ),
        (
            'toolchain.qnn.linux-x86_64.scipy = ["1.0", "installed"]',
            "the lock lists the files of only some packages of the toolchain 'qnn' on linux-x86_64",
        ),
    ],
)
def test_unexpected_line_is_reported_with_its_number(line: str, message: str) -> None:
    text = f"{TEXT}{line}\n"
    problem = problem_of(text)
    assert (problem.message, problem.hint) == (message, "Run `epbuild lock` to write a new lock.")
    assert problem.where == Position("epbuild.lock", len(text.splitlines()), 1)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the lock is empty"),
        ("# nothing\n", 1, "the lock is empty"),
        (TEXT.replace('recipe = "tiny"\n', ""), len(TEXT.splitlines()) - 1, "the lock does not name its recipe"),
    ],
)
def test_invalid_lock_is_reported(text: str, line: int, message: str) -> None:
    problem = problem_of(text)
    assert (problem.message, problem.where) == (message, Position("epbuild.lock", line, 1))


@pytest.mark.parametrize("text", ['{"nodes": {}}\n', 'version = 1\n\n[[package]]\nname = "a"\n'], ids=["JSON", "TOML"])
def test_foreign_file_is_reported_and_not_salvaged(text: str) -> None:
    problem = problem_of(text)
    assert problem.message == "this is not an epbuild lock: its first line is not 'epbuild-lock = 2'"
    assert problem.where == Position("epbuild.lock", 1, 1)
    with pytest.raises(PlanError):
        salvage(text, "epbuild.lock")


def test_lock_of_a_newer_epbuild_is_refused_and_not_salvaged() -> None:
    text = TEXT.replace("epbuild-lock = 2", "epbuild-lock = 3")
    assert problem_of(text).message == "the lock has a format that this epbuild does not support"
    with pytest.raises(PlanError):
        salvage(text, "epbuild.lock")
