"""Changes that `epbuild lock` reports: one line for each item, for any number of digests and platforms."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epbuild.toolchain.lock import Lock, LockChange, LockedModel, LockedToolchain, compare_locks
from tests.support.locks import LOCK, NUMPY, ONNXRUNTIME, digest, environment, package

BOTH = ("linux-x86_64", "windows-arm64")


def with_qnn(requires: tuple[str, ...] = ("onnxruntime==1.31.1",), **platforms: object) -> Lock:
    """Return the lock with these environments in a toolchain. Other environments stay."""
    named = {name.replace("_", "-", 1): found for name, found in platforms.items()}
    old = LOCK.toolchains["qnn"]
    return replace(LOCK, toolchains={**LOCK.toolchains, "qnn": LockedToolchain(requires, {**old.platforms, **named})})  # type: ignore[dict-item]


def test_equal_locks_have_no_changes() -> None:
    assert compare_locks(LOCK, LOCK) == []


def test_a_first_lock_lists_every_package_once() -> None:
    found = compare_locks(None, LOCK)
    assert {change.kind for change in found} == {"added"}
    packages = [(change.toolchain, change.name, change.new, change.platforms) for change in found if change.about == "package"]
    assert packages == [
        ("qnn", "numpy", "2.4.6", BOTH),
        ("qnn", "onnxruntime", "1.31.1", BOTH),
        ("qnn", "pyreadline3", "3.5.6", ("windows-arm64",)),
        ("ryzen", "onnxruntime-vitisai", "1.22.1", ("windows-x86_64",)),
    ]
    assert [change.name for change in found if change.about == "catalog"] == [
        "QNNExecutionProvider/onnxruntime-qnn",
        "session-keys",
    ]
    assert [change.name for change in found if change.about == "model"] == ["decode"]
    assert not [change for change in found if change.about == "recipe"]


def test_upgrade_on_one_platform_names_the_platform() -> None:
    new = with_qnn(linux_x86_64=environment(package("numpy", "2.5.5"), ONNXRUNTIME))
    assert compare_locks(LOCK, new) == [LockChange("updated", "package", "numpy", "2.4.6", "2.5.5", "qnn", ("linux-x86_64",))]


def test_equal_upgrade_on_every_platform_is_reported_once() -> None:
    windows = LOCK.toolchains["qnn"].platforms["windows-arm64"].packages
    others = [item for item in windows if item.name != "numpy"]
    numpy = package("numpy", "2.5.5")
    new = with_qnn(linux_x86_64=environment(numpy, ONNXRUNTIME), windows_arm64=environment(numpy, *others))
    assert compare_locks(LOCK, new) == [LockChange("updated", "package", "numpy", "2.4.6", "2.5.5", "qnn", BOTH)]


def test_different_files_of_the_same_version_are_a_change() -> None:
    new = with_qnn(linux_x86_64=environment(replace(NUMPY, files=(digest("another file"),)), ONNXRUNTIME))
    assert compare_locks(LOCK, new) == [LockChange("updated", "package", "numpy", "2.4.6", "2.4.6", "qnn", ("linux-x86_64",))]


def test_different_python_is_a_change() -> None:
    new = with_qnn(linux_x86_64=environment(NUMPY, ONNXRUNTIME, python="cpython-3.12"))
    [change] = compare_locks(LOCK, new)
    assert (change.about, change.old, change.new) == ("python", "cpython-3.11", "cpython-3.12")


def test_removed_toolchain_removes_its_packages() -> None:
    found = compare_locks(LOCK, replace(LOCK, toolchains={"qnn": LOCK.toolchains["qnn"]}))
    assert [(change.kind, change.about, change.name) for change in found] == [
        ("removed", "python", "python"),
        ("removed", "package", "onnxruntime-vitisai"),
    ]


def test_new_requirements_for_the_same_packages_are_one_change() -> None:
    [change] = compare_locks(LOCK, with_qnn(("onnxruntime>=1.31",)))
    assert (change.kind, change.about, change.name) == ("updated", "toolchain", "qnn")
    assert (change.old, change.new) == ("onnxruntime==1.31.1", "onnxruntime>=1.31")


@pytest.mark.parametrize(
    ("new", "about", "name"),
    [
        (replace(LOCK, recipe="other"), "recipe", "other"),
        (replace(LOCK, catalog={**LOCK.catalog, "session-keys": "3"}), "catalog", "session-keys"),
        (replace(LOCK, models={"decode": LockedModel(digest("another"), LOCK.models["decode"].data)}), "model", "decode"),
        (replace(LOCK, models={"decode": LockedModel(digest("graph"), {})}), "model", "decode"),
    ],
)
def test_other_changes_name_their_subject(new: Lock, about: str, name: str) -> None:
    [change] = compare_locks(LOCK, new)
    assert (change.kind, change.about, change.name) == ("updated", about, name)


def test_release_with_models_is_reported_by_version_and_files() -> None:
    first, second = LOCK.wheels
    new = replace(LOCK, wheels=(replace(first, files=(digest("other"),)), package("my-models", "1.2")))
    assert [(change.kind, change.name, change.old, change.new) for change in compare_locks(LOCK, new)] == [
        ("updated", "my-models", "1.0", "1.0"),
        ("removed", "my-models", second.version, None),
        ("added", "my-models", None, "1.2"),
    ]
