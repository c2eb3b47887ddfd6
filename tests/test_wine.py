"""Tests with Windows Python under wine: `tools/wine` finds the rooms, Debian's mirror and what a machine lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.wine.__main__ import count_tests, find_room, list_rooms, main
from tools.wine.environment import ROOT, MissingError, Wine, find_mirror

DEB822 = "Types: deb\n# a comment\nURIs: http://mirror.test/debian-security\nSuites: x\n\nTypes: deb\nURIs: http://mirror.test/debian/\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "sources.list",
            "# deb http://other.test/debian bookworm\ndeb [signed-by=/k.gpg] http://mirror.test/debian bookworm main\n",
        ),
        ("sources.list.d/debian.sources", DEB822),
    ],
)
def test_debian_comes_from_the_mirror_that_apt_uses(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert find_mirror(tmp_path) == "http://mirror.test/debian"


def test_a_machine_without_apt_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="no mirror of Debian"):
        find_mirror(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="apt-get is missing"):
        Wine(tmp_path / "wine").setup()
    assert not (tmp_path / "wine").exists()


@pytest.mark.parametrize(("options", "code"), [([], 2), (["--if-possible"], 0)])
def test_the_gate_says_in_one_line_that_wine_cannot_run(
    options: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["wine", "--folder", str(tmp_path / "wine"), *options, "gate"])
    assert main() == code
    skipped = "tests on Windows are skipped: " if options else ""
    assert capsys.readouterr().err == f"wine: {skipped}apt-get is missing: use Debian, or another Linux with apt and util-linux\n"


def test_each_test_folder_is_a_room_and_each_path_exists() -> None:
    rooms = {room.name: room for room in list_rooms()}
    assert {"cache", "cli", "files", "gate", "builds", "kills"} < set(rooms)
    assert all((ROOT / path.partition("::")[0]).exists() for room in rooms.values() for path in room.paths)
    assert find_room("cache") == rooms["cache"]
    assert find_room("tests/cache/test_memo.py").paths == ("tests/cache/test_memo.py",)


def test_skipped_tests_are_counted_by_class() -> None:
    output = (
        "SKIPPED [2] a.py:1: wine lacks links\nSKIPPED [1] b.py:2: needs signals\n== 1 failed, 3 passed, 3 skipped in 2 s ==\n"
    )
    assert count_tests(output) == "1 failed, 3 passed, 2 skipped (wine lacks), 1 skipped (POSIX only)"
