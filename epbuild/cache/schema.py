"""The tables of a workspace's state."""

from __future__ import annotations

from epbuild.cache.memory import MEMORY_TABLES

VERSION = 3
TABLES = (
    """CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
       inode TEXT NOT NULL, digest TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE measurements (subject TEXT PRIMARY KEY, seconds REAL NOT NULL, peak_rss_bytes INTEGER,
       checksum INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, text TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    *MEMORY_TABLES,
)
"""Each ends with the checksum of the row."""
