"""Reference page of environment variables and of the user's settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.reference.markdown import format_code, format_paragraph, format_table

_FILE = Path(__file__).with_name("environment.toml")
_STANDARD = """\
epbuild also honors these variables of the system and of other programs.
"""
_RECIPES = """\
A recipe reads any variable with `${env.NAME}`. epbuild conceals these values in logs and reports.
"""
_WORKERS = """\
EPs run in processes that inherit only `PATH`, `TMPDIR`, `TEMP` and `TMP`; on Windows also the variables that the system and its
drivers need. In these processes, `HOME` is a staging folder. To set another variable for an EP, write it under `environment` in
the recipe. The variable becomes part of the action key. Programs that install toolchains do not inherit `EPBUILD_*` variables, as
they may contain secrets.
"""


_SETTINGS = """\
epbuild reads defaults for all of your builds from `~/.config/epbuild/config.toml`, or `%APPDATA%\\epbuild\\config.toml` on
Windows. Options come first, then environment variables, then the recipe, then this file. A project cannot set or move the file, and
nothing in it runs. `epbuild doctor` and `epbuild version --json` name the file that was read.

```toml
cache_dir = "/data/epbuild"
jobs = 4
```
"""


def read_variables() -> dict[str, Any]:
    """Return the data of the page."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def build_environment_page() -> Iterator[str]:
    """Yield the parts of the page, after its title."""
    data = read_variables()
    yield "## Variables of epbuild"
    rows = ((format_code(name), found["meaning"], found["default"], found["commands"]) for name, found in data["epbuild"].items())
    yield format_table(("variable", "meaning", "default", "commands"), rows)
    yield "## Standard variables"
    yield format_paragraph(_STANDARD)
    for group in dict.fromkeys(one["group"] for one in data["standard"]):
        rows_of_group = (
            (", ".join(map(format_code, one["names"])), one["meaning"]) for one in data["standard"] if one["group"] == group
        )
        yield format_table((f"variable: {group if group.isupper() else group.lower()}", "meaning"), rows_of_group)
    yield "## Settings of the user"
    *paragraphs, example = _SETTINGS.split("\n\n")
    yield from map(format_paragraph, paragraphs)
    yield example.rstrip("\n")
    rows_of_settings = (
        (format_code(key), found["value"], found["meaning"], found["overridden"]) for key, found in data["settings"].items()
    )
    yield format_table(("key", "value", "meaning", "overridden by"), rows_of_settings)
    yield "## Variables in recipes and in workers"
    yield format_paragraph(_RECIPES)
    yield format_paragraph(_WORKERS)
