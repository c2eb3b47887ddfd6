"""`Recipe` → `Plan`: the ordered graph of steps, session groups, emissions and action keys. Pure: no writes, no processes."""

from epbuild.plan.key import Change, action_key, changes, differences, key_document
from epbuild.plan.outputs import MANIFEST
from epbuild.plan.planner import make_plan, problems_of_the_rest
from epbuild.plan.sources import Locate
from epbuild.plan.steps import Emission, Member, Merging, OptionFile, Plan, PlannedEp, PlannedTarget, SessionGroup, Step

__all__ = [
    "MANIFEST",
    "Change",
    "Emission",
    "Locate",
    "Member",
    "Merging",
    "OptionFile",
    "Plan",
    "PlannedEp",
    "PlannedTarget",
    "SessionGroup",
    "Step",
    "action_key",
    "changes",
    "differences",
    "key_document",
    "make_plan",
    "problems_of_the_rest",
]
