"""Relinking of EPContext nodes to context binaries of other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from epbuild.onnxfile.headers import parse_header
from epbuild.onnxfile.splice import Splice, splice


def relink(source: Path, destination: Path, names: Mapping[str, str]) -> None:
    """Writes to `destination` a copy of the model `source` in which each reference that is a key of `names` becomes its value.

    Names are written as given: `check_reference` checks that one can be followed. Other references, and every other byte, stay.
    Raises FileExistsError where `destination` exists, and leaves it; MalformedModel and OSError, and leaves no partial copy.
    """

    def renamed(model: BinaryIO) -> list[Splice]:
        splices = []
        for node in parse_header(model).ep_context_nodes:
            if node.reference is not None and names.get(node.reference, node.reference) != node.reference:
                text = node.reference_path[-1]
                splices.append(Splice(node.reference_path, text.start, text.end, names[node.reference].encode()))
        return splices

    splice(source, destination, renamed)
