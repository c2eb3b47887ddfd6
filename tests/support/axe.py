"""Accessibility problems of pages, which axe-core finds: the version in the lock file of `web/`."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Page

_LOCK = Path(__file__).parents[2] / "web" / "package-lock.json"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_NAMES = "label-content-name-mismatch"
"""Experimental rule: the name of a control contains its visible text."""
_RUN = """async ([tags, names]) => {
  const { violations } = await axe.run(document, { runOnly: { type: "tag", values: tags }, rules: { [names]: { enabled: true } } });
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${html}: ${failureSummary}`));
}"""


def find_problems(page: Page) -> list[str]:
    """Return the serious and critical problems of a page."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_read_axe())
    found: list[str] = page.evaluate(_RUN, [_RULES, _NAMES])
    return found


@cache
def _read_axe() -> str:
    """Return the script of axe-core. Skip the test without npm, or fail it in CI."""
    npm = shutil.which("npm")
    if npm is None:
        assert "CI" not in os.environ, "there is no npm"
        pytest.skip("there is no npm on this machine")
    package = json.loads(_LOCK.read_text(encoding="utf-8"))["packages"]["node_modules/axe-core"]
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--prefer-offline", "--silent", f"axe-core@{package['version']}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
        [file] = Path(folder).iterdir()
        content = file.read_bytes()
    assert package["integrity"] == f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()
