"""What a workspace of an earlier release remembers is not lost when a later one opens it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.digests import StatKey
from epbuild.cache.memory import Configuration
from epbuild.cache.workspace import Workspace

# The tables of version 1, as releases made them.
VERSION_1 = """
CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
       ctime_ns INTEGER NOT NULL, inode TEXT NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE steps (step TEXT PRIMARY KEY, action_key TEXT NOT NULL, key_document TEXT NOT NULL,
       result TEXT NOT NULL, finished REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE measurements (subject TEXT PRIMARY KEY, seconds REAL NOT NULL, peak_rss_bytes INTEGER)
       WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version=1;
"""
FILES = {"m.onnx": {"digest": "ab" * 32, "size": 7}}
COMPILE, EMIT, OTHER = "compile:g/t/m", "emit:g/t/directory", "emit:h/t/directory"
MAIN = Configuration.of(Path("epbuild.yaml"), ["vars.q=1"], {"TOKEN": "secret"})


def emitted(step: str, files: dict[str, Any] = FILES) -> str:
    inputs = json.dumps({"settings": ["vars.q=1"], "variables": {"TOKEN": "secret"}})
    return json.dumps({"step": step, "inputs": inputs, "files": {name: file["digest"] for name, file in files.items()}})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / ".epbuild"
    folder.mkdir()
    connection = sqlite3.connect(folder / "state.sqlite")
    connection.executescript(VERSION_1)
    connection.execute("INSERT INTO files VALUES ('m.onnx', 7, 1, 2, '3', 'digest')")
    connection.execute("INSERT INTO measurements VALUES ('compile:g/t/m', 2, NULL)")
    rows = [
        (COMPILE, "k1", "{}", '{"artifacts": {}}', 1.5),
        (EMIT, "k2", '{"made": {"compile:g/t/m": {"key": "k1"}}}', json.dumps({"files": FILES, "place": "dist/g"}), 2.5),
        ("emit:old/t/directory", "k3", '{"made": {"compile:g/t/m": {"key": "k1"}}}', json.dumps({"files": FILES}), 0.5),
    ]
    connection.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", rows)
    facts = {
        "remote https://m.example/m": "/cache/remote/a/m.onnx",
        "valid recipe": "some digest",
        "emitted by epbuild.yaml: dist/g": emitted(EMIT),
        "emitted by epbuild.yaml: dist/h": emitted(OTHER, {"h.onnx": {"digest": "cd" * 32}}),
    }
    connection.executemany("INSERT INTO facts VALUES (?, ?)", list(facts.items()))
    connection.commit()
    connection.close()
    return folder


def test_what_version_1_knew_is_known(directory: Path) -> None:
    with Workspace.open(directory) as workspace:
        assert workspace.files.get(str(directory.parent / "m.onnx")) == (StatKey(7, 1, 2, 3), "digest")
        measured = workspace.measurement(COMPILE)
        assert measured is not None
        assert (measured.seconds, measured.peak_rss_bytes) == (2, None)
        assert workspace.facts("") == {"remote https://m.example/m": "/cache/remote/a/m.onnx"}
        memory = workspace.memory(MAIN)
        assert memory.step(COMPILE) is None, "nobody knows whose it was"
        previous = memory.previous(COMPILE)
        assert previous is not None
        assert (previous.action_key, previous.finished) == ("k1", 1.5)
        assert memory.result("k1") == {"artifacts": {}}
        known, changed = (memory.output(place) for place in ("dist/g", "dist/h"))
        assert known is not None
        assert (known.step, known.action_key, known.results, known.files, known.owners) == (EMIT, "k2", ("k1",), FILES, (MAIN,))
        assert changed is not None
        assert (changed.action_key, set(changed.files), changed.owners) == ("", {"h.onnx"}, (MAIN,))
        memory.record_steps([previous])
        assert [owner for owner, step in workspace.steps() if step.step == COMPILE] == [MAIN]
    assert not (directory / "state.sqlite.damaged").exists()


def test_variables_that_version_1_kept_in_clear_are_gone(directory: Path) -> None:
    assert any(b"secret" in path.read_bytes() for path in directory.iterdir())
    Workspace.open(directory).close()
    assert not any(b"secret" in path.read_bytes() for path in directory.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE steps SET result = '{'",
        "UPDATE facts SET text = '[]'",
        "UPDATE facts SET text = CAST(x'ff' AS TEXT)",
        "DROP TABLE measurements",
        "UPDATE steps SET key_document = '{\"made\": 5}'",
    ],
)
def test_a_damaged_state_of_version_1_is_set_aside(directory: Path, damage: str) -> None:
    connection = sqlite3.connect(directory / "state.sqlite")
    connection.execute(damage)
    connection.commit()
    connection.close()
    with Workspace.open(directory) as workspace:
        assert workspace.steps() == []
        workspace.record_fact("name", "text")
    assert (directory / "state.sqlite.damaged").exists()
