"""Record of a build that did nothing, as a template for tests."""

from __future__ import annotations

import os

from epbuild.commands.reporting.build_record import BuildRecord

EMPTY = BuildRecord(
    format=1,
    epbuild="1",
    recipe="epbuild.yaml",
    configuration="ab" * 32,
    began=0.0,
    seconds=0.0,
    exit_code=0,
    machine="here",
    process=os.getpid(),
    jobs=1,
    steps=0,
    todo=0,
    runs=(),
    spans=(),
    published=(),
    remote=(),
)
