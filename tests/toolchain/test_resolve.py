"""Locked environments: the resolved requirements and their files for one platform, without any paths."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epbuild.core.canonical import read_schema
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.recipe.model import ToolchainSpec
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.lock import LockedEnvironment, Package
from epbuild.toolchain.platforms import PLATFORMS, get_own_platform, translate_platform_tag
from epbuild.toolchain.provision import Requirements, provision
from epbuild.toolchain.resolve import (
    describe_deviations,
    find_python,
    list_requirements,
    lock_installed_packages,
    parse_named_python,
    resolve_packages,
)
from tests.support.packages import write_wheel

WHERE = Position("epbuild.yaml", 4, 3)
RUNNING = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def toolchain(*packages: str, python: str | None = None) -> ToolchainSpec:
    return ToolchainSpec("npu", WHERE, python=python, packages=packages)


def refusal(wanted: ToolchainSpec, platform: str = "linux-x86_64") -> Problem:
    with pytest.raises(ToolchainError) as caught:
        resolve_packages(wanted, find_python(wanted), platform, {})
    (problem,) = caught.value.problems
    assert (problem.code, problem.where, caught.value.exit_code) == ("EPB309", WHERE, 3)
    return problem


# -- Platforms and Pythons ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("linux-x86_64", "linux-x86_64"),
        ("linux-aarch64", "linux-arm64"),
        ("win-amd64", "windows-x86_64"),
        ("win-arm64", "windows-arm64"),
        ("macosx-14.0-arm64", "macos-arm64"),
        ("macosx-10.9-x86_64", "macos-x86_64"),
        ("win32", None),
        ("linux-riscv64", None),
        ("linux-i686", None),
    ],
)
def test_platform_has_one_name_for_all_python_tags(tag: str, name: str | None) -> None:
    assert translate_platform_tag(tag) == name


def test_current_platform_has_a_name() -> None:
    assert get_own_platform() in PLATFORMS


def test_universal_mac_python_counts_as_its_running_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert translate_platform_tag("macosx-10.9-universal2") == "macos-arm64"


def test_recipe_can_name_exactly_the_known_platforms() -> None:
    platforms = read_schema("recipe")["$defs"]["toolchain"]["properties"]["platforms"]
    assert platforms["items"]["enum"] == list(PLATFORMS)


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (None, RUNNING),
        ("3.11", "cpython-3.11"),
        ("3.12.4", "cpython-3.12"),
        ("cpython-3.12", "cpython-3.12"),
        ("CPython@3.13", "cpython-3.13"),
        (">=3.11", None),
        ("pypy3.10", None),
        ("/usr/bin/python3", None),
    ],
)
def test_python_named_by_version_is_known_without_a_search(request_: str | None, name: str | None) -> None:
    assert parse_named_python(request_) == name


# -- Arguments and answers of uv ---------------------------------------------------------------------------------------


@dataclass
class FakeUv:
    """Fake uv that answers with given packages in uv's format, or fails."""

    packages: list[dict[str, Any]] = field(default_factory=list)
    stderr: str = ""
    arguments: list[str] = field(default_factory=list)
    wanted: str = ""
    preferences: str | None = None

    def __call__(
        self, arguments: Sequence[str], changes: Mapping[str, str | None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        self.arguments = list(arguments)
        self.wanted = Path(arguments[-1]).read_text(encoding="utf-8")
        output = Path(arguments[list(arguments).index("--output-file") + 1])
        self.preferences = output.read_text(encoding="utf-8") if output.exists() else None
        # TOML accepts the values of JSON, with '=' for ':' in tables.
        lines = [
            f"[[packages]]\n{''.join(f'{key} = {_toml(value)}' + chr(10) for key, value in item.items())}"
            for item in self.packages
        ]
        output.write_text("\n".join(['lock-version = "1.0"', *lines]), encoding="utf-8")
        return subprocess.CompletedProcess([], 1 if self.stderr else 0, "", self.stderr)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def file(digest: str) -> dict[str, Any]:
    return {"url": f"https://packages.example/{digest}.whl", "hashes": {"sha256": digest}}


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    fake = FakeUv([{"name": "a", "version": "1", "wheels": [file(A)]}])
    monkeypatch.setattr(subprocess, "run", lambda command, **options: fake(command[1:]))
    return fake


def resolved(wanted: ToolchainSpec, platform: str = "linux-x86_64", **preferred: str) -> LockedEnvironment:
    return resolve_packages(wanted, find_python(wanted), platform, preferred)


def test_requirements_reach_uv_on_one_line_each(uv: FakeUv) -> None:
    wanted = toolchain("b >=1,\n <2", "a[x]==1", "c; sys_platform == 'win32'", "a[x]==1")
    assert list_requirements(wanted) == ("a[x]==1", "b >=1, <2", "c; sys_platform == 'win32'")
    resolved(wanted)
    assert uv.wanted.splitlines() == list(list_requirements(wanted))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_packages_are_resolved_for_the_named_platform(uv: FakeUv, platform: str) -> None:
    resolved(toolchain("a"), platform)
    assert uv.arguments[uv.arguments.index("--python-platform") + 1] == PLATFORMS[platform]


@pytest.mark.parametrize(("request_", "version"), [("3.12", "3.12"), ("3.11.7", "3.11.7"), ("cpython@3.13", "3.13")])
def test_packages_are_resolved_for_the_python_of_the_recipe(uv: FakeUv, request_: str, version: str) -> None:
    found = resolved(toolchain("a", python=request_))
    assert uv.arguments[uv.arguments.index("--python-version") + 1] == version
    assert found.python == f"cpython-{version.rpartition('.')[0] if version.count('.') > 1 else version}"


def test_only_preferred_versions_are_passed_to_uv(uv: FakeUv) -> None:
    resolved(toolchain("a"), numpy="2.3.0")
    assert uv.preferences is not None
    assert 'name = "numpy"\nversion = "2.3.0"' in uv.preferences
    resolved(toolchain("a"))
    assert uv.preferences is None


def test_package_has_a_name_a_version_and_sorted_wheel_digests(uv: FakeUv) -> None:
    uv.packages = [
        {"name": "Num_Py", "version": "2.4.6", "sdist": file(C), "wheels": [file(B), file(A)]},
        {"name": "only.sources", "version": "1.0", "sdist": file(C)},
    ]
    found = resolved(toolchain("a"))
    assert found.packages == (Package("num-py", "2.4.6", (A, B)), Package("only-sources", "1.0", (C,)))


@pytest.mark.parametrize("kind", ["archive", "directory", "vcs"])
def test_package_from_a_location_is_refused(uv: FakeUv, kind: str) -> None:
    uv.packages = [{"name": "mine", "version": "1.0", kind: {"path": "wheels/mine"}}]
    assert (
        refusal(toolchain("wheels/mine")).message
        == "toolchain 'npu' cannot be locked: 'mine' names a location instead of a version"
    )


def test_package_without_digests_in_the_index_is_refused(uv: FakeUv) -> None:
    uv.packages = [{"name": "a", "version": "1.0", "wheels": [{"url": "https://packages.example/a.whl", "hashes": {}}]}]
    assert refusal(toolchain("a")).message == "toolchain 'npu' cannot be locked: the index has no SHA-256 for a 1.0"


@pytest.mark.parametrize(
    "package",
    [
        "./a.whl",
        "../a",
        "~/a.whl",
        "/opt/a.whl",
        "C:\\a.whl",
        "a @ https://host.example/a.whl",
        "git+ssh://host/a",
        "-e .",
        "--index-url=x",
    ],
)
def test_locations_and_options_are_refused_without_running_uv(uv: FakeUv, package: str) -> None:
    problem = refusal(toolchain("b==1", package))
    assert problem.message == f"toolchain 'npu' cannot be locked: '{package}' names a location instead of a version"
    assert "UV_FIND_LINKS" in str(problem.hint)
    assert uv.arguments == []


@pytest.mark.parametrize(
    ("stderr", "hint"),
    [
        (
            "error: No solution found\n  cause: Because a has no wheels\n",
            "Check the packages, and whether they exist for that platform.",
        ),
        ("error: Failed to fetch\n  cause: dns error\n", "Check the network."),
    ],
)
def test_uv_is_quoted_when_it_finds_no_packages(uv: FakeUv, stderr: str, hint: str) -> None:
    uv.stderr = stderr
    problem = refusal(toolchain("a"), "windows-arm64")
    assert problem.message.startswith("toolchain 'npu' could not be locked for windows-arm64; uv reported: error: ")
    assert problem.hint == hint
    assert "\n" not in problem.message


# -- Existing environments ---------------------------------------------------------------------------------------------


def external_environment(
    distributions: dict[str, str], python: str = "cpython-3.11", platform: str = "linux-x86_64"
) -> Environment:
    return Environment("npu", Path("python"), Fingerprint(python, platform, distributions, {}), Path("memory.json"))


def test_external_environment_is_locked_by_version() -> None:
    found = lock_installed_packages(external_environment({"onnxruntime": "1.31.1", "a--b": "1.0"}))
    assert found == LockedEnvironment("cpython-3.11", (Package("a-b", "1.0"), Package("onnxruntime", "1.31.1")))
    assert found.is_installed
    assert describe_deviations(external_environment({"onnxruntime": "1.31.1", "a-b": "1.0"}), "linux-x86_64", found) == []


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            external_environment({"a": "1.0", "b": "2.0rc1"}, "cpython-3.12"),
            ["the Python is cpython-3.12 instead of cpython-3.11"],
        ),
        (
            external_environment({"a": "1.0", "b": "2.0rc1"}, platform="win-amd64"),
            ["the platform is win-amd64 instead of linux-x86_64"],
        ),
        (external_environment({"a": "1.0"}), ["the package b 2.0rc1 is missing"]),
        (external_environment({"a": "1.0", "b": "2.0rc1", "c": "3"}), ["the package c 3 is not locked"]),
        (
            external_environment({"a": "1.1", "b": "2.0"}),
            ["the version of a is 1.1 instead of 1.0", "the version of b is 2.0 instead of 2.0rc1"],
        ),
        (external_environment({"a": "1.0+cu12", "b": "2.0rc1"}), ["the version of a is 1.0+cu12 instead of 1.0"]),
        (external_environment({"a": "1.0.post1", "b": "2.0rc1"}), ["the version of a is 1.0.post1 instead of 1.0"]),
        (external_environment({"a": "1.0", "b": "2.0rc1"}), []),
    ],
)
def test_every_deviation_from_the_lock_is_reported(environment: Environment, words: list[str]) -> None:
    locked = LockedEnvironment("cpython-3.11", (Package("a", "1.0", (A,)), Package("b", "2.0rc1", (B,))))
    assert describe_deviations(environment, "linux-x86_64", locked) == words


