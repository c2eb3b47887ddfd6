"""Toolchain records: their keys, their validation, and agreement with the identity of the environment."""

from __future__ import annotations

import copy
import os
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.catalog.catalog import entry
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.identity import (
    build_record_documents,
    compute_record_key,
    find_recorded_toolchain,
    is_toolchain_record,
    make_records,
    open_toolchain_records,
)
from epbuild.toolchain.lock import LockedEnvironment, Package
from tests.support.fake_cpu import on_cpu

QNN, OPENVINO = entry("QNNExecutionProvider"), entry("OpenVINOExecutionProvider")
HERE = "linux-x86_64"
A, B, C, D = (letter * 64 for letter in "abcd")
LOCKED = LockedEnvironment(
    "cpython-3.11",
    (Package("numpy", "2.4.0", (C, D)), Package("onnxruntime", "1.31.1", (A,)), Package("onnxruntime-qnn", "2.7.0", (B,))),
)


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_platform", lambda: HERE)
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36", raising=False)


def environment(**packages: str) -> Environment:
    taken = Fingerprint(
        "cpython-3.11",
        HERE,
        {"numpy": "2.4", "onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0", **packages},
        {"onnxruntime/capi/ort.so": A, "onnxruntime_qnn/libQnnHtp.so": B, "my_ops/libops.so": C},
        {"onnxruntime/__init__.py": C, "onnxruntime_qnn/__init__.py": D},
    )
    return Environment("qnn", Path("python"), taken, Path("fingerprint.json"))


def documents(locked: LockedEnvironment = LOCKED, platform: str = HERE, *packages: str) -> dict[str, dict[str, Any]]:
    return build_record_documents(locked, platform, [QNN], packages)


def sound() -> dict[str, Any]:
    [record] = [dict(record) for _, record in make_records(environment(), [documents()["onnxruntime_qnn"]])]
    return record


def test_records_of_an_environment_add_up_to_its_identity() -> None:
    made, wanted = environment(), documents(LOCKED, HERE, "my_ops")
    records = {record["document"]["module"]: record for _, record in make_records(made, wanted.values())}
    assert records.keys() == {"onnxruntime", "onnxruntime_qnn", "my_ops"}
    known = find_recorded_toolchain(records)
    assert known is not None
    for entries, packages in (((), ()), ((QNN,), ()), ((QNN,), ("my_ops",)), ((), ("my_ops",))):
        assert known.identity(entries, packages) == made.identity(entries, packages)


def test_records_exclude_host_facts_that_are_read_from_this_machine() -> None:
    wanted = build_record_documents(LOCKED, HERE, [OPENVINO])
    records = {record["document"]["module"]: record for _, record in make_records(environment(), wanted.values())}
    assert "host" not in str(records)
    known = find_recorded_toolchain(records)
    assert known is not None
    with on_cpu("Another CPU"):
        assert known.identity([OPENVINO])["host"]["cpu"] == "Another CPU"
    assert "host" not in known.identity([QNN])


@pytest.mark.parametrize(
    "change",
    [
        {"python": "cpython-3.12"},
        {"packages": (*LOCKED.packages, Package("six", "1.17", (C,)))},
        {"packages": (Package("numpy", "2.4.0", (C,)), *LOCKED.packages[1:])},
        {"packages": (LOCKED.packages[0], Package("onnxruntime", "1.31.1", (D,)), LOCKED.packages[2])},
    ],
)
def test_every_locked_fact_is_in_the_record_key(change: dict[str, Any]) -> None:
    keys = {compute_record_key(document) for document in documents().values()}
    assert keys.isdisjoint(compute_record_key(document) for document in documents(replace(LOCKED, **change)).values())


def test_record_key_has_the_libc_only_if_the_lock_leaves_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that two wheels of ONNX Runtime count. Those of NumPy do not, because no record covers NumPy."""
    assert {document["chosen_by"] for document in documents().values()} == {""}
    runtime = Package("onnxruntime", "1.31.1", (A, D))
    two = replace(LOCKED, packages=(LOCKED.packages[0], runtime, LOCKED.packages[2]))
    assert documents(two)["onnxruntime"]["chosen_by"] == "glibc 2.36"
    assert documents(two)["onnxruntime_qnn"]["chosen_by"] == ""
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.17", raising=False)
    assert documents(two)["onnxruntime"]["chosen_by"] == "glibc 2.17"
    assert documents(LOCKED, HERE, "any_package")["any_package"]["chosen_by"] == "glibc 2.17"
    # Another machine's choice is known if there is nothing to choose by.
    assert documents(two, "windows-arm64")["onnxruntime"]["platform"] == "win-arm64"
    assert documents(two, "linux-arm64") == {}
    assert documents(LOCKED, "linux-arm64")["onnxruntime"]["platform"] == "linux-aarch64"


def test_environment_without_a_lock_has_no_record() -> None:
    installed = replace(LOCKED, packages=tuple(replace(package, files=()) for package in LOCKED.packages))
    assert documents(installed) == {}
    assert documents(LOCKED, "macos-arm64") == {}, "a Python for macOS also has the system that it was built for"


@pytest.mark.parametrize("packages", [{"onnxruntime": "1.31.2"}, {"six": "1.17"}])
def test_changed_environment_has_no_record(packages: dict[str, str]) -> None:
    assert list(make_records(environment(**packages), documents().values())) == []


def test_records_of_two_environments_are_not_combined() -> None:
    runtime, plugin = documents().values()
    other = replace(LOCKED, packages=(Package("numpy", "2.5", (C,)), *LOCKED.packages[1:]))
    first = dict(make_records(environment(), [runtime]))
    second = dict(make_records(environment(numpy="2.5"), [documents(other)["onnxruntime_qnn"]]))
    assert (len(first), len(second)) == (1, 1)
    assert find_recorded_toolchain({"onnxruntime": first.popitem()[1], "onnxruntime_qnn": second.popitem()[1]}) is None
    assert find_recorded_toolchain({"onnxruntime_qnn": sound()}) is None
    assert plugin["module"] == "onnxruntime_qnn"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("document", "format"), 2),
        (("document", "kind"), "compile"),
        (("document", "module"), None),
        (("document", "packages"), [["numpy"]]),
        (("document", "packages"), 7),
        (("document", "python"), "cpython-3.12"),
        (("result", "platform"), "win-arm64"),
        (("result", "distributions", "numpy"), "3"),
        (("result", "distributions"), {}),
        (("result", "libraries", "onnxruntime_qnn/libQnnHtp.so"), "no digest"),
        (("result", "files"), {"onnxruntime_qnn": 3}),
        (("result",), None),
        (("document",), []),
    ],
)
def test_malformed_toolchain_record_is_rejected(place: tuple[str, ...], value: object) -> None:
    record: Any = copy.deepcopy(sound())
    assert is_toolchain_record(record)
    *outer, last = place
    inner = record
    for name in outer:
        inner = inner[name]
    inner[last] = value
    assert not is_toolchain_record(record)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["format", "kind", "module", "x"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["document", "result"]), JSON))
def test_any_json_is_validated_without_an_error(record: dict[str, Any]) -> None:
    assert not is_toolchain_record(record)


def test_store_keeps_records_and_sets_a_damaged_record_aside(tmp_path: Path) -> None:
    record = sound()
    key, records = compute_record_key(record["document"]), open_toolchain_records(tmp_path)
    records.put(key, record)
    assert records.get(key) == record
    records.put(key, {**record, "result": {}})
    assert records.get(key) is None
    assert not records.has(key)
