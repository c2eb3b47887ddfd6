"""Memory capacity: the machine's memory, or a container's lower limit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from epbuild.engine.capacity import estimate_memory, get_memory

GB = 10**9


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the control groups of a machine with 16 GB. There are no limits as long as the folder is empty."""
    monkeypatch.setattr(sys, "platform", "linux")
    sizes = {"SC_PAGE_SIZE": 4000, "SC_PHYS_PAGES": 4_000_000}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__, raising=False)  # Windows has no such function
    return tmp_path


def test_memory_size_of_this_machine_is_known() -> None:
    found = get_memory()
    assert found is not None
    assert found > 100_000_000


@pytest.mark.parametrize(
    ("file", "text", "memory"),
    [
        ("memory.max", "2000000000\n", 2 * GB),
        ("memory.max", "max\n", 16 * GB),
        ("memory/memory.limit_in_bytes", "3000000000\n", 3 * GB),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", 16 * GB),
    ],
)
def test_limit_of_a_container_is_respected(groups: Path, file: str, text: str, memory: int) -> None:
    (groups / file).parent.mkdir(exist_ok=True)
    (groups / file).write_text(text, encoding="ascii")
    assert get_memory(groups) == memory


def test_machine_memory_counts_without_a_limit(groups: Path) -> None:
    assert get_memory(groups) == 16 * GB


def test_unknown_memory_size_is_not_guessed(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert get_memory(groups) is None


@pytest.mark.parametrize(("weights", "peak"), [(500_000, 141_000_000), (2_250_000_000, 4_835_000_000)])
def test_estimate_is_between_the_measured_peak_and_1_5_times_the_peak(weights: int, peak: int) -> None:
    assert peak <= estimate_memory(weights) <= 1.5 * peak