@pytest.mark.parametrize(
    ("written", "locked"), [("1.0.0", "1"), ("2024.01.02", "2024.1.2"), ("1.0RC1", "1.0rc1"), ("v1.2", "1.2"), ("10.0", "10")]
)
def test_version_with_another_spelling_is_equal(written: str, locked: str) -> None:
    assert (
        describe_deviations(
            external_environment({"a": written}), "linux-x86_64", LockedEnvironment("cpython-3.11", (Package("a", locked, (A,)),))
        )
        == []
    )


@pytest.mark.parametrize(("written", "locked"), [("1.10", "1.1"), ("10", "1"), ("1.0.1", "1.1"), ("100", "1")])
def test_different_version_is_not_equal(written: str, locked: str) -> None:
    assert describe_deviations(
        external_environment({"a": written}), "linux-x86_64", LockedEnvironment("cpython-3.11", (Package("a", locked, (A,)),))
    )


# -- Real uv without a network -----------------------------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of wheels, the only source that uv has."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    write_wheel(folder, "tiny-ep", "1.0", "tiny-base", files={"tiny_ep/__init__.py": b""})
    write_wheel(folder, "tiny-base", "1.0", files={"tiny_base/__init__.py": b"1"})
    write_wheel(folder, "tiny-base", "1.1", files={"tiny_base/__init__.py": b"1.1"})
    write_wheel(folder, "tiny-windows", "1.0", files={"tiny_windows/__init__.py": b""})
    return folder


