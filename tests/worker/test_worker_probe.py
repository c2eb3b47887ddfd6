"""Probe of a toolchain: names as package indexes write them, folders without an import, and one JSON document."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worker.scripts import FOLDER, load

probe: Any = load("probe")


def test_probe_reports_the_contents_of_an_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(FOLDER / "probe.py"), "onnx", "no_such_module"], capture_output=True, text=True, check=True
    )
    document = json.loads(done.stdout)
    assert document["python"] == f"cpython-{sys.version_info[0]}.{sys.version_info[1]}"
    assert "onnx" in document["distributions"]
    assert document["modules"]["no_such_module"] is None
    assert Path(document["modules"]["onnx"]).name == "onnx"


def test_distributions_have_normalized_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, version in {"Some_Package.Name": "1.0", "other": "2.0"}.items():
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert probe.list_distributions() == {"some-package-name": "1.0", "other": "2.0"}


def test_package_is_found_without_running_its_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "probed_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert probe.find_package_folder("probed_package") == str(package.resolve())


def test_single_file_module_has_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "probed_module.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert probe.find_package_folder("probed_module") is None
