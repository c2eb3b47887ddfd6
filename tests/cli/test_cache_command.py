"""`epbuild cache`: its output for people and programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from epbuild.remote.keys import SigningKey
from tests.cli.small_stores import CONTEXT, KEY, STEP, fill
from tests.support.commands import epbuild

pytestmark = pytest.mark.slow  # each test starts the real command


def test_the_store_is_shown_as_a_table_and_as_json(tmp_path: Path) -> None:
    fill(tmp_path)
    toolchains = str(tmp_path / "toolchains")
    done = epbuild(tmp_path, "cache", EPBUILD_TOOLCHAIN_DIR=toolchains)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == str(tmp_path / ".cache")
    assert [line.split() for line in lines[1:4]] == [
        ["count", "size"],
        ["records", "1", *lines[2].split()[2:]],
        ["blobs", "2", "27", "bytes"],
    ]
    assert ["toolchains", "-"] in [line.split() for line in lines]
    assert lines[-2:] == ["Used by 1 workspace:", f"  {tmp_path}"]
    assert max(map(len, lines[1:-2])) <= max(80, len(toolchains))
    document = json.loads(epbuild(tmp_path, "cache", "--json", EPBUILD_TOOLCHAIN_DIR=toolchains).stdout)
    assert (document["format"], document["place"]) == (1, str(tmp_path / ".cache"))
    assert document["things"]["blobs"] == {"count": 2, "bytes": 27}
    assert sorted(document["things"]) == ["blobs", "damaged", "partial_downloads", "records", "remote_models"]
    assert document["toolchains"] == {"place": toolchains, "count": 0, "bytes": 0}
    assert document["workspaces"] == [str(tmp_path / ".epbuild")]


def test_verifying_an_undamaged_store_prints_one_line(tmp_path: Path) -> None:
    fill(tmp_path)
    done = epbuild(tmp_path, "cache", "verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 blobs (27 bytes) and 1 record: no damage.\n"


def test_a_damaged_blob_is_reported_with_its_step_and_exit_code_1(tmp_path: Path) -> None:
    blob = fill(tmp_path)
    blob.chmod(0o644)
    blob.write_bytes(b"?" * len(CONTEXT))
    done = epbuild(tmp_path, "cache", "verify")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        f"damaged blob {blob.name}\n"
        "  the content does not match the digest\n"
        f"  relu_ctx.onnx of {STEP} in {tmp_path}\n"
        "2 blobs (27 bytes) and 1 record: 1 damaged, quarantined; the next build that needs them recreates them.\n"
    )


def test_damage_is_reported_as_json(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".cache" / "actions" / KEY[:2] / f"{KEY}.json").write_bytes(b"{")
    done = epbuild(tmp_path, "cache", "verify", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout) == {
        "format": 1,
        "place": str(tmp_path / ".cache"),
        "blobs": 2,
        "records": 1,
        "bytes": 27,
        "damaged": [{"kind": "record", "name": KEY, "why": "the record is incomplete", "part_of": [f"{STEP} in {tmp_path}"]}],
    }
    assert epbuild(tmp_path, "cache", "verify").returncode == 0


def test_an_unused_store_is_empty_and_undamaged(tmp_path: Path) -> None:
    assert "Used by 0 workspaces." in epbuild(tmp_path, "cache").stdout
    assert epbuild(tmp_path, "cache", "verify").stdout == "0 blobs (0 bytes) and 0 records: no damage.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_key_pair_is_printed_for_the_environment_and_the_recipe(tmp_path: Path) -> None:
    done = epbuild(tmp_path, "cache", "key")
    assert (done.returncode, done.stderr) == (0, "")
    secret, trust = done.stdout.splitlines()
    name, _, text = secret.partition("=")
    assert name == "EPBUILD_SIGNING_KEY"
    assert yaml.safe_load(trust) == {"trust": [SigningKey.parse(text).public]}
    document = json.loads(epbuild(tmp_path, "cache", "key", "--json").stdout)
    assert document["format"] == 1
    assert SigningKey.parse(document["signing_key"]).public == document["trust"]
    assert document["signing_key"] != text
