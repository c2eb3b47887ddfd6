"""Sizes of spill-fill buffers (`max_size`) in models that share a context binary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from epbuild.core.atomic import new_file
from epbuild.onnxfile.edit.rewrite import set_max_sizes
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel


def raise_max_sizes(models: Sequence[Path]) -> None:
    """Set the `max_size` of each context binary to the largest of all nodes that refer to it.

    An EP writes the size for the graphs compiled so far, so only the last model of a group has the size of the whole context.
    ONNX Runtime's tool `ep_weight_sharing_ctx_gen` makes the same change. Missing or malformed models are skipped, because the
    verifier reports them. Raises OSError.
    """
    read: dict[Path, dict[str, int]] = {}
    for model in models:
        try:
            nodes = read_header(model).ep_context_nodes
        except (MalformedModel, FileNotFoundError):
            continue
        read[model] = {}
        for node in nodes:
            if node.reference is not None:
                read[model][node.reference] = max(node.max_size, read[model].get(node.reference, 0))
    largest: dict[str, int] = {}
    for sizes in read.values():
        for reference, size in sizes.items():
            largest[reference] = max(size, largest.get(reference, 0))
    for model, sizes in read.items():
        changes = {reference: largest[reference] for reference, size in sizes.items() if size != largest[reference]}
        if changes:
            with new_file(model, durable=False) as draft:  # in the staging directory, which is temporary
                set_max_sizes(model, draft, changes)
