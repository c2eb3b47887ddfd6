"""Reference page of the requirements of ONNX Runtime's EPContext specification."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.reference.markdown import format_code, format_paragraph, format_table

_FILE = Path(__file__).with_name("specification.toml")
STATES = {
    "met": "The tests show that epbuild meets the requirement.",
    "partly": "epbuild meets a part of the requirement.",
    "missing": "epbuild does not meet the requirement.",
    "needs hardware": "epbuild does its part, but the rest can only be tried on a device or system that the tests lack.",
    "EP": "EPs or ONNX Runtime must meet the requirement. The row says what they do, or what epbuild checks.",
    "not used": "epbuild does not need this.",
}
"""Each state of a requirement, and its meaning."""
_INTRODUCTION = """\
This page lists the requirements of ONNX Runtime's [specification of EPContext
models](https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html), in their order, with the tests that show each one.
The tests run on Linux x86-64, with the real QNN on its emulator and the real OpenVINO on the CPU. Tests outside `tests/e2e` mostly
use small models made for the test, and stand-ins for EPs.
"""


def read_sections() -> list[dict[str, Any]]:
    """Return the sections of the page with their rows."""
    sections: list[dict[str, Any]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["section"]
    return sections


def build_specification_page() -> Iterator[str]:
    """Yield the parts of the page, after its title."""
    sections = read_sections()
    counts = Counter(row["state"] for section in sections for row in section["row"])
    yield format_paragraph(_INTRODUCTION)
    yield format_table(("state", "requirements", "meaning"), [(state, str(counts[state]), STATES[state]) for state in STATES])
    for section in sections:
        yield f"## {section['title']}"
        if "about" in section:
            yield format_paragraph(section["about"])
        yield format_table(("requirement", "state", "epbuild", "tests"), map(_build_row, section["row"]))


def _build_row(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return row["requirement"], row["state"], row["epbuild"], ", ".join(map(format_code, row.get("tests", ())))
