"""Provisioning: once, atomically, and with the package and uv's message in each error."""

# ruff: noqa: RUF001 - uv writes a multiplication sign

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import Position, ToolchainError
from epbuild.toolchain.lock import LockedEnvironment, Package
from epbuild.toolchain.provision import Requirements, find_interpreter, get_environment_folder, get_own_python, provision

WHERE = Position("epbuild.yaml", 4, 3)
WANTED = Requirements(("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"))
INTERPRETER = "env/Scripts/python.exe" if os.name == "nt" else "env/bin/python"

NO_SUCH_PACKAGE = """\
Using Python 3.11.7 environment at: env
  × No solution found when resolving dependencies:
  ╰─▶ Because nosuch-package-xyz was not found in the package registry and you require nosuch-package-xyz==1, \
we can conclude that your requirements are unsatisfiable.
"""
NO_PYTHON = "error: No interpreter found for Python 3.99 in managed installations or search path\n"
NO_NETWORK = """\
  × Failed to fetch: `https://packages.example/simple/onnxruntime-qnn/`
  ├─▶ error sending request for url (https://packages.example/simple/onnxruntime-qnn/)
  ╰─▶ dns error: failed to lookup address information
"""


class FakeUv:
    """Fake uv that makes uv's changes on disk, or fails at one command with uv's message."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.failing: str | None = None
        self.stderr = ""
        self.interrupted = False

    def __call__(
        self, arguments: Sequence[str], changes: Mapping[str, str | None] | None = None, listener: object = None
    ) -> subprocess.CompletedProcess[str]:
        self.commands.append(list(arguments))
        if arguments[0] == "venv":
            interpreter = Path(arguments[-1]).parent / INTERPRETER
            interpreter.parent.mkdir(parents=True)
            interpreter.write_bytes(b"")
        if self.interrupted:
            raise KeyboardInterrupt
        failed = arguments[0] == self.failing
        return subprocess.CompletedProcess(list(arguments), int(failed), "", self.stderr if failed else "")


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    fake = FakeUv()
    monkeypatch.setattr(subprocess, "run", lambda command, **options: fake(command[1:]))
    return fake


def make(home: Path, requirements: Requirements = WANTED) -> Path:
    return provision(requirements, home, name="npu", where=WHERE)


def refusal(home: Path, requirements: Requirements = WANTED) -> tuple[str, str, str | None]:
    """Return the code, message and hint of a refused environment."""
    with pytest.raises(ToolchainError) as caught:
        make(home, requirements)
    (problem,) = caught.value.problems
    assert problem.where == WHERE
    return problem.code, problem.message, problem.hint


# -- The name of an environment ----------------------------------------------------------------------------------------

packages = st.lists(st.sampled_from(["a==1", "b>=2,<3", "c[x,y]==1", "d==1; python_version<'4'", "e"]), max_size=5, unique=True)


@given(wanted=packages, data=st.data())
def test_order_and_spaces_of_requirements_do_not_change_the_environment(wanted: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(wanted))
    spaced = [package.replace("==", " == ").replace(",", ", ") + " " for package in shuffled]
    assert Requirements(tuple(spaced)).digest() == Requirements(tuple(wanted)).digest()


@given(one=packages, other=packages)
def test_different_requirements_give_a_different_environment(one: list[str], other: list[str]) -> None:
    assert (Requirements(tuple(one)).digest() == Requirements(tuple(other)).digest()) == (set(one) == set(other))


def test_different_python_gives_a_different_environment() -> None:
    digests = {Requirements(("a",), python).digest() for python in (None, "3.12", "3.13")}
    assert len(digests) == 3


ONNXRUNTIME = Package("onnxruntime", "1.31.1", ("a" * 64, "b" * 64))
QNN = Package("onnxruntime-qnn", "2.7.0", ("c" * 64,))
LOCKED = LockedEnvironment(get_own_python(), (ONNXRUNTIME, QNN))


def test_locked_environment_differs_from_environments_chosen_otherwise() -> None:
    other_files = LockedEnvironment(LOCKED.python, (ONNXRUNTIME, Package("onnxruntime-qnn", "2.7.0", ("d" * 64,))))
    other_version = LockedEnvironment(LOCKED.python, (ONNXRUNTIME, Package("onnxruntime-qnn", "2.7.1", ("c" * 64,))))
    other_python = LockedEnvironment("cpython-3.99", LOCKED.packages)
    names = [
        Requirements(WANTED.packages, None, locked).digest() for locked in (LOCKED, other_files, other_version, other_python)
    ]
    assert len({*names, WANTED.digest()}) == 5
    assert all(name.startswith("locked-") for name in names)


def test_lock_alone_names_a_locked_environment() -> None:
    assert Requirements(("onnxruntime>=1",), None, LOCKED).digest() == Requirements(WANTED.packages, None, LOCKED).digest()


# -- Provisioning ------------------------------------------------------------------------------------------------------


def test_environment_has_the_python_and_the_packages_of_the_recipe(tmp_path: Path, uv: FakeUv) -> None:
    interpreter = make(tmp_path, Requirements(WANTED.packages, "3.12"))
    venv, install = uv.commands
    assert venv[:4] == ["venv", "--no-project", "--python", "3.12"]
    assert install[:2] == ["pip", "install"]
    assert install[install.index("--python") + 1] == str(interpreter)
    assert install[-2:] == list(WANTED.packages)
    assert interpreter.exists()


def test_locked_environment_is_built_from_its_files_and_checked(tmp_path: Path, uv: FakeUv) -> None:
    interpreter = make(tmp_path, Requirements(WANTED.packages, None, LOCKED))
    venv, install, check = uv.commands
    assert venv[venv.index("--python") + 1] == sys.executable
    assert "--require-hashes" in install
    lines = Path(install[install.index("--requirements") + 1]).read_text(encoding="utf-8").splitlines()
    assert lines == [
        f"onnxruntime==1.31.1 --hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}",
        f"onnxruntime-qnn==2.7.0 --hash=sha256:{'c' * 64}",
    ]
    assert {"--offline", "--no-index", *WANTED.packages} <= set(check)
    assert find_interpreter(get_environment_folder(Requirements(WANTED.packages, None, LOCKED), tmp_path)) == interpreter
    assert find_interpreter(get_environment_folder(WANTED, tmp_path)) is None


@pytest.mark.parametrize(("asked", "made"), [(None, "cpython@3.99"), ("3.99.1", "3.99.1")])
def test_locked_environment_has_the_locked_python(tmp_path: Path, uv: FakeUv, asked: str | None, made: str) -> None:
    make(tmp_path, Requirements(WANTED.packages, asked, LockedEnvironment("cpython-3.99", (ONNXRUNTIME,))))
    assert uv.commands[0][uv.commands[0].index("--python") + 1] == made


def test_failed_locked_environment_is_reported_with_a_hint(tmp_path: Path, uv: FakeUv) -> None:
    uv.failing, uv.stderr = "pip", "error: Failed to download\n  cause: Hash mismatch for `onnxruntime==1.31.1`\n"
    code, message, hint = refusal(tmp_path, Requirements(WANTED.packages, None, LOCKED))
    assert code == "EPB307"
    assert message.startswith("toolchain 'npu' could not be created from the lock; uv reported: error: Failed to download")
    assert hint == "If the lock is wrong, run `epbuild lock` to write a new one."
    assert not list(tmp_path.glob("*/env"))


def test_environment_is_provisioned_once(tmp_path: Path, uv: FakeUv) -> None:
    assert find_interpreter(get_environment_folder(WANTED, tmp_path)) is None
    first = make(tmp_path)
    assert find_interpreter(get_environment_folder(WANTED, tmp_path)) == first
    assert make(tmp_path, Requirements(tuple(reversed(WANTED.packages)))) == first
    assert len(uv.commands) == 2


def test_lookup_of_an_environment_leaves_no_trace(tmp_path: Path) -> None:
    assert find_interpreter(get_environment_folder(WANTED, tmp_path / "home")) is None
    assert list(tmp_path.iterdir()) == []


def test_concurrent_builds_provision_an_environment_once(tmp_path: Path, uv: FakeUv) -> None:
    found: list[Path] = []
    both = threading.Barrier(2)

    def build() -> None:
        both.wait()
        found.append(make(tmp_path))

    builds = [threading.Thread(target=build) for _ in range(2)]
    for thread in builds:
        thread.start()
    for thread in builds:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert [command[0] for command in uv.commands] == ["venv", "pip"]


def test_half_provisioned_environment_is_provisioned_again(tmp_path: Path, uv: FakeUv) -> None:
    uv.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path)
    folder = get_environment_folder(WANTED, tmp_path)
    (folder / "env" / "half").write_bytes(b"")
    assert (folder / INTERPRETER).exists()
    assert find_interpreter(get_environment_folder(WANTED, tmp_path)) is None
    uv.interrupted = False
    assert make(tmp_path).exists()
    assert not (folder / "env" / "half").exists()


def test_environment_without_its_python_is_provisioned_again(tmp_path: Path, uv: FakeUv) -> None:
    make(tmp_path).unlink()
    assert find_interpreter(get_environment_folder(WANTED, tmp_path)) is None
    assert make(tmp_path).exists()
    assert len(uv.commands) == 4


# -- Failures ----------------------------------------------------------------------------------------------------------


def test_missing_package_is_named_and_uv_is_quoted(tmp_path: Path, uv: FakeUv) -> None:
    uv.failing, uv.stderr = "pip", NO_SUCH_PACKAGE
    code, message, hint = refusal(tmp_path, Requirements(("numpy==2.0", "nosuch-package-xyz==1")))
    assert code == "EPB301"
    assert message.startswith(
        "toolchain 'npu' could not be provisioned: uv could not install nosuch-package-xyz==1; uv reported: × No solution found"
    )
    assert "nosuch-package-xyz was not found in the package registry" in message
    assert "Using Python" not in message
    assert "\n" not in message
    assert hint == "Check the package names, the versions and the Python of the toolchain."


@pytest.mark.parametrize(
    "requirement", ["nosuch-package-xyz==1", "NoSuch_Package.xyz==1", "nosuch-package-xyz", "nosuch_package_xyz[all] >= 1"]
)
def test_missing_package_is_named_as_the_recipe_spells_it(tmp_path: Path, uv: FakeUv, requirement: str) -> None:
    uv.failing, uv.stderr = "pip", NO_SUCH_PACKAGE
    assert f"uv could not install {requirement};" in refusal(tmp_path, Requirements((requirement,)))[1]


@pytest.mark.parametrize("innocent", ["nosuch-package", "package-xyz", "nosuch-package-xyz-extra", "xyz"])
def test_package_with_a_similar_name_is_not_blamed(tmp_path: Path, uv: FakeUv, innocent: str) -> None:
    uv.failing, uv.stderr = "pip", NO_SUCH_PACKAGE
    message = refusal(tmp_path, Requirements((innocent, "nosuch-package-xyz==1")))[1]
    assert "uv could not install nosuch-package-xyz==1;" in message


def test_missing_python_is_reported_and_no_package_is_blamed(tmp_path: Path, uv: FakeUv) -> None:
    uv.failing, uv.stderr = "venv", NO_PYTHON
    code, message, _ = refusal(tmp_path, Requirements(WANTED.packages, "3.99"))
    assert code == "EPB301"
    assert "uv could not create the environment; uv reported: error: No interpreter found for Python 3.99" in message
    assert len(uv.commands) == 1


def test_missing_network_is_reported_with_a_network_hint(tmp_path: Path, uv: FakeUv) -> None:
    uv.failing, uv.stderr = "pip", NO_NETWORK
    _, message, hint = refusal(tmp_path)
    assert "uv could not install onnxruntime-qnn==2.7.0;" in message
    assert hint is not None
    assert "the network" in hint


def test_silent_uv_is_quoted_as_reporting_nothing(tmp_path: Path, uv: FakeUv) -> None:
    uv.failing = "pip"
    assert refusal(tmp_path)[1].endswith("uv could not create the environment; uv reported: nothing")


@pytest.mark.parametrize("failing", ["venv", "pip"])
def test_failed_provision_leaves_no_environment_and_can_be_retried(tmp_path: Path, uv: FakeUv, failing: str) -> None:
    uv.failing, uv.stderr = failing, NO_SUCH_PACKAGE
    refusal(tmp_path)
    assert not get_environment_folder(WANTED, tmp_path).exists()
    assert find_interpreter(get_environment_folder(WANTED, tmp_path)) is None
    uv.failing = None
    assert make(tmp_path).exists()


def test_unwritable_folder_of_environments_is_reported(tmp_path: Path, uv: FakeUv) -> None:
    (tmp_path / "file").write_bytes(b"")
    code, message, hint = refusal(tmp_path / "file")
    assert code == "EPB302"
    assert message.startswith("toolchain 'npu' could not be written to ")
    assert hint is not None
    assert "EPBUILD_TOOLCHAIN_DIR" in hint
    assert uv.commands == []
