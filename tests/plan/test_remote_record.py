"""Remote records: a result comes back from a remote cache unchanged, and for its own key only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.plan.remote_record import COMPILE
from epbuild.remote.cache import Miss
from epbuild.remote.envelope import Reason, RemoteRecord, Unusable, seal, unseal
from epbuild.remote.keys import SigningKey
from tests.support.fake_builds import Workshop
from tests.support.remote_caches import DirectoryPlace, Maker

KEY = SigningKey.generate()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path / "project", tmp_path / "cache", monkeypatch)
    workshop.build()
    return workshop


def records(cache: Path) -> dict[str, dict[str, Any]]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["record"]
        for path in sorted((cache / "actions").glob("??/*.json"))
    }


def test_a_published_record_is_readable_on_another_machine(built: Workshop, tmp_path: Path) -> None:
    place, ours, theirs = DirectoryPlace(tmp_path / "remote"), Maker(tmp_path / "ours"), BlobStore(tmp_path / "theirs")
    writer = ours.remote(place, trust={KEY.public}, signer=KEY)
    made = records(built.cache)
    assert all(writer.publish(COMPILE, key, record, BlobStore(built.cache)) for key, record in made.items())
    reader = ours.remote(place, trust={KEY.public})
    for key, record in made.items():
        found = reader.look_up(COMPILE, key)
        assert isinstance(found, RemoteRecord)
        assert found.record == record
        for name, blob in found.files.items():
            reader.fetch(blob, theirs)
            assert theirs.has(blob.digest, record["result"]["artifacts"][name]["size"])
    assert reader.look_up(COMPILE, "0" * 64) == Miss()
    assert ours.warnings == []


def test_a_record_with_an_unknown_structure_is_not_used(built: Workshop) -> None:
    key, record = next(iter(records(built.cache).items()))
    data = seal(COMPILE, key, record, KEY)
    assert unseal(data, COMPILE, "0" * 64, {KEY.public}) == Unusable(Reason.OTHER_KEY)
    del record["result"]["measured"]
    with pytest.raises(ValueError, match="this release of epbuild does not support its structure"):
        seal(COMPILE, key, record, KEY)
