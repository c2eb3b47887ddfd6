"""Requests: the sent action equals the planned action, and names nothing of the client's machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import ValidationError
from msgspec.structs import replace

from epbuild.actions.types import get_action_type, is_stored
from epbuild.cache.blobs import BlobStore
from epbuild.cluster.request import (
    ActionRequest,
    LocalOnlyError,
    build_request,
    list_files,
    parse_action,
    parse_toolchain,
    read_request,
)
from epbuild.core.digest import Blob, hash_file
from epbuild.plan.steps import Action
from epbuild.session.planning import read_plan
from epbuild.session.request import Request
from epbuild.toolchain.lock import LockedEnvironment, Package
from tests.support.projects import RECIPES

KEY = "0" * 64


def actions(recipe: Path) -> list[Action]:
    """Return the actions of a recipe whose files exist."""
    _, plan = read_plan(Request(recipe))
    known = (action for action in plan.actions.values() if is_stored(action))
    return [action for action in known if not get_action_type(action).unknown_inputs(action) and not action.needs]


@pytest.mark.parametrize("recipe", ["quickstart", "llm", "shipping", "two-toolchains"])
def test_request_has_an_equal_key_elsewhere_and_no_local_path(recipe: str, tmp_path: Path) -> None:
    check_requests(RECIPES / f"{recipe}.yaml", tmp_path)


def test_request_for_a_made_model_has_an_equal_key_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "export.py").touch()
    make = '{run: [python, export.py, "${out}"], files: [export.py], toolchain: tools}'
    (tmp_path / "epbuild.yaml").write_text(
        f"epbuild: 1\nname: made\ntoolchains: {{tools: {{packages: [onnx]}}}}\nmodels: {{llm: {{make: {make}}}}}\n"
        "targets: {npu: {ep: qnn, soc: SM8750}}\n",
        encoding="utf-8",
    )
    check_requests(tmp_path / "epbuild.yaml", tmp_path / "store")


def check_requests(recipe: Path, place: Path) -> None:
    store = BlobStore(place)
    sent = actions(recipe)
    assert sent
    for action in sent:
        digests = {file: hash_file(file) for file in list_files(action)}
        text = build_request(action, KEY, digests).text
        assert str(recipe.parent) not in text
        assert str(recipe.parents[1]) not in text
        received = parse_action(read_request(text), store)
        there = {store.place(digest): digest for digest in digests.values()}
        assert set(received.files) <= there.keys()
        documents = [
            get_action_type(one).key_document(one, known, {"any": "toolchain"})
            for one, known in ((action, digests), (received, there))
        ]
        assert documents[0] == documents[1]
        assert (received.id, received.steps, received.needs) == (action.id, action.steps, action.needs)


def test_every_input_of_an_action_is_listed_with_its_size(tmp_path: Path) -> None:
    [first, *_] = actions(RECIPES / "quickstart.yaml")
    digests = {file: hash_file(file) for file in list_files(first)}
    more = Blob("1" * 64, 7)
    request = build_request(first, KEY, digests, [more])
    sizes = {Blob(digest, file.stat().st_size) for file, digest in digests.items()}
    assert set(request.files) == {*sizes, more}


def test_lock_is_part_of_the_request() -> None:
    [first, *_] = actions(RECIPES / "quickstart.yaml")
    digests = {file: hash_file(file) for file in list_files(first)}
    locked = LockedEnvironment("cpython-3.11", (Package("numpy", "2.0", ("a" * 64, "b" * 64)),))
    request = replace(build_request(first, KEY, digests, environment=locked), memory=1 << 30, seconds=2.5)
    assert read_request(request.text) == request


def test_local_toolchain_cannot_be_requested_elsewhere(tmp_path: Path) -> None:
    recipe = tmp_path / "epbuild.yaml"
    text = (RECIPES / "quickstart.yaml").read_text(encoding="utf-8")
    recipe.write_text(f"{text}toolchains: {{qnn: {{interpreter: /usr/bin/python3}}}}\n", encoding="utf-8")
    (tmp_path / "models").symlink_to(RECIPES / "models")
    [first, *_] = actions(recipe)
    with pytest.raises(LocalOnlyError, match="environment on this machine"):
        build_request(first, KEY, dict.fromkeys(list_files(first), "0" * 64))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"kind": "delete"},
        {"key": 1},
        {"files": [{"digest": "x"}]},
        {"action": {"target": "../../etc/passwd"}},
        {"action": []},
        {"action": "\ud800"},
    ],
    ids=str,
)
def test_invalid_request_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    [first, *_] = actions(RECIPES / "quickstart.yaml")
    document = json.loads(build_request(first, KEY, {file: hash_file(file) for file in list_files(first)}).text)
    with pytest.raises(ValidationError):
        parse_action(read_request(json.dumps({**document, **change})), BlobStore(tmp_path))


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "0" * 63, "", "\ud800", 1, None])
def test_file_is_named_only_by_its_digest(path: object, tmp_path: Path) -> None:
    [first, *_] = actions(RECIPES / "quickstart.yaml")
    document = json.loads(build_request(first, KEY, {file: hash_file(file) for file in list_files(first)}).text)
    document["action"]["members"][0]["compiled_from"]["graph"] = path
    with pytest.raises(ValidationError):
        parse_action(read_request(json.dumps(document)), BlobStore(tmp_path))


def test_lone_surrogate_in_place_of_another_type_is_refused(tmp_path: Path) -> None:
    [first, *_] = actions(RECIPES / "quickstart.yaml")
    document = json.loads(build_request(first, KEY, {file: hash_file(file) for file in list_files(first)}).text)
    document["action"]["members"] = "\ud800"
    with pytest.raises(ValidationError):
        parse_action(read_request(json.dumps(document)), BlobStore(tmp_path))


@pytest.mark.parametrize(
    "entries", [None, "QNNExecutionProvider", [["QNNExecutionProvider", "0"]], [["../x", "0"]], [{}]], ids=str
)
def test_toolchain_with_different_eps_is_refused(entries: object, tmp_path: Path) -> None:
    action = {"toolchain": {"name": "t", "where": ["epbuild.yaml", 1, 1]}, "entries": [], "records": []}
    request = ActionRequest(KEY, "t", "toolchain", action, ())
    assert parse_toolchain(request, BlobStore(tmp_path)).toolchain.name == "t"
    with pytest.raises(ValidationError):
        parse_toolchain(replace(request, action={**action, "entries": entries}), BlobStore(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"key": "x"}'])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        read_request(text)
