"""Kind of the action records in a remote cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epbuild.core.digest import Blob
from epbuild.plan.key import compute_action_key
from epbuild.plan.result import is_action_record
from epbuild.remote.envelope import RecordKind


def _compute_key(record: Mapping[str, Any]) -> str:
    return compute_action_key(record["document"])


def _read_artifacts(record: Mapping[str, Any]) -> dict[str, Blob]:
    return {name: Blob(blob["digest"], blob["size"]) for name, blob in record["result"]["artifacts"].items()}


def _read_log(record: Mapping[str, Any]) -> Blob:
    log = record["result"]["log"]
    return Blob(log["digest"], log["size"])


COMPILE = RecordKind("compile", _compute_key, is_action_record, _read_artifacts, _read_log)
"""Kind of the records that store results of session groups, preparations and verifications."""
