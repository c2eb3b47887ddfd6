"""Reader of a compile's log that collects the reasons for fallback nodes.

Some EPs log why they refuse a node only at the most verbose level, among thousands of lines about tensors. The catalog has
regular expressions for the reasons. Lines of this level are not shown, and the log file keeps only the refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from epbuild.catalog.facts import NodeLogRules
from epbuild.onnxfile.read.model_header import NamedNode
from epbuild.plan.result import FallbackNode
from epbuild.toolchain.process import LineHandling

VERBOSE = 0
"""Log severity of a session that logs everything."""
MARK = "epbuild: compiling "
"""Start of the line that the worker writes to the log before it compiles a model. The model's name follows."""
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
        """True if the catalog has rules for an EP's log. The session must then log everything."""
        return bool(self._rules)

    def read(self, line: str) -> LineHandling:
        """Read a line of the log, and return how to handle the line. It must have no colors and no surrounding space."""
        if not self._rules:
            return "shown"
        if line.startswith(MARK):
            self._member, self._nodes = line.removeprefix(MARK), []
            return "detail"
        entry = _DETAIL.match(line)
        if entry is not None:
            self._begin(entry[1], line[entry.end() :])
        elif self._entry != "shown" and not self._continues(line):
            self._entry = "shown"
        return self._entry

    def list_fallback_nodes(self, member: str, nodes: Sequence[NamedNode]) -> tuple[FallbackNode, ...]:
        """Return the fallback nodes of a compiled model with their logged reasons."""
        keys = ((member, node.name, node.operator.rpartition("::")[2]) for node in nodes)  # logs omit the domain
        return tuple(FallbackNode(*node, self._reasons.get(key)) for node, key in zip(nodes, keys, strict=True))

    def list_refused_nodes(self) -> tuple[FallbackNode, ...]:
        """Return the nodes of the current model that an EP refused, with the logged reasons."""
        found = ((key, reason) for key, reason in self._reasons.items() if key[0] == self._member and reason is not None)
        return tuple(FallbackNode(node, operator, reason) for (_, node, operator), reason in found)

    def _begin(self, severity: str, text: str) -> None:
        self._nodes = []
        if severity not in "VI":
            self._entry = "shown"
            return
        self._entry = "kept" if any(re.search(rules.refused, text) for rules in self._rules) else "detail"

    def _continues(self, line: str) -> bool:
        """Return whether a line continues the current log entry. Record the nodes and reasons in the line."""
        for rules in self._rules:
            if node := re.search(rules.node, line):
                self._nodes.append((self._member, node["node"], node["operator"]))
                if node["node"]:
                    self._reasons.pop(self._nodes[-1], None)  # a later entry about a node replaces an earlier one
                return True
            if reason := re.search(rules.reason, line):
                self._note(reason["reason"].strip().rstrip(".")[:_MAX_LENGTH])
                return True
            if not line or re.search(rules.more, line):
                return True
        return False

    def _note(self, reason: str) -> None:
        for key in self._nodes:
            # Nodes without a name share a key. Their reason is known only if all of them have the same reason.
            same = self._reasons.get(key, reason) == reason
            if key in self._reasons or len(self._reasons) < _MAX_REASONS:
                self._reasons[key] = reason if same else None
