"""Toolchain records: the identity of a locked environment, from what is locked.

A key holds what a toolchain is: its Python, its platform, the versions of its packages, and the SHA-256 of the files of ONNX Runtime, the
EPs and custom operators. Of a locked environment all of that follows from the lock, as it names each file by its SHA-256. So a build that
has made one writes it down, and others need not make it to know their keys: there is a record for each Python package whose files are in
an identity, kept in the store, and in a remote cache under a signature.

Its key is the digest of all that decides those files: the Python, the platform as Python calls it, every package with its version and the
SHA-256 of what it may be installed from, and, where the lock leaves the installer a choice between several files of a package that is
looked into, what it chooses by: the C library of this machine, or its macOS. What does not follow from a lock is in no record: an EP's
output may depend on this machine, and that part of an identity is read here. What an installer builds from sources is pinned by its
sources alone, and an environment may have been changed: so as soon as one is here, it counts, and not the record.

A wrong record can only lead to a wrong key, under which a result is used only if it was signed for the very document that has this key.
Nothing is compiled by a record: it is compared with the environment first (`commands.provisioning`).
"""

from __future__ import annotations

import os
import platform as machine
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from epbuild.cache.records import ActionRecords
from epbuild.catalog.entries import EpEntry
from epbuild.core.digest import document_digest
from epbuild.core.typed_json import MalformedJson, from_json
from epbuild.recipe.requirement import is_same_version, plain_name
from epbuild.remote.envelope import RecordKind
from epbuild.toolchain.environment import RUNTIME, Environment, modules_of
from epbuild.toolchain.lock import LockedEnvironment, Package
from epbuild.toolchain.platforms import host_identity, platform_here

FORMAT = 1
KIND = "toolchain"
_TAGS = {
    "linux-x86_64": "linux-x86_64",
    "linux-arm64": "linux-aarch64",
    "windows-x86_64": "win-amd64",
    "windows-arm64": "win-arm64",
}
"""What Python calls a platform, by the name that a recipe has for it; of macOS it also has the system that a Python was built for."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Identified(Protocol):
    """A toolchain whose identity is known, whether or not it is here."""

    def identity(self, entries: Iterable[EpEntry], packages: Iterable[str] = ()) -> dict[str, Any]:
        """What it is to an action that uses these EPs, and these packages of custom operators, as a key holds it."""


class ModuleIdentity(Struct, frozen=True):
    """What an identity has of an environment and of one Python package in it."""

    python: str
    platform: str
    distributions: Mapping[str, str]
    libraries: Mapping[str, str]
    files: Mapping[str, str]


class RecordedToolchain(Struct, frozen=True):
    """A toolchain that is known by the records of its Python packages, by name."""

    modules: Mapping[str, ModuleIdentity]

    def identity(self, entries: Iterable[EpEntry], packages: Iterable[str] = ()) -> dict[str, Any]:
        """As `Environment.identity` has it; what depends on the host is read from this machine."""
        used = list(entries)
        first = self.modules[RUNTIME]
        known = [self.modules[name] for name in sorted({*modules_of(used), *packages} & self.modules.keys())]
        document: dict[str, Any] = {
            "python": first.python,
            "platform": first.platform,
            "distributions": dict(first.distributions),
            "libraries": {name: digest for module in known for name, digest in module.libraries.items()},
            "files": {name: digest for module in known for name, digest in module.files.items()},
        }
        host = host_identity(used)
        return document if host is None else {**document, "host": host}


def record_documents(
    locked: LockedEnvironment, platform: str, entries: Iterable[EpEntry], packages: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """The documents that the records of a locked environment have their keys by, one for each Python package that is looked into.

    None for an environment that is not made from the lock, and where it is not known here what an installer on `platform` would choose.
    """
    used = list(entries)
    tag = sysconfig.get_platform() if platform == platform_here() else _TAGS.get(platform)
    if tag is None or locked.is_installed:
        return {}
    found = {}
    for module in sorted({*modules_of(used), *packages}):
        chosen_by = _choice(platform) if _leaves_a_choice(locked, module, used) else ""
        if chosen_by is None:
            return {}
        found[module] = {
            "format": FORMAT,
            "kind": KIND,
            "module": module,
            "python": locked.python,
            "platform": tag,
            "packages": [[package.name, package.version, *package.files] for package in locked.packages],
            "chosen_by": chosen_by,
        }
    return found


def recorded_toolchain(records: Mapping[str, Mapping[str, Any]]) -> RecordedToolchain | None:
    """The toolchain of sound records, by Python package; None where there is none, or they are not of one environment."""
    modules = {name: from_json(ModuleIdentity, record["result"]) for name, record in records.items()}
    shared = {(item.python, item.platform, tuple(sorted(item.distributions.items()))) for item in modules.values()}
    return RecordedToolchain(modules) if len(shared) == 1 and RUNTIME in modules else None


def is_toolchain_record(record: Mapping[str, Any]) -> bool:
    """Whether a record has the shape of a toolchain's, and what it states is possible for what its document has."""
    try:
        document: Any = record["document"]
        found = from_json(ModuleIdentity, record.get("result"))
        if (document["format"], document["kind"]) != (FORMAT, KIND) or not isinstance(document["module"], str):
            return False
        if not all(_DIGEST.fullmatch(digest) for digest in (*found.libraries.values(), *found.files.values())):
            return False
        wanted = {name: version for name, version, *_ in document["packages"]}
        held = {plain_name(name): version for name, version in found.distributions.items()}
        if (found.python, found.platform, held.keys()) != (document["python"], document["platform"], wanted.keys()):
            return False
        return all(is_same_version(held[name], version) for name, version in wanted.items())
    except (MalformedJson, KeyError, TypeError, ValueError, AttributeError):
        return False


def record_key(document: Mapping[str, Any]) -> str:
    """The key of the record that has this document."""
    return document_digest(document)


def toolchain_records(root: Path) -> ActionRecords:
    """The toolchain records in the store at `root`, by key."""
    return ActionRecords(root / "identities", is_toolchain_record)


def records_of(environment: Environment, documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of an environment that was made from what is locked, by key; none where it has become another one."""
    for document in documents:
        record = {"document": dict(document), "result": environment.fingerprint.document([document["module"]])}
        if is_toolchain_record(record):
            yield record_key(document), record


def _leaves_a_choice(locked: LockedEnvironment, module: str, entries: Iterable[EpEntry]) -> bool:
    """Whether the package that a Python package comes in may be installed from several files."""
    names = {plain_name(name) for entry in entries if entry.module == module for name in entry.distributions}

    def may_hold(package: Package) -> bool:
        return package.name.startswith(RUNTIME) if module == RUNTIME else not names or package.name in names

    return any(len(package.files) > 1 and may_hold(package) for package in locked.packages)


def _choice(platform: str) -> str | None:
    """What an installer chooses by between files for `platform`, beside Python; None where that is not known here."""
    if platform.startswith("windows-"):
        return platform
    if platform != platform_here():
        return None
    if platform.startswith("macos-"):
        return f"macos {machine.mac_ver()[0]}"
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "libc"
    except (ValueError, OSError):  # one that is not GNU's
        return "libc"


TOOLCHAIN = RecordKind(
    KIND, lambda record: record_key(record["document"]), is_toolchain_record, lambda record: {}, is_result=False
)
"""The identity of a locked environment, as `toolchain.identity` has it; it has no files."""
