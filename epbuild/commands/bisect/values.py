"""Request and result of `bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from epbuild.catalog.facts import Thresholds
from epbuild.recipe.model import MadeInputs

Fault = Literal["compile", "fallback", "numbers", "source"]
"""`compile`: the part does not compile. `fallback`: the EP does not take the part. `numbers`: the part computes other values than on the
CPU EP. `source`: the part computes NaN on the CPU EP too."""


class BisectRequest(Struct, frozen=True):
    """Compile step to examine, and the inputs and thresholds of its numbers."""

    recipe: Path
    step: str
    settings: tuple[str, ...] = ()
    inputs: Path | None = None
    made: MadeInputs | None = None
    """Settings of generated inputs. If this and `inputs` are None, the inputs in the recipe's `verify` or else the seed 0 apply."""
    asked: Thresholds = field(default_factory=Thresholds)
    max_compiles: int | None = None
    """Number of compiles, including that of the whole model, after which no smaller part is searched for.

    If None, `get_max_compiles` determines it.
    """


class PartNode(Struct, frozen=True):
    """Node of the faulty part."""

    node: str
    """Name of the node, or of its first output if the node has no name."""
    operator: str
    """Operator, with its domain unless it is ONNX's own."""
    output: str
    """Name of its first output. Empty for fallback nodes."""
    reason: str | None = None
    """Reason that the EP reported for not taking the node."""


class TensorRow(Struct, frozen=True):
    """Value in the model, computed on the CPU EP and on the target's EP."""

    tensor: str
    """Name of the value."""
    operator: str
    """Operator that computes the value."""
    expected: float
    """Largest finite magnitude on the CPU EP."""
    got: float | None
    """Largest finite magnitude on the target's EP; null if the value was not measured."""
    snr_db: float | None
    """Accuracy of the value; null if undefined or not measured."""
    bad: bool
    """True if the value is beyond the threshold."""


class Bisection(Struct, frozen=True):
    """Result of `bisect`. Without a fault, `part` is empty and no files were written."""

    step: str
    model: str
    target: str
    fault: Fault | None
    message: str
    compiles: int
    nodes: int
    """Nodes of the model that the search covered."""
    part: tuple[PartNode, ...] = ()
    complete: bool = True
    """False if the search reached its maximum number of compiles, so that a smaller part may exist."""
    tensors: tuple[TensorRow, ...] = ()
    reason: str = ""
    advice: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Files that reproduce the fault: the part as a model. If the part compiles, also its inputs and the outputs of the CPU EP."""
