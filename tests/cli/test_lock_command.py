"""`epbuild lock` with the real installer, on wheels in a folder."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
from packaging.pylock import Pylock

from epbuild.toolchain.platforms import get_own_platform
from tests.support.commands import RECIPE, epbuild, write_model
from tests.support.packages import only_from, write_wheel
from tests.support.recipe_texts import changed

pytestmark = pytest.mark.slow

HERE = str(get_own_platform())
PYTHON = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
PACKAGES = "[onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]"


class Checkout:
    """A folder with a recipe and no model, and an installer that finds only some wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        self.wheels = folder / "wheels"
        self.variables = {**only_from(self.wheels, folder / "uv"), "EPBUILD_TOOLCHAIN_DIR": str(folder / "toolchains")}
        self.write_recipe()
        write_wheel(self.wheels, "onnxruntime", "1.31.1", "numpy", "pyreadline3; sys_platform == 'win32'")
        write_wheel(self.wheels, "onnxruntime-qnn", "2.7.0")
        write_wheel(self.wheels, "pyreadline3", "3.5.6")
        write_wheel(self.wheels, "numpy", "2.4.6")

    def write_recipe(self, *changes: tuple[str, str]) -> None:
        (self.folder / "epbuild.yaml").write_text(changed(RECIPE, *changes), encoding="utf-8")

    @property
    def place(self) -> Path:
        return self.folder / "epbuild.lock"

    @property
    def text(self) -> str:
        return self.place.read_text(encoding="utf-8")

    def epbuild(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return epbuild(self.folder, *arguments, **self.variables)

    def lock(self, *arguments: str) -> list[str]:
        """Run a `lock` that has to succeed, and return its lines without durations."""
        done = self.epbuild("lock", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if not line.startswith("locked ")]

    def refusal(self, code: int, *arguments: str) -> str:
        """Run a `lock` that has to fail and to keep the lock unchanged, and return its errors."""
        before = self.place.read_bytes() if self.place.exists() else None
        done = self.epbuild("lock", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        assert (self.place.read_bytes() if self.place.exists() else None) == before
        return done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_first_lock_lists_every_package_with_its_digest(checkout: Checkout) -> None:
    told = checkout.lock()
    assert f"added    toolchain qnn  numpy 2.4.6  ({HERE})" in told
    assert told[-1].startswith("Wrote epbuild.lock: 1 toolchain, ")
    for distribution, version in (("onnxruntime", "1.31.1"), ("onnxruntime-qnn", "2.7.0"), ("numpy", "2.4.6")):
        wheel = checkout.wheels / f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert f'toolchain.qnn.{HERE}.{distribution} = ["{version}", "sha256:{digest}"]' in checkout.text.splitlines()
    assert f'toolchain.qnn.{HERE}.Python = "{PYTHON}"' in checkout.text.splitlines()
    assert 'recipe = "tiny"' in checkout.text.splitlines()


def test_a_lock_contains_no_address_and_no_local_path(checkout: Checkout) -> None:
    checkout.lock()
    assert "://" not in checkout.text
    assert "wheels" not in checkout.text
    assert str(checkout.folder) not in checkout.text


def test_locking_again_changes_nothing(checkout: Checkout) -> None:
    checkout.lock()
    before = (checkout.place.read_bytes(), checkout.place.stat().st_mtime_ns)
    assert checkout.lock() == [f"epbuild.lock is up to date: 1 toolchain, {3 + HERE.startswith('windows')} packages, 1 platform"]
    assert (checkout.place.read_bytes(), checkout.place.stat().st_mtime_ns) == before


def test_locks_from_two_checkouts_are_identical(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        checkout = Checkout(tmp_path / name)
        checkout.lock()
        texts.append(checkout.place.read_bytes())
    assert texts[0] == texts[1]


def test_lock_check_writes_nothing_and_reports_an_outdated_lock(checkout: Checkout) -> None:
    done = checkout.epbuild("lock", "--check")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "epbuild.lock is out of date; run `epbuild lock` to update it."
    assert not checkout.place.exists()
    checkout.lock()
    assert checkout.epbuild("lock", "--check").returncode == 0


def test_locked_versions_are_kept_until_an_upgrade_is_requested(checkout: Checkout) -> None:
    checkout.lock()
    before = checkout.text
    write_wheel(checkout.wheels, "numpy", "2.5.5")
    write_wheel(checkout.wheels, "extra", "1.0")
    assert checkout.lock()[-1].startswith("epbuild.lock is up to date")
    checkout.write_recipe((PACKAGES, "[onnxruntime==1.31.1, onnxruntime-qnn==2.7.0, extra]"))
    assert checkout.lock()[:-1] == [f"added    toolchain qnn  extra 1.0  ({HERE})"]
    checkout.write_recipe()
    assert checkout.lock("-P", "NumPy")[:-1] == [
        f"removed  toolchain qnn  extra 1.0  ({HERE})",
        f"updated  toolchain qnn  numpy 2.4.6 -> 2.5.5  ({HERE})",
    ]
    checkout.place.write_text(before, encoding="utf-8")
    assert checkout.lock("--upgrade")[:-1] == [f"updated  toolchain qnn  numpy 2.4.6 -> 2.5.5  ({HERE})"]


def test_a_new_file_of_a_locked_version_does_not_change_the_lock(checkout: Checkout) -> None:
    checkout.lock()
    before = checkout.text
    general = checkout.wheels / "numpy-2.4.6-py3-none-any.whl"
    (checkout.wheels / "numpy-2.4.6-py2.py3-none-any.whl").write_bytes(general.read_bytes() + b"\0")
    assert checkout.lock()[-1].startswith("epbuild.lock is up to date")
    assert checkout.text == before
    checkout.place.unlink()
    checkout.lock()
    [one], [two] = (re.findall(r"\.numpy = .*", text) for text in (before, checkout.text))
    assert (one.count("sha256:"), two.count("sha256:")) == (1, 2)


def test_upgrading_an_unknown_package_is_refused(checkout: Checkout) -> None:
    checkout.lock()
    told = checkout.refusal(2, "--upgrade-package", "nunpy")
    assert "cannot upgrade 'nunpy': no toolchain or model of the recipe uses this package. Did you mean 'numpy'? [EPB248]" in told


def test_a_toolchain_is_locked_for_every_platform_that_it_names(checkout: Checkout) -> None:
    checkout.write_recipe((PACKAGES, f"{PACKAGES}\n    platforms: [windows-arm64, linux-x86_64]"))
    told = checkout.lock()
    assert "added    toolchain qnn  numpy 2.4.6  (linux-x86_64, windows-arm64)" in told
    assert "added    toolchain qnn  pyreadline3 3.5.6  (windows-arm64)" in told
    assert told[-1] == "Wrote epbuild.lock: 1 toolchain, 4 packages, 2 platforms"


def test_locking_here_keeps_entries_of_other_platforms(checkout: Checkout) -> None:
    other = "linux-arm64" if HERE != "linux-arm64" else "linux-x86_64"
    checkout.write_recipe((PACKAGES, f"{PACKAGES}\n    platforms: [{other}]"))
    checkout.lock()
    checkout.write_recipe()
    write_wheel(checkout.wheels, "numpy", "2.5.5")
    assert f"added    toolchain qnn  numpy 2.4.6  ({HERE})" in checkout.lock(), "another version than on the other platform"
    assert f'toolchain.qnn.{other}.Python = "{PYTHON}"' in checkout.text


def test_a_merge_conflict_in_a_lock_is_resolved_with_its_versions(checkout: Checkout) -> None:
    checkout.lock()
    good = checkout.text
    write_wheel(checkout.wheels, "numpy", "2.5.5")
    line = next(line for line in good.splitlines() if ".numpy = " in line)
    checkout.place.write_text(
        good.replace(line, f"<<<<<<< ours\n{line}\n=======\n{line.replace('2.4.6', '2.5.5')}\n>>>>>>> theirs"), encoding="utf-8"
    )
    done = checkout.epbuild("lock")
    assert done.returncode == 0
    assert (
        "warning: the lock has a merge conflict. `epbuild lock` rewrites the lock and keeps its readable versions. [EPB242]"
        in done.stderr
    )
    assert checkout.text == good


def test_a_lock_of_a_newer_epbuild_is_not_replaced(checkout: Checkout) -> None:
    checkout.place.write_text("epbuild-lock = 99\n", encoding="utf-8")
    assert "the lock has a format that this epbuild does not support" in checkout.refusal(2)


def test_another_recipe_in_the_same_folder_has_its_own_lock(checkout: Checkout) -> None:
    checkout.lock()
    before = checkout.place.read_bytes()
    (checkout.folder / "zoo.yaml").write_text(RECIPE.replace("name: tiny", "name: zoo"), encoding="utf-8")
    assert checkout.lock("zoo.yaml")[-1].startswith("Wrote zoo.lock: ")
    assert checkout.place.read_bytes() == before
    assert 'recipe = "zoo"' in (checkout.folder / "zoo.lock").read_text(encoding="utf-8").splitlines()


def test_replacing_the_lock_of_a_renamed_recipe_is_reported(checkout: Checkout) -> None:
    checkout.lock()
    checkout.write_recipe(("name: tiny", "name: other"))
    assert checkout.lock()[0] == "updated  recipe tiny -> other"


def test_a_missing_package_is_reported_with_the_message_of_uv(checkout: Checkout) -> None:
    checkout.lock()
    checkout.write_recipe(("onnxruntime-qnn==2.7.0", "onnxruntime-qnn==9.9.9"))
    told = checkout.refusal(3)
    assert f"epbuild.yaml:4:3: error: toolchain 'qnn' could not be locked for {HERE}; uv reported: " in told
    assert "[EPB309]" in told


def test_a_package_specified_by_path_or_address_cannot_be_locked(checkout: Checkout) -> None:
    wheel = "numpy @ https://wheels.example/numpy-2.4.6-py3-none-any.whl"
    checkout.write_recipe((PACKAGES, f"['{wheel}']"))
    assert f"toolchain 'qnn' cannot be locked: '{wheel}' names a location instead of a version." in checkout.refusal(3)


def test_an_unknown_ep_is_reported_at_its_position(checkout: Checkout) -> None:
    checkout.write_recipe(("ep: QNNExecutionProvider", "ep: QNExecutionProvider"))
    assert "epbuild.yaml:11:9: error: unknown EP 'QNExecutionProvider'" in checkout.refusal(2)


def test_a_model_that_the_recipe_pins_is_locked_without_being_fetched(checkout: Checkout) -> None:
    pins = f"sha256: {'a' * 64}, data_sha256: {{relu.bin: {'b' * 64}}}"
    checkout.write_recipe(("relu: relu.onnx", f"relu: {{path: 'https://models.example/relu.onnx', {pins}}}"))
    told = checkout.lock()
    assert "added    model relu aaaaaaaaaaaa" in told
    assert {f'model.relu.graph = "sha256:{"a" * 64}"', f'model.relu.data."relu.bin" = "sha256:{"b" * 64}"'} <= set(
        checkout.text.splitlines()
    )
    assert "models.example" not in checkout.text


def test_a_variable_can_be_set_for_a_lock_as_for_a_build(checkout: Checkout) -> None:
    write_wheel(checkout.wheels, "onnxruntime-qnn", "2.8.0")
    checkout.write_recipe(
        ("name: tiny", "name: tiny\nvars: {qnn: 2.7.0}"), ("onnxruntime-qnn==2.7.0", "'onnxruntime-qnn==${vars.qnn}'")
    )
    assert f"added    toolchain qnn  onnxruntime-qnn 2.8.0  ({HERE})" in checkout.lock("--set", "vars.qnn=2.8.0")


def test_an_existing_environment_is_locked_with_its_installed_packages(checkout: Checkout) -> None:
    folder = checkout.folder / "vendor"
    venv.EnvBuilder(with_pip=False, symlinks=sys.platform != "win32").create(folder)
    site = next(folder.glob("[Ll]ib/python*/site-packages"), folder / "Lib/site-packages")
    for distribution, version in (("onnxruntime", "1.31.1"), ("onnxruntime_qnn", "2.7.0")):
        metadata = site / f"{distribution}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8")
    python = "vendor/Scripts/python.exe" if sys.platform == "win32" else "vendor/bin/python"
    checkout.write_recipe((f"packages: {PACKAGES}", f"interpreter: {python}"))
    checkout.lock()
    assert [line for line in checkout.text.splitlines() if line.startswith("toolchain")] == [
        f'toolchain.qnn.{HERE}.Python = "{PYTHON}"',
        f'toolchain.qnn.{HERE}.onnxruntime = ["1.31.1", "installed"]',
        f'toolchain.qnn.{HERE}.onnxruntime-qnn = ["2.7.0", "installed"]',
    ]


def test_a_missing_environment_is_reported_and_other_platforms_are_kept(checkout: Checkout) -> None:
    other = "windows-x86_64" if HERE != "windows-x86_64" else "linux-x86_64"
    checkout.write_recipe((f"packages: {PACKAGES}", "interpreter: C:/nowhere/python.exe"))
    environment = f"toolchain.qnn.{other}"
    elsewhere = f'{environment}.Python = "cpython-3.10"\n{environment}.onnxruntime = ["1.22.0", "installed"]\n'
    checkout.place.write_text(f'epbuild-lock = 2\nrecipe = "tiny"\n{elsewhere}', encoding="utf-8")
    done = checkout.epbuild("lock")
    assert done.returncode == 0
    assert (
        "warning: toolchain 'qnn' is not locked for this platform: the toolchain's interpreter does not exist on this machine."
        in done.stderr
    )
    assert elsewhere in checkout.text


def test_changes_of_a_lock_are_one_json_document(checkout: Checkout) -> None:
    done = checkout.epbuild("lock", "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert {key: document[key] for key in ("format", "recipe", "lock", "changed", "written", "warnings")} == {
        "format": 1,
        "recipe": "epbuild.yaml",
        "lock": "epbuild.lock",
        "changed": True,
        "written": True,
        "warnings": [],
    }
    assert {
        "kind": "added",
        "about": "package",
        "name": "numpy",
        "old": None,
        "new": "2.4.6",
        "toolchain": "qnn",
        "platforms": [HERE],
    } in document["changes"]
    again = json.loads(checkout.epbuild("lock", "--check", "--json").stdout)
    assert (again["changed"], again["written"], again["changes"]) == (False, False, [])


@pytest.mark.parametrize("command", [["plan"], ["run"], ["run", "--check"], ["run", "--dry-run"]])
def test_locked_without_a_lock_exits_with_2(checkout: Checkout, command: list[str]) -> None:
    done = checkout.epbuild(*command, "--locked")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--locked needs a lock, but epbuild.lock does not exist beside the recipe." in done.stderr
    assert "[EPB241]" in done.stderr
    assert not (checkout.folder / ".epbuild").exists()


def test_a_lock_saved_by_a_windows_editor_is_read(checkout: Checkout) -> None:
    checkout.lock()
    text = checkout.place.read_bytes()
    checkout.place.write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert checkout.lock() == ["epbuild.lock is up to date: 1 toolchain, 3 packages, 1 platform"]
    checkout.epbuild("plan", "--locked")
    assert "EPB242" not in checkout.epbuild("run", "--locked", "--dry-run").stderr


@pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")
def test_a_lock_that_is_a_link_stays_a_link(checkout: Checkout) -> None:
    elsewhere = checkout.folder / "locks" / "shared.lock"
    elsewhere.parent.mkdir()
    checkout.place.symlink_to("locks/shared.lock")
    checkout.lock()
    assert checkout.place.is_symlink()
    assert elsewhere.read_text(encoding="utf-8").startswith("# Exact versions of this recipe's toolchains")
    assert [path.name for path in elsewhere.parent.iterdir()] == ["shared.lock"]


def test_an_unwritable_lock_is_reported_with_its_code(checkout: Checkout) -> None:
    checkout.place.symlink_to("nowhere/epbuild.lock")  # as in a read-only folder, but for every user
    assert "EPB518" in checkout.refusal(3)


def test_a_model_of_a_wheel_is_locked_with_its_bytes_and_other_bytes_are_refused(checkout: Checkout) -> None:
    write_model(checkout.folder / "relu.onnx")
    model = (checkout.folder / "relu.onnx").read_bytes()
    write_wheel(checkout.wheels, "my-models", "1.0", files={"my_models/net.onnx": model})
    checkout.write_recipe(("relu: relu.onnx", "relu: package:my-models==1.0/net.onnx"))
    assert "has not been fetched yet" in checkout.epbuild("plan").stdout
    told = checkout.lock()
    digest = hashlib.sha256(model).hexdigest()
    assert "fetched           model relu" in told
    assert f'model.relu.graph = "sha256:{digest}"' in checkout.text.splitlines()
    checkout.place.write_text(checkout.text.replace(digest, "0" * 64), encoding="utf-8")
    assert "EPB247" in checkout.epbuild("plan").stderr
    refused = checkout.epbuild("plan", "--locked")
    assert refused.returncode == 2
    assert "differ from epbuild.lock: graph" in refused.stderr


def test_the_wheel_of_a_model_is_locked_and_another_wheel_is_refused(checkout: Checkout) -> None:
    write_model(checkout.folder / "relu.onnx")
    model = (checkout.folder / "relu.onnx").read_bytes()

    def release(net: bytes) -> str:
        wheel = write_wheel(checkout.wheels, "my-models", "1.0", files={"my_models/net.onnx": net})
        return hashlib.sha256(wheel.read_bytes()).hexdigest()

    def anew(*arguments: str) -> subprocess.CompletedProcess[str]:
        """Run epbuild as a user with empty caches."""
        caches = {name: str(checkout.folder / f"other-{name}") for name in ("EPBUILD_CACHE_DIR", "UV_CACHE_DIR")}
        return epbuild(checkout.folder, *arguments, **{**checkout.variables, **caches})

    locked = release(model)
    checkout.write_recipe(("relu: relu.onnx", "relu: package:my-models==1.0/net.onnx"))
    told = checkout.lock()
    assert "added    wheel my-models 1.0" in told
    assert told[-1].endswith(", 1 remote model, 1 wheel")
    assert f'wheel.my-models."1.0" = ["sha256:{locked}"]' in checkout.text.splitlines()
    assert checkout.epbuild("lock", "--check").returncode == 0

    older = checkout.text
    checkout.place.write_text(older.replace(f'wheel.my-models."1.0" = ["sha256:{locked}"]\n', ""), encoding="utf-8")
    assert "does not have the wheel of my-models==1.0" in checkout.epbuild("plan").stderr
    assert checkout.epbuild("plan", "--locked").returncode == 2
    assert checkout.epbuild("lock", "--check").returncode == 1
    checkout.lock()
    assert checkout.text == older

    write_model(checkout.folder / "relu.onnx", "Sigmoid")
    changed = (checkout.folder / "relu.onnx").read_bytes()
    other = release(changed)
    for arguments in (["run"], ["run", "--locked"]):
        (checkout.folder / ".epbuild").rename(checkout.folder / f".before-{len(arguments)}")
        done = anew(*arguments)
        assert done.returncode == 3
        assert "epbuild.yaml:" in done.stderr
        assert f"is not in the lock and was not unpacked: its sha256 is {other}." in done.stderr
        assert "[EPB321]" in done.stderr
    assert "EPB321" not in checkout.epbuild("lock", "-P", "my-models").stderr
    assert f'wheel.my-models."1.0" = ["sha256:{other}"]' in checkout.text.splitlines()
    # The earlier download is still here, but the lock no longer names it.
    assert f'model.relu.graph = "sha256:{hashlib.sha256(changed).hexdigest()}"' in checkout.text.splitlines()
    assert "EPB247" not in checkout.epbuild("plan", "--locked").stderr


def test_a_toolchain_is_exported_for_other_installers(checkout: Checkout, tmp_path: Path) -> None:
    """Export the files of the lock with their locations. `packaging` reads the export, and uv installs from it."""
    told = checkout.lock("--export")
    place = checkout.folder / "pylock.qnn.toml"
    assert told[-1] == f"Wrote {place.name}: toolchain qnn"
    read = Pylock.from_dict(tomllib.loads(place.read_text(encoding="utf-8")))
    assert {str(package.name) for package in read.packages} == {"numpy", "onnxruntime", "onnxruntime-qnn"}
    toolchain = tomllib.loads(checkout.text)["toolchain"]["qnn"][HERE]
    locked = {file.removeprefix("sha256:") for name in toolchain if name != "Python" for file in toolchain[name][1:]}
    assert {wheel.hashes["sha256"] for package in read.packages for wheel in package.wheels or ()} == locked
    (tmp_path / "target").mkdir()
    command = [
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-index",
        "--target",
        str(tmp_path / "target"),
        "--requirements",
        str(place),
    ]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    assert any(path.name.startswith("numpy-2.4.6") for path in (tmp_path / "target").iterdir())


def test_an_export_lists_packages_of_each_platform_and_is_repeatable(checkout: Checkout) -> None:
    checkout.write_recipe((PACKAGES, f"{PACKAGES}\n    platforms: [linux-x86_64, windows-arm64]"))
    checkout.lock("--export")
    text = (checkout.folder / "pylock.qnn.toml").read_text(encoding="utf-8")
    read = Pylock.from_dict(tomllib.loads(text))
    assert [str(marker) for marker in read.environments or ()] == [
        'sys_platform == "linux" and platform_machine == "x86_64"',
        'sys_platform == "win32" and platform_machine == "ARM64"',
    ]
    markers = {str(package.name): str(package.marker) for package in read.packages if package.marker}
    assert markers == {"pyreadline3": 'sys_platform == "win32" and platform_machine == "ARM64"'}
    checkout.lock("--export")
    assert (checkout.folder / "pylock.qnn.toml").read_text(encoding="utf-8") == text
