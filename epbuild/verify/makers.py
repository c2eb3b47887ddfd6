"""EPs that made contexts, as the catalog and a manifest know them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from epbuild.catalog.catalog import entry, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import BadValue as BadOption
from epbuild.catalog.normalize import UnknownName, find_option, normalize
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.verify.checks import ExpectedEp, read_target
from epbuild.verify.facts import Model
from epbuild.verify.manifest import Manifest
from epbuild.verify.payload import Payload


class Maker(ExpectedEp, frozen=True):
    """An EP with its catalog entry, if there is one, and the options that its contexts should be for, in the catalog's spelling."""

    entry: EpEntry | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def entry_of(source: str | None) -> EpEntry | None:
    """The catalog's entry of the EP whose EPContext nodes have this `source`."""
    return next((found for found in map(entry, known_eps()) if source in found.sources), None)


def target_of(payload: Payload, source: str | None) -> str | None:
    """What a context was made for, where the catalog knows how this EP writes it down. Raises OSError."""
    known = entry_of(source)
    return read_target(payload, known.binary.target_pattern) if known is not None and known.binary.target_pattern else None


def makers_in(manifest: Manifest | None) -> tuple[Maker, ...]:
    """The EPs of a manifest's target; none without a manifest."""
    if manifest is None:
        return ()
    makers = []
    for name, options in manifest.eps.items():
        try:
            known = entry(name, manifest.document["toolchain"]["distributions"])
        except KeyError:
            makers.append(Maker(name, (name,), options=options))
            continue
        makers.append(_maker(known, {option: _canonical(known, option, value) for option, value in options.items()}))
    return tuple(makers)


def maker_by(model: Model, node: EPContextNode) -> Maker | None:
    """The EP of a node, for what the model's compatibility string names; None where it has none."""
    known = entry_of(node.source)
    text = model.compatibility.get(known.ep) if known is not None else None
    return None if known is None or text is None else _maker(known, known.read_compatibility(text) or {})


def _maker(known: EpEntry, options: Mapping[str, str]) -> Maker:
    return Maker(known.ep, known.sources, known.binary.target_pattern, known.binary_target(options), known, options)


def _canonical(known: EpEntry, name: str, value: str) -> str:
    try:
        option = find_option(known, name)
        return normalize(option, value, booleans=known.booleans, names=known.canonical_names(name), strict=False)
    except (UnknownName, BadOption):
        return value
