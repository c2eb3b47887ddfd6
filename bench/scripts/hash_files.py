"""`python hash_files.py FILE...`: hashing of files that are new to epbuild."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from epbuild.cache.digests import Digests, StatKey


class Nothing:
    """Digest cache that is always empty."""

    def get_many(self, paths: Sequence[str]) -> Mapping[str, tuple[StatKey, str]]:
        return {}

    def put_many(self, entries: Mapping[str, tuple[StatKey, str]]) -> None:
        pass


if __name__ == "__main__":
    for path, digest in Digests(Nothing()).of_many([Path(argument) for argument in sys.argv[1:]]).items():
        print(f"{digest}  {path}")
