"""Session groups as a survey knows them: key document, expectations, sizes, ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.catalog.facts import KnownDifference
from epbuild.core.errors import Problem
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.made import Made, prepared_files
from epbuild.plan.member import Member
from epbuild.plan.request import CompileRequest
from epbuild.plan.result import CompileResult
from epbuild.plan.shapes import sized
from epbuild.plan.steps import SessionGroup
from epbuild.survey.kind import KeyInputs, Kind, StepEnd
from epbuild.toolchain.identity import Identified
from epbuild.verify.expectations import shared_bytes, unmeasured, unmet_expectations


class SessionGroups(Kind[SessionGroup, CompileResult]):
    """What compiles models, and shares weights between them."""

    doing = "staging"
    doing_again = "compiling again"
    done = "compiled"
    result = CompileResult

    def unknown(self, action: SessionGroup) -> Sequence[str]:
        return [
            f"the model '{member.name}' is not fetched yet"
            for member in action.members
            if not member.fetched and member.prepared is None
        ]

    def resolved(self, action: SessionGroup, needed: Sequence[Made], store: BlobStore) -> SessionGroup:
        """The group with its prepared members compiled from what the store has of them."""
        files = {made.action.id: prepared_files(made, store) for made in needed}
        members = (
            _sized(member.with_files(files[member.prepared])) if member.prepared in files else member for member in action.members
        )
        return replace(action, members=tuple(members))

    def document(self, action: SessionGroup, inputs: KeyInputs) -> dict[str, Any]:
        return CompileRequest.of(action, inputs.digests, inputs.toolchain).keyed

    def identity(self, action: SessionGroup, toolchain: Identified) -> dict[str, Any]:
        return toolchain.identity(*action.uses)

    def unmet(self, action: SessionGroup, result: CompileResult) -> Sequence[Problem]:
        return unmet_expectations(action, result)

    def unfinished(self, action: SessionGroup, result: CompileResult) -> Sequence[str]:
        return [f"the model '{member.name}' is not measured alone yet" for member in unmeasured(action, result)]

    def known_differences(self, action: SessionGroup) -> Sequence[KnownDifference]:
        return action.target.known_differences

    def known_to_differ(self, action: SessionGroup) -> str | None:
        return action.target.known_to_differ(reproducible=action.reproducible)

    def compares_in_meaning(self, action: SessionGroup) -> bool:
        return not action.reproducible

    def keeps_its_place(self, action: SessionGroup) -> bool:
        return action.min_shared_ratio is not None

    def size(self, action: SessionGroup) -> int:
        """As long as a prepared model is not known, that which it is made of has to do."""
        originals = (path for member in action.members if not member.fetched and member.original for path in member.original.all)
        return sum(path.stat().st_size for path in {*action.files, *originals})

    def memory(self, action: SessionGroup, measured: int | None) -> int:
        return action.memory or super().memory(action, measured)

    def ends(self, action: SessionGroup, result: CompileResult) -> Iterator[StepEnd]:
        took = result.measured.members
        for step, member in itertools.zip_longest(action.steps, action.members):
            note, size = _note(action, result, member.name if member else None)
            seconds = took.get(member.name) if member else None
            yield StepEnd(step, 0.0 if seconds is None and step != action.id else seconds, note, size)


def _sized(member: Member) -> Member:
    """A member that is compiled from the store with the shapes that its inputs get, where its graph is there."""
    if not member.asked:
        return member
    try:
        return sized(member, read_header(member.graph))
    except OSError:  # it is made again before anything is compiled
        return member


def _note(group: SessionGroup, result: CompileResult, member: str | None) -> tuple[str, int]:
    """The note on a finished compile or share step, and the bytes that it wrote: a shared binary is the share step's."""
    models = [model for model in result.models if member in (None, model.member)]
    files = {model.file for model in models if member}
    if member is None or not group.share:
        files |= {name for model in models for name in model.binaries}
    size = result.size(files)
    if member is None:
        note = f"{len(models)} models"
        if (found := shared_bytes(group, result)) is not None:
            note += f", sharing saves {found.saved:,} of {found.alone:,} bytes (ratio {found.shown_ratio})"
        if (shared := result.shared_initializers) is not None:
            note += f", weights shared in ONNX: {shared.stored_bytes:,} bytes instead of {shared.total_bytes:,}"
        return note, size
    nodes, others = len(models[0].nodes), models[0].fallback_nodes
    return ("" if (nodes, others) == (1, 0) else f"{nodes} EPContext nodes, {others} nodes left outside the EP"), size
