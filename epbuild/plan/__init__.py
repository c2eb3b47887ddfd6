"""`Recipe` → `Plan`: the ordered graph of steps, session groups, emissions and action keys. Pure: no writes, no processes."""

from epbuild.plan.key import action_key, differences, key_document
from epbuild.plan.outputs import MANIFEST
from epbuild.plan.planner import make_plan
from epbuild.plan.steps import Emission, Member, Plan, PlannedTarget, SessionGroup, Step

__all__ = [
    "MANIFEST",
    "Emission",
    "Member",
    "Plan",
    "PlannedTarget",
    "SessionGroup",
    "Step",
    "action_key",
    "differences",
    "key_document",
    "make_plan",
]
