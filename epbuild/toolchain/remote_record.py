"""Toolchain records as a remote cache keeps them."""

from __future__ import annotations

from epbuild.remote.envelope import RecordKind
from epbuild.toolchain.identity import KIND, is_toolchain_record, record_key

TOOLCHAIN = RecordKind(
    KIND, lambda record: record_key(record["document"]), is_toolchain_record, lambda record: {}, is_result=False
)
"""The identity of a locked environment, as `toolchain.identity` has it; it has no files."""
