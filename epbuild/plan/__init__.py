"""`Recipe` → `Plan`: the ordered graph of steps, session groups, emissions and action keys. Pure: no writes, no processes."""

from epbuild.plan.key import action_key, differences, key_document
from epbuild.plan.outputs import MANIFEST
from epbuild.plan.planner import make_plan, problems_of_the_rest
from epbuild.plan.sources import Locate
from epbuild.plan.steps import Emission, Member, OptionFile, Plan, PlannedEp, PlannedTarget, SessionGroup, Step

__all__ = [
    "MANIFEST",
    "Emission",
    "Locate",
    "Member",
    "OptionFile",
    "Plan",
    "PlannedEp",
    "PlannedTarget",
    "SessionGroup",
    "Step",
    "action_key",
    "differences",
    "key_document",
    "make_plan",
    "problems_of_the_rest",
]
