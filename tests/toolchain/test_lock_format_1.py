"""A lock that an epbuild wrote before locks were TOML is read with all that it pins."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from any_locks import locks
from hypothesis import given
from small_locks import LOCK

from epbuild.core.errors import PlanError, Position
from epbuild.toolchain.lock_facts import Lock
from epbuild.toolchain.lock_file import read_lock, render, salvage


def format_1(lock: Lock) -> str:
    """A lock as it was written then."""

    def lines() -> Iterator[str]:
        yield f"recipe {lock.recipe}"
        for subject, revision in lock.catalog.items():
            yield f"catalog {subject} {revision}"
        for name, model in lock.models.items():
            yield f"model {name} sha256:{model.graph}"
            for location, digest in model.data.items():
                yield f"model {name} sha256:{digest} {quote(location, safe=' /')}"
        for name, toolchain in lock.toolchains.items():
            for requirement in toolchain.requires:
                yield f"toolchain {name} requires {requirement}"
            for platform, environment in toolchain.platforms.items():
                place = f"toolchain {name} {platform}"
                yield f"{place} ({environment.python})"
                for package in environment.packages:
                    for origin in [f"sha256:{digest}" for digest in package.files] or ["installed"]:
                        yield f"{place} {package.requirement} {origin}"
        for release in lock.wheels:
            for digest in release.files:
                yield f"wheel {release.requirement} sha256:{digest}"

    return "\n".join(["# What this recipe's toolchains are.", "epbuild-lock 1", *sorted(lines())]) + "\n"


OLD = format_1(LOCK)


@pytest.mark.slow
@given(lock=locks)
def test_nothing_is_lost(lock: Lock) -> None:
    assert read_lock(format_1(lock), "epbuild.lock") == lock


def test_line_ends_of_windows_and_another_order_change_nothing() -> None:
    comment, head, *lines = OLD.splitlines()
    assert read_lock("\r\n".join([comment, head, *reversed(lines), ""]), "epbuild.lock") == LOCK


def test_what_is_wrong_is_told_with_its_line() -> None:
    line = next(number for number, line in enumerate(OLD.splitlines(), start=1) if " numpy==" in line)
    for text, number, message in (
        (f"{OLD}surprise\n", len(OLD.splitlines()) + 1, "this line is no fact of a lock"),
        (f"{OLD}recipe other\n", len(OLD.splitlines()) + 1, "the lock contradicts line"),
        (
            f"{OLD}toolchain qnn linux-x86_64 numpy==2.5.5 sha256:{'a' * 64}\n",
            len(OLD.splitlines()) + 1,
            f"the lock contradicts line {line}",
        ),
    ):
        with pytest.raises(PlanError) as caught:
            read_lock(text, "epbuild.lock")
        (problem,) = caught.value.problems
        assert (problem.code, problem.where) == ("EPB242", Position("epbuild.lock", number, 1))
        assert problem.message.startswith(message)


def test_a_conflict_of_an_old_lock_with_a_new_one_is_settled_with_what_both_have() -> None:
    new = "\n".join(line for line in render(LOCK).splitlines() if "pyreadline3" not in line)
    text = f"<<<<<<< ours\n{new}\n=======\n{OLD}>>>>>>> theirs\n"
    lock, problem = salvage(text, "epbuild.lock")
    assert lock == LOCK
    assert problem is not None
    assert problem.message == "the lock has a merge conflict"


def test_a_line_of_the_old_form_is_none_of_a_new_lock() -> None:
    _, problem = salvage(f"{render(LOCK)}toolchain ryzen requires numpy\n", "epbuild.lock")
    assert problem is not None
    assert problem.message == "this line is no fact of a lock"
