"""`epbuild gc`: deleted blobs, kept blobs and the reasons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.small_stores import KEY, fill, let_time_pass
from tests.support.commands import epbuild

pytestmark = pytest.mark.slow  # each test starts the real command


def rows(text: str) -> dict[str, list[str]]:
    """Return the table's cells by the name of their row, without units."""
    lines = text.split("\n\n", maxsplit=1)[0].splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["removed", "needed", "recently", "used"]
    return {line[:20].strip(): line[20:].split() for line in lines[1:]}


def test_blobs_of_a_workspace_are_kept_and_reported_as_needed(tmp_path: Path) -> None:
    blob = fill(tmp_path)
    let_time_pass(tmp_path, 100)
    done = epbuild(tmp_path, "gc", "--max-age", "0s", "--max-size", "1B")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(done.stdout)["blobs"] == ["-", "2", "27", "bytes", "-"]
    assert "Nothing to remove." in done.stdout
    assert "This exceeds 1 byte: everything that remains is needed or was used within the last hour." in done.stdout
    assert f"Needed by the last builds of 1 workspace:\n  {tmp_path}\n" in done.stdout
    assert blob.exists()


def test_unneeded_blobs_are_deleted_after_a_month_except_in_a_dry_run(tmp_path: Path) -> None:
    blob = fill(tmp_path)
    (tmp_path / ".epbuild").rename(tmp_path / "gone")
    let_time_pass(tmp_path, 29)
    assert rows(epbuild(tmp_path, "gc").stdout)["blobs"] == ["-", "-", "2", "27", "bytes"]
    let_time_pass(tmp_path, 31)
    document = json.loads(epbuild(tmp_path, "gc", "--dry-run", "--json").stdout)
    assert blob.exists()
    assert (document["format"], document["dry_run"], document["max_age"], document["max_size"]) == (1, True, 30 * 86400, None)
    assert [(item["kind"], item["reason"]) for item in document["removed"]] == [
        ("record", "unused"),
        ("blob", "unused"),
        ("blob", "unused"),
    ]
    assert document["removed"][0]["name"] == KEY
    assert document["bytes_left"] == 0
    assert document["kept"]["needed"]["blobs"] == {"count": 0, "bytes": 0}
    told = epbuild(tmp_path, "gc", "--dry-run").stdout
    done = epbuild(tmp_path, "gc").stdout
    assert rows(done)["blobs"] == ["2", "27", "bytes", "-", "-"]
    assert (
        told.replace("to remove", "  removed")
        .replace("Would remove", "Removed")
        .replace("would be", "are")
        .replace("would remain", "remain")
        == done
    )
    assert "3 unused for 30 days" in done
    assert not blob.exists()


def test_a_missing_workspace_is_reported_and_forgotten(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".epbuild").rename(tmp_path / "gone")
    assert f"Missing workspaces, would be forgotten:\n  {tmp_path}\n" in epbuild(tmp_path, "gc", "-n").stdout
    assert f"Missing workspaces, now forgotten:\n  {tmp_path}\n" in epbuild(tmp_path, "gc").stdout
    assert "Nothing is needed: no known workspace uses this store." in epbuild(tmp_path, "gc").stdout


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--max-size", "20", "invalid size '20'"),
        ("--max-age", "soon", "invalid time 'soon'"),
        ("--max-age", "-1d", "invalid time '-1d'"),
    ],
)
def test_a_malformed_limit_is_refused_with_the_expected_form(tmp_path: Path, option: str, value: str, words: str) -> None:
    done = epbuild(tmp_path, "gc", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Write a number and one of the units" in done.stderr
