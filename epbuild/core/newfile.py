"""A file that appears whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epbuild.core.atomic import rename


@contextmanager
def new_file(path: Path, text: str, *, overwrite: bool) -> Iterator[Path]:
    """Write `text` beside `path`, hand that draft out to be looked at, and put it in place if nothing was raised meanwhile.

    A link stays one: what it leads to is written. Raises FileExistsError, without `overwrite`, where there is something at `path` by then.
    """
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        yield draft
        if not overwrite:
            path.open("x").close()
        rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)
