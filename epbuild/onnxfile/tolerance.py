"""What an EP lets one change around its EPContext nodes, as merging asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class ContextTolerance(Protocol):
    """What an EP still loads and computes right: the catalog has it, measured with released EPs."""

    @property
    def contexts(self) -> int | None:
        """How many compiled contexts one model may have; None: any number."""

    @property
    def value_names(self) -> str | None:
        """The attribute that has the names of the context's own inputs and outputs; None: values cannot be renamed."""

    @property
    def lone_node_name(self) -> bool:
        """Whether a node may be renamed that is the only one of its context."""


Tolerances = Mapping[str, ContextTolerance]
"""By what EPContext nodes have as `source`; of another source nothing may be changed, and any number of contexts be merged."""
