"""Reasons for nodes outside the EPs, from the log of a compile.

Some EPs log whether they take each node, and why not, at the most verbose level of the log alone, among thousands of lines about
every tensor. The catalog has the expressions that find it. Nothing of those lines is shown; of them, the log keeps the refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from epbuild.catalog.facts import NodeLogRules
from epbuild.onnxfile.read.model_header import NamedNode
from epbuild.plan.result import LeftNode
from epbuild.toolchain.process import Worth

VERBOSE = 0
"""The severity of a session's log at which everything is logged."""
MARK = "epbuild: compiling "
"""Begins the line that the worker writes into the log before each model, with the model's name."""
_MOST = 50_000
_LONGEST = 400
_DETAIL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[([VIWEF]):[^\]]*\]\s*")


class NodeLog:
    """The reasons that were read so far. It takes the lines of a worker's log in their order; memory is bounded."""

    def __init__(self, rules: Iterable[NodeLogRules]) -> None:
        self._rules = tuple(rules)
        self._member = ""
        self._entry: Worth = "shown"
        self._nodes: list[tuple[str, str, str]] = []
        self._reasons: dict[tuple[str, str, str], str | None] = {}

    @property
    def asked(self) -> bool:
        """Whether there is anything to read, so that the EPs are to log all they can."""
        return bool(self._rules)

    def read(self, line: str) -> Worth:
        """Read a line, without colours and without space around it; returns what it is worth."""
        if not self._rules:
            return "shown"
        if line.startswith(MARK):
            self._member, self._nodes = line.removeprefix(MARK), []
            return "detail"
        entry = _DETAIL.match(line)
        if entry is not None:
            self._begin(entry[1], line[entry.end() :])
        elif self._entry != "shown" and not self._goes_on(line):
            self._entry = "shown"
        return self._entry

    def left(self, member: str, nodes: Sequence[NamedNode]) -> tuple[LeftNode, ...]:
        """Nodes of a compiled model that are outside its EPs, with the reasons that were given."""
        keys = ((member, node.name, node.operator.rpartition("::")[2]) for node in nodes)  # logs leave the domain out
        return tuple(LeftNode(*node, self._reasons.get(key)) for node, key in zip(nodes, keys, strict=True))

    def refused(self) -> tuple[LeftNode, ...]:
        """The nodes of the last model that was begun which an EP logged as not taken."""
        found = ((key, reason) for key, reason in self._reasons.items() if key[0] == self._member and reason is not None)
        return tuple(LeftNode(node, operator, reason) for (_, node, operator), reason in found)

    def _begin(self, severity: str, text: str) -> None:
        self._nodes = []
        if severity not in "VI":
            self._entry = "shown"
            return
        self._entry = "kept" if any(re.search(rules.refused, text) for rules in self._rules) else "detail"

    def _goes_on(self, line: str) -> bool:
        """Whether a line belongs to the entry before it; if that is about nodes, takes note of it."""
        for rules in self._rules:
            if node := re.search(rules.node, line):
                self._nodes.append((self._member, node["node"], node["operator"]))
                if node["node"]:
                    self._reasons.pop(self._nodes[-1], None)  # the last entry holds
                return True
            if reason := re.search(rules.reason, line):
                self._note(reason["reason"].strip().rstrip(".")[:_LONGEST])
                return True
            if not line or re.search(rules.more, line):
                return True
        return False

    def _note(self, reason: str) -> None:
        for key in self._nodes:
            # Of nodes without a name it is unknown which of them a reason is for, unless it is that of all.
            same = self._reasons.get(key, reason) == reason
            if key in self._reasons or len(self._reasons) < _MOST:
                self._reasons[key] = reason if same else None
