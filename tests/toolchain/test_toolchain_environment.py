"""Environments of a recipe's toolchains: an interpreter to start, or a message about the missing part."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.catalog.catalog import entry
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.recipe.model import ToolchainSpec
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.provision import Requirements, get_environment_folder
from tests.support.packages import install, make_environment, site_of, write_wheel

WHERE = Position("epbuild.yaml", 4, 3)
QNN = entry("QNNExecutionProvider")
OPENVINO = entry("OpenVINOExecutionProvider")


def existing(interpreter: Path | str, *packages: str) -> ToolchainSpec:
    return ToolchainSpec("npu", WHERE, interpreter=str(interpreter), packages=packages)


def refusals(toolchain: ToolchainSpec, base: Path, *eps: str) -> tuple[Problem, ...]:
    with pytest.raises(ToolchainError) as caught:
        Toolchains(base / "home").prepare(toolchain, base, [entry(ep) for ep in eps])
    return caught.value.problems


def test_external_environment_is_used_unchanged(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "onnxruntime", "1.31.1", {"onnxruntime/capi/libonnxruntime.so.1": b"ORT"})
    install(python, "onnxruntime-qnn", "2.7.0", {"onnxruntime_qnn/libep.so": b"EP"})
    before = sorted((tmp_path / "theirs").rglob("*"))
    environment = Toolchains(tmp_path / "home").prepare(existing(python), tmp_path, [QNN])
    assert environment.interpreter == python
    assert environment.onnxruntime == "1.31.1"
    assert set(environment.fingerprint.libraries) == {"onnxruntime/capi/libonnxruntime.so.1", "onnxruntime_qnn/libep.so"}
    assert sorted((tmp_path / "theirs").rglob("*")) == before


def test_interpreter_path_is_relative_to_the_recipe(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "onnxruntime-openvino", "1.24.1", {"onnxruntime/__init__.py": b""})
    relative = existing(python.relative_to(tmp_path).as_posix())
    assert Toolchains(tmp_path / "home").is_ready(relative, tmp_path)
    assert not Toolchains(tmp_path / "home").is_ready(relative, tmp_path / "theirs")
    assert Toolchains(tmp_path / "home").prepare(relative, tmp_path, [OPENVINO]).onnxruntime == "1.24.1"


@pytest.mark.skipif(os.name == "nt", reason="environments are laid out otherwise on Windows")
@pytest.mark.parametrize("path", ["env/bin/python", "python"])
def test_equal_interpreter_paths_of_two_recipes_are_resolved_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Check relative paths from each recipe's folder. A bare name is not looked up in PATH."""
    for name in ("one", "two"):
        python = make_environment(tmp_path / name / "env")
        install(python, "onnxruntime-openvino", "1.24.1", {"onnxruntime/libort.so": name.encode()})
    for name in ("one", "two"):
        folder = tmp_path / name / ("env/bin" if path == "python" else "")
        monkeypatch.chdir(folder)
        environment = Toolchains(tmp_path / "home").prepare(existing(path), Path(), [OPENVINO])
        assert environment.fingerprint.libraries == {"onnxruntime/libort.so": hashlib.sha256(name.encode()).hexdigest()}
        assert environment.interpreter == folder / path


@pytest.mark.parametrize("path", ["nosuch/bin/python", "~nosuchuser123/bin/python"])
def test_missing_interpreter_is_reported_at_its_toolchain(tmp_path: Path, path: str) -> None:
    assert not Toolchains(tmp_path / "home").is_ready(existing(path), tmp_path)
    (problem,) = refusals(existing(path), tmp_path)
    assert (problem.code, problem.where) == ("EPB304", WHERE)
    assert problem.message == f"toolchain 'npu' names an interpreter that does not exist: {path}"


def test_unreadable_interpreter_is_reported_at_its_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)  # as in a folder of another user, which root can always read
    assert not Toolchains(tmp_path / "home").is_ready(existing("their/python"), tmp_path)
    monkeypatch.setattr(Path, "stat", refuse)
    (problem,) = refusals(existing("their/python"), tmp_path)
    assert (problem.code, problem.where) == ("EPB304", WHERE)
    assert "cannot be read (Permission denied)" in problem.message


def test_broken_interpreter_is_reported_at_its_toolchain(tmp_path: Path) -> None:
    (problem,) = refusals(existing(tmp_path), tmp_path)
    assert (problem.code, problem.where) == ("EPB303", WHERE)


