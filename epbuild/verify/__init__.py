"""Checks artifacts: references, sources, targets, counts. Knows nothing of how they are built."""

from typing import TYPE_CHECKING

from epbuild.late import late
from epbuild.verify.checks import (
    CompiledModel,
    Expected,
    ExpectedEp,
    ExpectedModel,
    SharedBytes,
    check_compiled,
    check_shared_bytes,
    read_target,
)
from epbuild.verify.fallback import LeftGroup, LeftNode, Outside
from epbuild.verify.findings import Finding, Outcome
from epbuild.verify.signature import signature, source_signature

if TYPE_CHECKING:
    from epbuild.verify.artifact import Artifact, Model, NothingToVerify, find_artifacts
    from epbuild.verify.bytes_differ import DifferingBytes, FileDifference, compare_bytes
    from epbuild.verify.difference import Comparison, Difference, compare
    from epbuild.verify.faults import faulty_models
    from epbuild.verify.inspection import inspect_files, inspect_model
    from epbuild.verify.manifest import ListedFile, ListedModel, Manifest
    from epbuild.verify.payload import Payload
    from epbuild.verify.sizes import SizeChange
    from epbuild.verify.statement import read_subjects
    from epbuild.verify.static import check_artifact
    from epbuild.verify.traits import Incomparable

__all__ = [
    "Artifact",
    "Comparison",
    "CompiledModel",
    "Difference",
    "DifferingBytes",
    "Expected",
    "ExpectedEp",
    "ExpectedModel",
    "FileDifference",
    "Finding",
    "Incomparable",
    "LeftGroup",
    "LeftNode",
    "ListedFile",
    "ListedModel",
    "Manifest",
    "Model",
    "NothingToVerify",
    "Outcome",
    "Outside",
    "Payload",
    "SharedBytes",
    "SizeChange",
    "check_artifact",
    "check_compiled",
    "check_shared_bytes",
    "compare",
    "compare_bytes",
    "faulty_models",
    "find_artifacts",
    "inspect_files",
    "inspect_model",
    "read_subjects",
    "read_target",
    "signature",
    "source_signature",
]

__getattr__ = late(
    __name__,
    {
        "artifact": (
            "Artifact",
            "Model",
            "NothingToVerify",
            "find_artifacts",
        ),
        "bytes_differ": (
            "DifferingBytes",
            "FileDifference",
            "compare_bytes",
        ),
        "difference": (
            "Comparison",
            "Difference",
            "compare",
        ),
        "faults": ("faulty_models",),
        "inspection": (
            "inspect_files",
            "inspect_model",
        ),
        "manifest": (
            "ListedFile",
            "ListedModel",
            "Manifest",
        ),
        "payload": ("Payload",),
        "sizes": ("SizeChange",),
        "statement": ("read_subjects",),
        "static": ("check_artifact",),
        "traits": ("Incomparable",),
    },
)
