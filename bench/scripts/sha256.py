"""`python sha256.py FILE`: SHA-256 of a file in the fewest lines of Python."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

with Path(sys.argv[1]).open("rb") as file:
    print(hashlib.file_digest(file, "sha256").hexdigest())
