"""Reasons for nodes outside the EPs, from the log of a compile.

Some EPs log why they do not take a node only at the most verbose level, among thousands of lines about every tensor. The catalog has
regular expressions for these reasons. None of those lines is shown, and the log file keeps only the refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from epbuild.catalog.facts import NodeLogRules
from epbuild.onnxfile.read.model_header import NamedNode
from epbuild.plan.result import LeftNode
from epbuild.toolchain.process import LineHandling

VERBOSE = 0
"""Severity of a session's log that includes everything."""
MARK = "epbuild: compiling "
"""Begin of the line that the worker writes into the log before each model, followed by the model's name."""
_MAX_REASONS = 50_000
_MAX_LENGTH = 400
_DETAIL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[([VIWEF]):[^\]]*\]\s*")


class NodeLog:
    """Reader of a worker's log that collects the reasons for refused nodes, in bounded memory."""

    def __init__(self, rules: Iterable[NodeLogRules]) -> None:
        self._rules = tuple(rules)
        self._member = ""
        self._entry: LineHandling = "shown"
        self._nodes: list[tuple[str, str, str]] = []
        self._reasons: dict[tuple[str, str, str], str | None] = {}

    @property
    def is_wanted(self) -> bool:
        """True if an EP has rules for log lines. The session must then log everything."""
        return bool(self._rules)

    def read(self, line: str) -> LineHandling:
        """Read a line without colors and surrounding space. Return how to handle it."""
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
        """Return the nodes of a compiled model outside its EPs, with the logged reasons."""
        keys = ((member, node.name, node.operator.rpartition("::")[2]) for node in nodes)  # logs omit the domain
        return tuple(LeftNode(*node, self._reasons.get(key)) for node, key in zip(nodes, keys, strict=True))

    def refused(self) -> tuple[LeftNode, ...]:
        """Return the nodes of the current model that an EP logged as not taken."""
        found = ((key, reason) for key, reason in self._reasons.items() if key[0] == self._member and reason is not None)
        return tuple(LeftNode(node, operator, reason) for (_, node, operator), reason in found)

    def _begin(self, severity: str, text: str) -> None:
        self._nodes = []
        if severity not in "VI":
            self._entry = "shown"
            return
        self._entry = "kept" if any(re.search(rules.refused, text) for rules in self._rules) else "detail"

    def _goes_on(self, line: str) -> bool:
        """Return whether a line continues the entry before it. Record the nodes and reasons in it."""
        for rules in self._rules:
            if node := re.search(rules.node, line):
                self._nodes.append((self._member, node["node"], node["operator"]))
                if node["node"]:
                    self._reasons.pop(self._nodes[-1], None)  # the last entry counts
                return True
            if reason := re.search(rules.reason, line):
                self._note(reason["reason"].strip().rstrip(".")[:_MAX_LENGTH])
                return True
            if not line or re.search(rules.more, line):
                return True
        return False

    def _note(self, reason: str) -> None:
        for key in self._nodes:
            # Nodes without a name share a key: a reason is known only if it is the same for all of them.
            same = self._reasons.get(key, reason) == reason
            if key in self._reasons or len(self._reasons) < _MAX_REASONS:
                self._reasons[key] = reason if same else None
