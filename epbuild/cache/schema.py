"""The tables of a workspace's state, and their migrations.

Version 1 knew steps and outputs by their names alone, without a configuration, and had no checksums. Of its outputs the recipe is known;
its steps are taken over as those of an unknown configuration, which the next build of any recipe replaces by its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.cache.database import Damage, Migration, sealed
from epbuild.cache.memory import MEMORY_TABLES, UNKNOWN, Configuration, OutputRecord, StepRecord, put_output, put_step, step_row

if TYPE_CHECKING:
    import sqlite3

VERSION = 2
TABLES = (
    """CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
       inode TEXT NOT NULL, digest TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE measurements (subject TEXT PRIMARY KEY, seconds REAL NOT NULL, peak_rss_bytes INTEGER,
       checksum INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, text TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    *MEMORY_TABLES,
)
"""Each ends with the checksum of the row."""

_OLD_TABLES = {
    "files": "SELECT path, size, mtime_ns, ctime_ns, inode, digest FROM files",
    "measurements": "SELECT subject, seconds, peak_rss_bytes FROM measurements",
    "facts": "SELECT name, text FROM facts",
    "steps": "SELECT step, action_key, key_document, result, finished FROM steps",
}
_COPIED = {
    "files": "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)",
    "measurements": "INSERT INTO measurements VALUES (?, ?, ?, ?)",
    "facts": "INSERT INTO facts VALUES (?, ?, ?)",
}
_EMITTED, _VALID = "emitted by ", "valid recipe"  # how facts of version 1 began that are none any more


def _from_1(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA secure_delete=ON")  # it held variables of the environment as they were
    old = {name: connection.execute(query).fetchall() for name, query in _OLD_TABLES.items()}
    for name in _OLD_TABLES:
        connection.execute(f"DROP TABLE {name}")
    for statement in TABLES:
        connection.execute(statement)
    facts = dict(old["facts"])
    old["facts"] = [(name, text) for name, text in facts.items() if not name.startswith((_EMITTED, _VALID))]
    for name, statement in _COPIED.items():
        connection.executemany(statement, [sealed(*row) for row in old[name]])
    try:
        steps = [
            StepRecord(step, key, json.loads(document), json.loads(result), time)
            for step, key, document, result, time in old["steps"]
        ]
        steps = [_with_results(record) for record in steps]
        outputs = list(_outputs(facts, steps))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damage from error
    for record in steps:
        put_step(connection, step_row(record, UNKNOWN))
    for output in outputs:
        put_output(connection, output)


def _with_results(record: StepRecord) -> StepRecord:
    """A record as version 2 has it: that of an emission has the results that it was made of, and leaves its files to the output's."""
    made = record.key_document.get("made")
    if made is None or "place" not in record.result:
        return record
    result = {**record.result, "results": sorted(item["key"] for item in made.values())}
    return StepRecord(record.step, record.action_key, record.key_document, result, record.finished)


def _outputs(facts: Mapping[str, str], steps: Iterable[StepRecord]) -> Iterable[OutputRecord]:
    """The outputs that were noted. Where another one of the same step was emitted since, nothing but its files' digests is known."""
    known = {str(record.result["place"]): record for record in steps if "results" in record.result}
    found = {place: _output(record, UNKNOWN) for place, record in known.items()}
    for name, text in facts.items():
        if name.startswith(_EMITTED):
            recipe, _, place = name.removeprefix(_EMITTED).partition(": ")
            document: dict[str, Any] = json.loads(text)
            inputs = json.loads(document["inputs"])
            owner = Configuration.of(Path(recipe), inputs["settings"], inputs["variables"])
            record = known.get(place)
            if record is not None and document["files"] == {
                path: file["digest"] for path, file in record.result["files"].items()
            }:
                found[place] = _output(record, owner)
            elif place not in found:
                files = {path: {"digest": digest, "size": 0} for path, digest in document["files"].items()}
                found[place] = OutputRecord(place, document["step"], "", (), files, (owner,))
    return found.values()


def _output(record: StepRecord, owner: Configuration) -> OutputRecord:
    result = record.result
    return OutputRecord(result["place"], record.step, record.action_key, tuple(result["results"]), result["files"], (owner,))


MIGRATIONS: Mapping[int, Migration] = {1: _from_1}
"""By the version that each leads from, to the next one."""
