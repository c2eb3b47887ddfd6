"""Checks artifacts: references, sources, targets, counts. Knows nothing of how they are built."""

from epbuild.verify.checks import (
    CompiledModel,
    Expected,
    ExpectedEp,
    ExpectedModel,
    SharedBytes,
    check_compiled,
    check_expectations,
    check_shared_bytes,
    read_target,
)
from epbuild.verify.inspection import inspect_model

__all__ = [
    "CompiledModel",
    "Expected",
    "ExpectedEp",
    "ExpectedModel",
    "SharedBytes",
    "check_compiled",
    "check_expectations",
    "check_shared_bytes",
    "inspect_model",
    "read_target",
]