def test_each_missing_ep_package_is_reported_with_its_requirement(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    found = refusals(existing(python), tmp_path, QNN.ep, OPENVINO.ep)
    assert [(problem.code, problem.where) for problem in found] == [("EPB305", WHERE)] * 2
    packages = "onnxruntime==1.31.1, onnxruntime-qnn==2.7.0, onnxruntime-ep-openvino==1.8.1"
    for problem, ep in zip(found, (QNN.ep, OPENVINO.ep), strict=True):
        other = f"If another installed package contains {ep}, add this package to the toolchain's packages."
        assert problem.hint == f"Install {packages} in the toolchain's environment. {other}"
    assert found[0].message == "toolchain 'npu' lacks the package onnxruntime-qnn for QNNExecutionProvider"


def test_unrequested_ep_package_is_reported_with_its_requirement(tmp_path: Path) -> None:
    packages = ("numpy", "onnxruntime-qnn; sys_platform == 'nowhere'")
    made = get_environment_folder(Requirements(packages), tmp_path / "home")
    install(make_environment(made / "env"), "numpy", "2.0", {})
    (made / "complete").write_text("[]", encoding="utf-8")
    (problem,) = refusals(ToolchainSpec("npu", WHERE, packages=packages), tmp_path, QNN.ep)
    known = "Add onnxruntime==1.31.1, onnxruntime-qnn==2.7.0 to the toolchain's packages."
    assert (problem.code, problem.hint) == ("EPB305", known)


@pytest.mark.parametrize(
    ("installed", "ep", "hint"),
    [
        ("onnxruntime", QNN.ep, "Install onnxruntime-qnn==2.7.0 in the toolchain's environment. If"),
        ("onnxruntime-openvino", QNN.ep, "Use another environment, such as `packages: [onnxruntime==1.31.1, onnxruntime-qnn"),
        ("onnxruntime", "TensorrtExecutionProvider", "Use another environment, such as `packages: [onnxruntime-gpu==1.31.1]`"),
        (
            "onnxruntime-ep-openvino",
            OPENVINO.ep,
            "Add the installed package onnxruntime-ep-openvino, which contains OpenVINOExecutionProvider, to",
        ),
    ],
)
def test_hint_never_excludes_the_installed_packages(tmp_path: Path, installed: str, ep: str, hint: str) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, installed, "1.31.1", {})
    [problem] = refusals(existing(python), tmp_path, ep)
    assert (problem.hint or "").startswith(hint)


def test_unpublished_ep_has_no_install_hint(tmp_path: Path) -> None:
    (problem,) = refusals(existing(make_environment(tmp_path / "theirs")), tmp_path, "VitisAIExecutionProvider")
    assert problem.hint is not None
    assert "Install" not in problem.hint
    assert problem.hint.startswith(
        "Use another environment, such as `interpreter: ${env.RYZEN_AI_PYTHON:-C:/ryzen-ai/python.exe}`."
    )


def test_existing_environment_that_meets_the_recipe_is_used(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "onnxruntime", "1.31.0+cu12", {})
    install(python, "OnnxRuntime_EP_OpenVINO", "1.8.1", {"onnxruntime_ep_openvino/libep.so": b"EP"})
    toolchain = existing(python, "onnxruntime==1.31", "onnxruntime.ep.openvino", "onnxruntime-ep-openvino==1.8.1")
    plugin = entry("OpenVINOExecutionProvider", ["onnxruntime-ep-openvino"])
    assert Toolchains(tmp_path / "home").prepare(toolchain, tmp_path, [plugin]).onnxruntime == "1.31.0+cu12"


def test_existing_environment_reports_all_deviations_and_installs_nothing(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "onnxruntime", "1.24.1", {})
    before = sorted((tmp_path / "theirs").rglob("*"))
    toolchain = existing(python, "onnxruntime==1.31.1", "OnnxRuntime_QNN==2.7.0", "numpy")
    found = refusals(toolchain, tmp_path, QNN.ep)
    assert {(problem.code, problem.where) for problem in found} == {("EPB306", WHERE)}
    assert [problem.text for problem in found] == [
        f"toolchain 'npu' requires {asked}, but the environment of its interpreter {holds}. "
        "Install the package in that environment, or change the toolchain's packages."
        for asked, holds in [
            ("onnxruntime==1.31.1", "has onnxruntime 1.24.1"),
            ("OnnxRuntime_QNN==2.7.0", "does not have it"),
            ("numpy", "does not have it"),
        ]
    ]
    assert sorted((tmp_path / "theirs").rglob("*")) == before


def test_existing_environment_is_checked_again_for_another_recipe(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "onnxruntime", "1.31.1", {})
    Toolchains(tmp_path / "home").prepare(existing(python, "onnxruntime==1.31.1"), tmp_path, [])
    with pytest.raises(ToolchainError, match=r"has onnxruntime 1\.31\.1") as caught:
        Toolchains(tmp_path / "home").prepare(existing(python, "onnxruntime==1.32.0"), tmp_path, [])
    assert caught.value.exit_code == 3


def test_ep_with_several_possible_packages_accepts_any_package(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "contoso-ep-cuda13", "3.1", {"contoso_ep/libep.so": b"EP"})
    contoso = replace(QNN, distributions=("contoso-ep", "contoso-ep-cuda13"))
    environment = Toolchains(tmp_path / "home").prepare(existing(python), tmp_path, [contoso])
    assert environment.fingerprint.distributions["contoso-ep-cuda13"] == "3.1"
    with pytest.raises(ToolchainError, match="lacks the package contoso-ep for"):
        Toolchains(tmp_path / "home").prepare(existing(python), tmp_path, [replace(contoso, distributions=("contoso-ep",))])


