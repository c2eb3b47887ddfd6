"""Action records in the store: each reads as it was written, or counts as missing."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epbuild.commands.cache import check_cache
from epbuild.commands.gc import list_blobs
from epbuild.plan.result import is_action_record, open_action_records
from tests.support.fake_builds import Workshop

SEED = 7
FLIPS = 24
ABSENT = object()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path / "project", tmp_path / "cache", monkeypatch)
    workshop.build()
    return workshop


def record_files(cache: Path) -> list[Path]:
    return sorted((cache / "actions").glob("??/*.json"))


def of(place: Path) -> dict[str, Any]:
    """Return the record in a file."""
    record: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))["record"]
    return record


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in a JSON document, except the root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (*at, name)
        yield from places(item, (*at, name))


def inner(value: Any, at: tuple[str | int, ...]) -> Any:
    for name in at:
        value = value[name]
    return value


def changed(record: dict[str, Any], at: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    new = copy.deepcopy(record)
    if value is ABSENT:
        del inner(new, at[:-1])[at[-1]]
    else:
        inner(new, at[:-1])[at[-1]] = value
    return new


def test_recorded_actions_have_the_expected_structure(built: Workshop) -> None:
    records = [of(place) for place in record_files(built.cache)]
    assert len(records) == 2
    assert all(is_action_record(record) for record in records)


@pytest.mark.parametrize("key", ["file", "binaries", "data"])
def test_record_with_dangling_references_is_invalid(built: Workshop, key: str) -> None:
    missing: dict[str, Any] = {"file": "lost.onnx", "binaries": {"lost.bin": "QNNExecutionProvider"}, "data": ["lost.data"]}
    record = changed(of(record_files(built.cache)[0]), ("result", "models", 0, key), missing[key])
    assert not is_action_record(record)
    assert list(list_blobs(record)) == []


def test_record_without_a_model_of_its_group_is_invalid(built: Workshop) -> None:
    [record] = [record for record in map(of, record_files(built.cache)) if len(record["document"]["members"]) == 2]
    assert is_action_record(record)
    assert not is_action_record(changed(record, ("result", "models", 1), ABSENT))


@pytest.mark.parametrize("name", ["diagnostics/lost.csv", "diagnostics/../../out.csv", "/diagnostics/out.csv", "out.csv"])
def test_record_with_a_dangling_or_unsafe_diagnostic_file_is_invalid(built: Workshop, name: str) -> None:
    record = of(record_files(built.cache)[0])
    record["result"]["diagnostics"] = [name]
    if "lost" not in name:
        record["result"]["artifacts"][name] = record["result"]["log"]
    assert not is_action_record(record)


@pytest.mark.gate
def test_builds_recover_from_one_flipped_bit_and_the_store_reports_damage(
    built: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = built.contents(), built.contents("classifier")
    choice = random.Random(SEED)
    for number in range(FLIPS):
        place = choice.choice(record_files(built.cache))
        flipped = bytearray(place.read_bytes())
        bit = choice.randrange(8 * len(flipped))
        flipped[bit // 8] ^= 1 << bit % 8
        place.write_bytes(flipped)
        if number % 4 == 0:
            damaged = check_cache(built.cache).damaged
            assert [damage.name for damage in damaged] == [place.stem], (place, bit)
        other = built.checkout(tmp_path / f"checkout-{number}", monkeypatch)
        assert other.build().exit_code == 0, (place, bit)
        assert (other.contents(), other.contents("classifier")) == before, (place, bit)
        assert len(other.compiled) == 1, (place, bit)
        assert check_cache(built.cache).damaged == [], (place, bit)
        shutil.rmtree(other.folder)


@pytest.mark.slow
def test_no_malformed_record_with_a_valid_digest_aborts_a_build(
    built: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = random.Random(SEED)
    [place] = [path for path in record_files(built.cache) if len(of(path)["document"]["members"]) == 2]
    record = of(place)
    for number, at in enumerate(choice.sample([("result",), *(("result", *at) for at in places(record["result"]))], FLIPS)):
        other_type = [[]] if not isinstance(inner(record, at), list) else "text"
        open_action_records(built.cache).put(place.stem, changed(record, at, choice.choice([None, True, other_type, ABSENT])))
        other = built.checkout(tmp_path / f"checkout-{number}", monkeypatch)
        assert other.build().exit_code == 0, at
        shutil.rmtree(other.folder)
