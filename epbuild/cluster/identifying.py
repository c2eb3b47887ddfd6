"""Identities of toolchains, asked of machines that can make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from epbuild.cache.blobs import BlobStore
from epbuild.catalog.entries import EpEntry
from epbuild.cluster.request import ActionRequest, received, sent_toolchain, written
from epbuild.core.digest import document_digest
from epbuild.core.errors import EnvironmentFailure, Position, Problem
from epbuild.core.typed_json import MalformedJson
from epbuild.plan.steps import ToolchainNeeds
from epbuild.recipe.model import ToolchainSpec
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.identity import record_documents, records_of
from epbuild.toolchain.lock_facts import LockedEnvironment
from epbuild.toolchain.platforms import platform_here

KIND = "toolchain"
_LOCK = "Lock the recipe on a machine of that kind, or build there."


class AskedToolchain(Struct, frozen=True):
    """A locked toolchain, and the keys of the records of it."""

    toolchain: ToolchainSpec
    entries: tuple[EpEntry, ...]
    records: tuple[str, ...]
    packages: Mapping[str, Position] = field(default_factory=dict)


def toolchain_request(needs: ToolchainNeeds, locked: LockedEnvironment, records: Iterable[str]) -> ActionRequest:
    """The request for the records of a toolchain, which its lock decides the keys of."""
    asked = AskedToolchain(sent_toolchain(needs.toolchain), needs.entries, tuple(sorted(records)), needs.packages)
    key = document_digest({"kind": KIND, "records": list(asked.records)})
    return ActionRequest(key, needs.toolchain.name, KIND, written(asked, {}), (), locked)


def asked_toolchain(request: ActionRequest, store: BlobStore) -> AskedToolchain:
    """The toolchain that is asked for. Raises MalformedJson."""
    return received(AskedToolchain, request.action, store)


def records_here(
    asked: AskedToolchain, locked: LockedEnvironment | None, environment: Environment
) -> dict[str, dict[str, object]]:
    """The records that are asked for, of the environment as it is on this machine, by key.

    Raises EnvironmentFailure (EPB532) where it is another than they are for.
    """
    if locked is None:
        raise MalformedJson("the toolchain is not locked")
    documents = record_documents(locked, platform_here() or "", asked.entries, asked.packages)
    found = dict(records_of(environment, documents.values()))
    if not found.keys() >= {*asked.records}:
        message = f"the toolchain '{asked.toolchain.name}' came out as another than the one that is asked for"
        raise EnvironmentFailure(Problem("EPB532", message, None, _LOCK))
    return {key: found[key] for key in asked.records}
