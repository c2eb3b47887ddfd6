"""What each EP lets one change around its EPContext nodes, measured with released EPs: see "Merged models" in docs/relink.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Tolerance:
    """What an EP still loads and computes right."""

    contexts: int | None = None
    """How many compiled contexts one model may have; None for any number."""
    value_names: str | None = None
    """The attribute that says which inputs and outputs of the context a node's values stand for, as `value=name;` each.

    None where the values cannot be renamed.
    """
    lone_node_name: bool = False
    """Whether a node may be renamed that is the only one of its context. Others are found in the context by their names."""


STRICT: Final = Tolerance()
"""What is assumed of an EP that was not measured."""

_QNN = Tolerance(value_names="io_name_overrides", lone_node_name=True)

TOLERANCES: Final[Mapping[str, Tolerance]] = {
    "QNNExecutionProvider": _QNN,
    "QNN": _QNN,
    "OpenVINOExecutionProvider": Tolerance(contexts=1),
}
"""By what EPContext nodes have as `source`."""


def tolerance(source: str | None) -> Tolerance:
    """What the EP that a node's `source` names lets one change."""
    return TOLERANCES.get(source or "", STRICT)