def resolved_by_uv(wanted: ToolchainSpec, platform: str = str(get_own_platform()), **preferred: str) -> LockedEnvironment:
    named = {name.replace("_", "-"): version for name, version in preferred.items()}
    return resolve_packages(wanted, find_python(wanted), platform, named)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_uv_knows_every_platform(wheels: Path, platform: str) -> None:
    found = resolved_by_uv(toolchain("tiny-ep", "tiny-windows; sys_platform == 'win32'"), platform)
    windows = ["tiny-windows"] if platform.startswith("windows") else []
    assert [package.name for package in found.packages] == ["tiny-base", "tiny-ep", *windows]
    assert found.packages[0] == Package("tiny-base", "1.1", (digest_of(wheels / "tiny_base-1.1-py3-none-any.whl"),))


@pytest.mark.slow
def test_locked_version_is_kept_while_it_satisfies_the_requirements(wheels: Path) -> None:
    assert resolved_by_uv(toolchain("tiny-ep"), tiny_base="1.0").packages[0].version == "1.0"
    assert resolved_by_uv(toolchain("tiny-ep", "tiny-base>1.0"), tiny_base="1.0").packages[0].version == "1.1"
    assert resolved_by_uv(toolchain("tiny-ep"), tiny_base="7.0").packages[0].version == "1.1"


