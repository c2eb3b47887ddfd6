"""What an action record keeps, and its shape by the kind of action: the key document and the result, as it was written.

A record's checksum says that its bytes are those that were written; this says that whoever wrote them meant what is read here, so that
no reader meets a key that is not there. Keys that are not named here are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from epbuild.cache.records import ActionRecords


class _Each:
    """Any number of values of one shape: those of a dictionary by any name, or those of a list."""

    def __init__(self, kind: type, shape: object) -> None:
        self.kind = kind
        self.shape = shape


_BLOB = {"digest": str, "size": int}
_VALUES = _Each(list, {"name": str, "type": str, "shape": (list, NoneType)})
_NODE = {"name": str, "source": (str, NoneType), "main_context": int, "embed_mode": int, "reference?": str}
_MODEL = {
    "member": str,
    "source": {"inputs": _VALUES, "outputs": _VALUES, "weights_file?": str},
    "file": str,
    "binaries": _Each(dict, str),
    "data": _Each(list, str),
    "nodes": _Each(list, _NODE),
    "fallback_nodes": int,
    "left?": _Each(list, {"node": str, "operator": str, "reason": (str, NoneType)}),
    "compatibility": _Each(dict, str),
}
_RESULT = {
    "artifacts": _Each(dict, _BLOB),
    "log": _BLOB,
    "measured": {"seconds": (int, float), "members": _Each(dict, (int, float)), "peak_memory": (int, NoneType)},
}
"""What every action comes to, whatever its kind."""
_GROUP = {
    "document": {"members": _Each(list, {"name": str})},
    "result": {
        **_RESULT,
        "models": _Each(list, _MODEL),
        "alone?": _Each(dict, int),
        "shared_initializers?": {"stored_bytes": int, "total_bytes": int},
        "source_weights?": {"stored_bytes": int, "total_bytes": int},
    },
}
"""A key with a question mark may be missing; several types: any of them."""
_NUMBER = (int, float, NoneType)
_VERIFICATION = {
    "document": {"members": _Each(list, {"name": str})},
    "result": {
        **_RESULT,
        "figures": _Each(
            list,
            {
                **dict.fromkeys(("member", "output", "kind", "evidence", "on", "reference", "at"), str),
                **dict.fromkeys(("bits", "samples", "elements", "undefined", "lost"), int),
                **dict.fromkeys(("cosine", "snr_db", "max_abs", "max_rel", "top1"), _NUMBER),
                **dict.fromkeys(("largest", "largest_got"), (int, float)),
                **dict.fromkeys(("constant", "quantised", "unshared"), bool),
                "worst": (str, NoneType),
            },
        ),
        "unjudged": _Each(list, {"member": str, "reason": str}),
    },
}
_SHAPES: Mapping[str | None, object] = {
    None: _GROUP,
    "verify": _VERIFICATION,
    "prepare": {
        "document": {"source": _Each(dict, {"graph": str})},
        "result": {
            **_RESULT,
            "model": {"file": str, "external": _Each(list, str), "subgraph_data": _Each(list, str)},
        },
    },
}
"""By the `kind` in the key document, of which that of a session group has none."""


def action_records(root: Path) -> ActionRecords:
    """The action records in the store at `root`."""
    return ActionRecords(root, is_action_record)


def is_action_record(record: Mapping[str, Any]) -> bool:
    """Whether a record has the shape of its kind of action, a model for each member, and all that its models refer to as artifacts."""
    document = record.get("document")
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str | None) or kind not in _SHAPES or not _fits(record, _SHAPES[kind]):
        return False
    result = record["result"]
    if "models" in result and [model["member"] for model in result["models"]] != [
        item["name"] for item in record["document"]["members"]
    ]:
        return False
    models = [*result.get("models", ()), *([result["model"]] if "model" in result else ())]
    lists = ("binaries", "data", "external")
    named: set[str] = {
        name for model in models for name in (model["file"], *(name for key in lists for name in model.get(key, ())))
    }
    return named.issubset(result["artifacts"])


def _fits(value: object, shape: object) -> bool:
    if isinstance(shape, _Each):
        if not isinstance(value, shape.kind):
            return False
        return all(_fits(item, shape.shape) for item in (value.values() if isinstance(value, dict) else value))  # type: ignore[attr-defined]
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            _fits(value[name], wanted) if (name := key.removesuffix("?")) in value else key.endswith("?")
            for key, wanted in shape.items()
        )
    # JSON's true is an int to Python, and no number here is one.
    return isinstance(value, shape) and isinstance(value, bool) == (shape is bool)  # type: ignore[arg-type]
