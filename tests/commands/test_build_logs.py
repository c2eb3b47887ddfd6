"""`epbuild log`: the EP's output after a failure, and for a result of another machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.cache.workspace import Workspace, get_log_path
from epbuild.commands.log import list_logged_steps, read_log, read_log_end
from epbuild.core.errors import BuildError
from epbuild.plan.steps import Plan
from epbuild.session.planning import read_plan
from tests.support.fake_builds import CLASSIFIER, COMPILES, SHARE, Workshop

names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?", fullmatch=True)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    workshop.build()
    return workshop


def opened_plan(workshop: Workshop) -> tuple[Plan, Workspace]:
    return read_plan(workshop.request)[1], Workspace.open(workshop.folder / ".epbuild")


MAIN = Path("epbuild.yaml")


def test_the_end_of_a_log_is_short_and_has_no_control_characters(tmp_path: Path) -> None:
    log = get_log_path(tmp_path, CLASSIFIER)
    log.parent.mkdir()
    log.write_text("".join(f"\x1b[0;93mline {line}\x1b[m\x07\n" for line in range(10_000)), encoding="utf-8")
    text = read_log_end(tmp_path, CLASSIFIER, MAIN.name)
    assert text is not None
    assert text.splitlines() == [f"line {line}\\x07" for line in range(9_900, 10_000)]
    log.write_text("x" * 10**6, encoding="utf-8")
    assert read_log_end(tmp_path, CLASSIFIER, MAIN.name) is None


def test_a_link_is_no_log(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    log = get_log_path(tmp_path, CLASSIFIER)
    log.parent.mkdir()
    try:
        log.symlink_to(secret)
    except OSError:
        pytest.skip("this user may not make symbolic links, as is usual on Windows")
    assert read_log_end(tmp_path, CLASSIFIER, MAIN.name) is None


@pytest.mark.parametrize(("step", "text"), [(CLASSIFIER, "compiled classifier\n"), (COMPILES[1], "compiled prefill\n")])
def test_step_log_is_the_log_of_the_process_that_ran_the_step(built: Workshop, step: str, text: str) -> None:
    plan, workspace = opened_plan(built)
    with workspace:
        assert "".join(read_log(plan, step, workspace, MAIN)) == text


def test_restored_result_keeps_the_log_of_its_compile(built: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = built.checkout(tmp_path / "other", monkeypatch)
    other.build()
    plan, workspace = opened_plan(other)
    with workspace:
        assert list_logged_steps(plan, workspace, MAIN) == [*COMPILES, SHARE, CLASSIFIER]
        assert list(read_log(plan, CLASSIFIER, workspace, MAIN)) == ["compiled classifier\n"]


def test_step_that_was_never_compiled_has_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, workspace = opened_plan(Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch))
    with workspace:
        assert list_logged_steps(plan, workspace, MAIN) == []
        with pytest.raises(BuildError, match="EPB430") as refused:
            read_log(plan, SHARE, workspace, MAIN)
    assert refused.value.problems[0].hint == "List the steps that have a log with `epbuild log`."


@pytest.mark.parametrize("before", [0, *range((1 << 16) - 12, 1 << 16)])
def test_log_with_invalid_text_is_readable(built: Workshop, before: int) -> None:
    """Check this also for a text that continues in the next chunk."""
    log = get_log_path(built.folder / ".epbuild", CLASSIFIER)
    log.write_bytes(b"x" * before + "größe".encode() + b"\xff" + "→".encode())
    plan, workspace = opened_plan(built)
    with workspace:
        assert "".join(read_log(plan, CLASSIFIER, workspace, MAIN)) == "x" * before + "größe\ufffd→"


@given(groups=st.tuples(names, names), targets=st.tuples(names, names))
def test_log_files_of_different_groups_differ(groups: tuple[str, str], targets: tuple[str, str]) -> None:
    one, other = (f"share:{group}/{target}" for group, target in zip(groups, targets, strict=True))
    assert (get_log_path(Path(), one) == get_log_path(Path(), other)) is (one == other)


def test_dotted_group_names_get_separate_logs() -> None:
    assert get_log_path(Path(), "share:llm.v2/npu") != get_log_path(Path(), "share:llm/v2.npu")


def test_log_path_stays_inside_the_workspace(tmp_path: Path) -> None:
    assert get_log_path(tmp_path, SHARE).parent == tmp_path / "logs"