@pytest.mark.slow
def test_packages_are_resolved_for_a_python_that_is_not_installed(wheels: Path) -> None:
    write_wheel(wheels, "tiny-old", "1.0", files={"tiny_old/__init__.py": b""})
    wanted = toolchain("tiny-ep", "tiny-old; python_version < '3.10'", python="3.9")
    assert [package.name for package in resolved_by_uv(wanted).packages] == ["tiny-base", "tiny-ep", "tiny-old"]


@pytest.mark.slow
def test_python_is_found_or_reported_missing(tmp_path: Path) -> None:
    assert find_python(toolchain("a", python=sys.executable)).name == RUNNING
    with pytest.raises(ToolchainError) as caught:
        find_python(toolchain("a", python=str(tmp_path / "python")))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("EPB309", WHERE)
    assert "is not installed; uv reported: " in problem.message


@pytest.mark.slow
def test_environment_is_provisioned_from_the_lock_despite_newer_versions(wheels: Path, tmp_path: Path) -> None:
    wanted = toolchain("tiny-ep")
    locked = resolved_by_uv(wanted, tiny_base="1.0")
    made = Toolchains(tmp_path / "home").prepare(wanted, tmp_path, [], locked)
    assert made.fingerprint.distributions == {"tiny-ep": "1.0", "tiny-base": "1.0"}
    assert describe_deviations(made, str(get_own_platform()), locked) == []
    free = Toolchains(tmp_path / "home").prepare(wanted, tmp_path, [])
    assert free.fingerprint.distributions["tiny-base"] == "1.1"
    assert free.interpreter != made.interpreter


def refused(home: Path, wanted: ToolchainSpec, locked: LockedEnvironment) -> str:
    with pytest.raises(ToolchainError) as caught:
        provision(Requirements(wanted.packages, None, locked), home, name="npu", where=WHERE)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("EPB307", WHERE)
    assert not list(home.glob("*/env"))
    return problem.message


@pytest.mark.slow
def test_file_that_differs_from_the_lock_is_not_installed(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = resolved_by_uv(toolchain("tiny-base==1.0"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another cache"))  # the first one has the file that was locked
    write_wheel(wheels, "tiny-base", "1.0", files={"tiny_base/__init__.py": b"something else"})
    assert "Hash mismatch" in refused(tmp_path / "home", toolchain("tiny-base==1.0"), locked)


@pytest.mark.slow
def test_lock_without_a_dependency_is_not_installed(wheels: Path, tmp_path: Path) -> None:
    locked = resolved_by_uv(toolchain("tiny-ep"))
    torn = LockedEnvironment(locked.python, tuple(package for package in locked.packages if package.name == "tiny-ep"))
    assert "tiny-base" in refused(tmp_path / "home", toolchain("tiny-ep"), torn)


@pytest.mark.slow
@pytest.mark.parametrize("asks", ["tiny-base<1.1", "tiny-windows"])
def test_lock_that_misses_the_requirements_is_not_installed(wheels: Path, tmp_path: Path, asks: str) -> None:
    locked = resolved_by_uv(toolchain("tiny-ep"))
    assert "tiny-" in refused(tmp_path / "home", toolchain("tiny-ep", asks), locked)
