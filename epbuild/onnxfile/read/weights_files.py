"""Weights files beside context binaries, which EPs find by the name of the binary."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import WeightsRule
from epbuild.core.safepath import BadReference, MissingReference, locate, shorten_reference
from epbuild.onnxfile.read.epcontext import EPContextNode, resolve
from epbuild.onnxfile.read.payload import Payload

_MAX_WEIGHTS = 100_000


class WeightsPart(Struct, frozen=True):
    """Bytes of a weights file, and the weights that they belong to. Equal weights can have the same bytes."""

    names: tuple[str, ...]
    """Names of the weights, as in the context binary."""
    offset: int
    size: int


FindEp = Callable[[str | None], EpEntry | None]
"""Function that returns the EP of the EPContext nodes with a `source`, or None if the EP is unknown.

Nodes of unknown EPs must not change, but any number of such nodes can be merged.
"""


def name_weights(reference: str, ep: EpEntry | None) -> str | None:
    """Return the reference of the weights file beside a context binary. Return None if the EP has no such file."""
    rule = ep.binary.weights if ep is not None else None
    path = PurePosixPath(reference)
    if rule is None or path.suffix != rule.beside:
        return None
    return str(path.with_name(rule.name.format(stem=path.stem)))


def find_weights(model: Path, node: EPContextNode, ep: EpEntry | None) -> str | None:
    """Return the reference of the weights file of a node's context, or None if the context has no such file.

    Raises BadReference if a file is missing, too short or outside the model's folder, or if the weights cannot be read. Raises
    OSError if the context cannot be read.
    """
    name = name_weights(node.reference, ep) if node.reference is not None else None
    if name is None or ep is None or ep.binary.weights is None:
        return None
    shown = shorten_reference(name)
    extents = _find_extents(model, node, ep.binary.weights)
    needed = max((int(match["offset"]) + int(match["size"]) for match in extents), default=0)
    try:
        size = locate(model.parent, name, "weights file").stat().st_size
    except MissingReference as error:
        if not needed:
            return None
        raise MissingReference(
            f"the weights '{shown}' of the context '{node.reference}' do not exist beside '{model.name}'"
        ) from error
    except OSError as error:
        raise BadReference(f"the weights '{shown}' of the context '{node.reference}' cannot be read: {error.strerror}") from error
    if size < needed:
        raise BadReference(f"the weights '{shown}' have {size:,} bytes; the context '{node.reference}' needs {needed:,}")
    return name


def list_weights_parts(model: Path, node: EPContextNode, ep: EpEntry | None) -> tuple[WeightsPart, ...]:
    """Return the parts of the weights file of a node's context, largest first.

    Return an empty tuple if the context names no weights, or more than 100,000. Raises BadReference and OSError if the context
    cannot be read.
    """
    if node.reference is None or ep is None or ep.binary.weights is None or name_weights(node.reference, ep) is None:
        return ()
    extents = list(itertools.islice(_find_extents(model, node, ep.binary.weights), _MAX_WEIGHTS + 1))
    if len(extents) > _MAX_WEIGHTS:
        return ()
    names: dict[tuple[int, int], list[str]] = {}
    for match in extents:
        name = match.groupdict().get("name")
        if name is not None:
            names.setdefault((int(match["offset"]), int(match["size"])), []).append(html.unescape(name.decode(errors="replace")))
    parts = (WeightsPart(tuple(found), *place) for place, found in names.items())
    return tuple(sorted(parts, key=lambda part: (-part.size, part.offset)))


def _find_extents(model: Path, node: EPContextNode, rule: WeightsRule) -> Iterator[re.Match[bytes]]:
    return Payload.whole(resolve(model, node)).find_matches(rule.extent.encode())
