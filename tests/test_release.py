"""Releases: tag, version and changelog agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.release import release_notes

ROOT = Path(__file__).parents[1]
CHANGELOG = """\
# Changelog

## [Unreleased]

## [1.1.0] - 2026-12-01

### Added
- A site. [docs/index.md](docs/index.md), [elsewhere](https://example.com).

## [1.0.0] - 2026-11-01

### Fixed
- Less.
"""


def test_release_notes_are_the_versions_section_with_absolute_links() -> None:
    assert release_notes(CHANGELOG, "v1.1.0", "1.1.0") == (
        "### Added\n- A site. [docs/index.md](https://github.com/epbuild/epbuild/blob/v1.1.0/docs/index.md), [elsewhere](https://example.com).\n"
    )
    assert release_notes(CHANGELOG, "v1.0.0", "1.0.0") == "### Fixed\n- Less.\n"


@pytest.mark.parametrize(
    ("tag", "version", "message"),
    [
        ("v1.1.0", "1.0.0", "the tag is v1.1.0, and epbuild/__init__.py has the version 1.0.0"),
        ("1.1.0", "1.1.0", "the tag is 1.1.0"),
        ("v1.2.0", "1.2.0", "no section `## [1.2.0] - YYYY-MM-DD`"),
    ],
)
def test_a_tag_with_another_version_is_refused(tag: str, version: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        release_notes(CHANGELOG, tag, version)


def test_releases_need_the_gate_and_only_publish_jobs_can_write() -> None:
    workflow: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}

    def needs(name: str) -> set[str]:
        direct = jobs[name].get("needs", [])
        direct = [direct] if isinstance(direct, str) else direct
        return set(direct).union(*(needs(other) for other in direct))

    assert [name for name, job in jobs.items() if "permissions" in job and "gate" not in needs(name)] == []
    assert "id-token" in jobs["publish"]["permissions"]
    assert any("tools.release" in step.get("run", "") for step in jobs["build"]["steps"]), "the tag is compared first"
