"""Imports of a plan: it loads no module that compiles or publishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import imported_by
from tests.support.plan_recipes import RECIPE, write_models


@pytest.mark.slow
def test_plan_imports_neither_the_compiler_nor_the_publisher(tmp_path: Path) -> None:
    write_models(tmp_path)
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    found = imported_by(tmp_path, "plan")
    assert "epbuild.survey.status" in found
    assert [name for name in sorted(found) if name.startswith(("epbuild.compile", "epbuild.publish"))] == []
    assert "packaging" not in found, "it takes longer than reading the recipe"
