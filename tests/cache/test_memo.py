"""Memo: it returns the function's values, from the file or not, and ignores a file that it cannot trust."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct, msgpack

from epbuild.cache.memo import MAX_MEMO_BYTES, NO_MEMO, Memo, Program


class Length(Struct, frozen=True):
    text: str
    length: int


class Counted:
    """Function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, memo: Memo, text: str) -> Length:
        def compute() -> Length:
            self.calls += 1
            return Length(text, len(text))

        return memo.value("length", (text, Path("folder")), compute, Length)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "looks" / "memo")


def written(place: str, *texts: str) -> None:
    memo = Memo.read(place)
    for text in texts:
        Counted().of(memo, text)
    memo.write(place, is_whole=True)


def test_value_is_computed_once_for_equal_inputs(place: str) -> None:
    written(place, "one", "three")
    counted, memo = Counted(), Memo.read(place)
    assert [counted.of(memo, text) for text in ("one", "three")] == [Length("one", 3), Length("three", 5)]
    assert counted.calls == 0
    assert counted.of(memo, "other") == Length("other", 5)
    assert counted.calls == 1


def test_values_are_separate_for_each_function(place: str) -> None:
    written(place, "one")
    assert Memo.read(place).value("double", ("one", Path("folder")), lambda: 2, int) == 2


def test_full_run_drops_unused_values(place: str) -> None:
    written(place, "one", "two")
    written(place, "two")
    counted, memo = Counted(), Memo.read(place)
    counted.of(memo, "two")
    counted.of(memo, "one")
    assert counted.calls == 1


def test_partial_run_keeps_unused_values(place: str) -> None:
    written(place, "one")
    memo = Memo.read(place)
    Counted().of(memo, "two")
    memo.write(place, is_whole=False)
    counted, memo = Counted(), Memo.read(place)
    assert [counted.of(memo, text).length for text in ("one", "two")] == [3, 3]
    assert counted.calls == 0


def test_unchanged_memo_is_not_written(place: str) -> None:
    written(place, "one")
    os.utime(place, (1, 1))
    written(place, "one")
    assert Path(place).stat().st_mtime == 1


@pytest.mark.parametrize(
    "damage", ["gone", "truncated", "zeros", "nested", "another version", "too large", "pipe", "writable by others"]
)
def test_untrusted_memo_file_is_ignored(place: str, damage: str) -> None:
    written(place, "one")
    file = Path(place)
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(content[:-5])
    elif damage == "zeros":
        file.write_bytes(bytes(len(content)))
    elif damage == "nested":
        file.write_bytes(content[:-5] + b"\x91" * 100_000)
    elif damage == "another version":
        _, entries = msgpack.decode(content)
        file.write_bytes(msgpack.encode(("another", entries)))
    elif damage == "too large":
        os.truncate(file, MAX_MEMO_BYTES + 1)
    elif os.name == "nt":
        pytest.skip("POSIX permissions, and pipes with names")
    elif damage == "pipe":
        file.unlink()
        os.mkfifo(file, 0o600)
    else:
        file.chmod(0o620)
    counted = Counted()
    assert counted.of(Memo.read(place), "one") == Length("one", 3)
    assert counted.calls == 1


def test_damaged_value_is_computed_again(place: str) -> None:
    written(place, "one")
    version, entries = msgpack.decode(Path(place).read_bytes())
    Path(place).write_bytes(msgpack.encode((version, {key: [1, 2] for key in entries})))
    counted = Counted()
    assert counted.of(Memo.read(place), "one") == Length("one", 3)
    assert counted.calls == 1


@pytest.mark.parametrize("text", ["a name of \udcff bytes"])
def test_unencodable_inputs_and_values_are_computed_each_time(place: str, text: str) -> None:
    counted, memo = Counted(), Memo.read(place)
    assert [counted.of(memo, text).text for _ in range(2)] == [text, text]
    assert counted.calls == 2
    assert memo.value("large", 1, lambda: 1 << 70, int) == 1 << 70
    memo.write(place, is_whole=True)
    assert not Path(place).exists()


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_values_of_former_code_are_discarded(place: str, tmp_path: Path, change: str) -> None:
    own = tmp_path / "module.py"
    own.write_bytes(b"former code")
    running = Program(lambda: [str(own)])
    memo = Memo.read(place, running)
    Counted().of(memo, "one")
    if change == "edited":
        own.write_bytes(b"newer code")
    else:
        own.unlink()
    memo.write(place, is_whole=True)
    assert not Path(place).exists()
    again = Memo.read(place, running)
    Counted().of(again, "one")
    again.write(place, is_whole=True)
    assert not Path(place).exists()


def test_values_of_uncertain_inputs_are_not_stored(place: str) -> None:
    memo = Memo.read(place)
    assert [memo.value("number", None, partial(int, number), int) for number in (1, 2)] == [1, 2]


def test_disabled_memo_computes_every_value() -> None:
    counted = Counted()
    counted.of(NO_MEMO, "one")
    counted.of(NO_MEMO, "one")
    assert counted.calls == 2
