"""Requests to workers: EPs and custom operators as they are sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from epbuild.core.safepath import real_path
from epbuild.plan.custom_ops import CustomOps
from epbuild.plan.steps import PlannedEp


def ep_request(ep: PlannedEp) -> dict[str, Any]:
    """An EP as the worker is asked to open it."""
    return {
        "name": ep.entry.ep,
        "kind": ep.entry.kind,
        "module": ep.entry.module,
        "library": str(real_path(ep.library)) if ep.library else None,
        "registration": f"{ep.entry.ep}.virtual" if ep.device.virtual else ep.entry.ep,
        "device": {
            "type": ep.device.type,
            "vendor": ep.device.vendor,
            "metadata": dict(ep.device.metadata),
            "virtual": ep.device.virtual,
            "prefer": list(ep.entry.devices),
        },
        "provider_options": dict(ep.provider_options),
    }


def custom_ops_request(custom_ops: Iterable[CustomOps]) -> list[dict[str, Any]]:
    """Custom operators as the worker is asked to register them."""
    return [
        {"name": ops.name, "module": ops.name, "library": str(real_path(ops.library)) if ops.library else None}
        for ops in custom_ops
    ]