def test_ep_without_a_package_is_recognized_by_the_runtime(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "contoso-onnxruntime", "1.31.1", {"onnxruntime/capi/libort.so": b"ORT"})
    built_in = replace(OPENVINO, distributions=())
    assert Toolchains(tmp_path / "home").prepare(existing(python), tmp_path, [built_in]).interpreter == python


def test_toolchain_error_ends_the_program_with_exit_code_3(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        Toolchains(tmp_path / "home").prepare(existing("nosuch"), tmp_path, [])
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("distributions", "version"),
    [
        ({"onnxruntime": "1.31.1", "onnxruntime-qnn": "2.7.0"}, "1.31.1"),
        ({"numpy": "2.0", "onnxruntime-openvino": "1.24.1"}, "1.24.1"),
        ({"numpy": "2.0"}, "unknown"),
    ],
)
def test_onnx_runtime_version_is_known_for_every_package_name(distributions: dict[str, str], version: str) -> None:
    taken = Fingerprint("cpython-3.11", "linux-x86_64", distributions, {})
    assert Environment("npu", Path("python"), taken, Path("memory.json")).onnxruntime == version


@pytest.mark.slow
def test_toolchain_is_provisioned_by_uv_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    wheel = write_wheel(tmp_path, "onnxruntime-openvino", "1.24.1", files={"onnxruntime/capi/libep.so": b"EP"})
    toolchain = ToolchainSpec("npu", WHERE, packages=(str(wheel),))
    assert not Toolchains(tmp_path / "home").is_ready(toolchain, tmp_path)
    environment = Toolchains(tmp_path / "home").prepare(toolchain, tmp_path, [OPENVINO])
    assert environment.fingerprint.distributions == {"onnxruntime-openvino": "1.24.1"}
    assert environment.fingerprint.libraries == {"onnxruntime/capi/libep.so": hashlib.sha256(b"EP").hexdigest()}
    assert Toolchains(tmp_path / "home").is_ready(toolchain, tmp_path)
    monkeypatch.setenv("PATH", os.devnull)
    assert Toolchains(tmp_path / "home").prepare(toolchain, tmp_path, [OPENVINO]) == environment


@pytest.mark.slow
def test_real_uv_message_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    toolchain = ToolchainSpec("npu", WHERE, packages=("NoSuch_Package_xyz==1",))
    (problem,) = refusals(toolchain, tmp_path, OPENVINO.ep)
    assert (problem.code, problem.where) == ("EPB301", WHERE)
    assert "uv could not install NoSuch_Package_xyz==1; uv reported: " in problem.message


def test_custom_operator_package_is_part_of_the_fingerprint_of_its_users(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "onnxruntime", "1.31.1", {"onnxruntime/capi/libonnxruntime.so.1": b"ORT"})
    install(python, "onnxruntime-qnn", "2.7.0", {"onnxruntime_qnn/libep.so": b"EP"})
    install(python, "acme", "1.0", {"acme/__init__.py": b"", "acme/npu_ops/__init__.py": b"", "acme/npu_ops/_ops.so": b"one"})
    asked = {"acme.npu_ops": Position("epbuild.yaml", 5, 20)}
    environment = Toolchains(tmp_path / "home").prepare(existing(python), tmp_path, [QNN], packages=asked)
    without = environment.identity([QNN])
    before = environment.identity([QNN], asked)
    assert before["libraries"].keys() - without["libraries"].keys() == {"npu_ops/_ops.so"}
    (site_of(python) / "acme/npu_ops/_ops.so").write_bytes(b"two")
    after = environment.refresh().identity([QNN], asked)
    assert after["libraries"]["npu_ops/_ops.so"] != before["libraries"]["npu_ops/_ops.so"]
    assert environment.refresh().identity([QNN]) == without, "a compile without it is not concerned"


def test_missing_custom_operator_package_is_reported_at_its_setting(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "theirs")
    install(python, "onnxruntime", "1.31.1", {"onnxruntime/capi/libonnxruntime.so.1": b"ORT"})
    install(python, "onnxruntime-qnn", "2.7.0", {"onnxruntime_qnn/libep.so": b"EP"})
    asked = {name: Position("epbuild.yaml", 5, column) for column, name in enumerate(("acme_ops", "no.such"), 20)}
    with pytest.raises(ToolchainError) as caught:
        Toolchains(tmp_path / "home").prepare(existing(python), tmp_path, [QNN], packages=asked)
    for problem, (package, where) in zip(caught.value.problems, asked.items(), strict=True):
        assert (problem.code, problem.where) == ("EPB254", where)
        assert f"'npu' has no Python package '{package}'" in problem.message
        assert problem.hint == "Install the package in the toolchain's environment, or write the path of the library itself."
