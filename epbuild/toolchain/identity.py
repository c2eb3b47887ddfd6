"""Toolchain records: the identity of a locked environment, from what is locked.

An action key holds the identity of a toolchain: its Python, its platform, the versions of its packages, and the SHA-256 of the files of
ONNX Runtime, the EPs and custom operators. A lock determines all of that, as it names each file by its SHA-256. So a build that has
provisioned a locked environment records its identity, and other builds know their keys without provisioning it. There is one record for
each Python package whose files are in an identity, in the store and, signed, in a remote cache.

The key of a record is the digest of everything that determines the files: the Python, the platform as Python calls it, and every package
with its version and the SHA-256 of its candidate files. If the lock leaves the installer a choice between several files, the key also has
the basis of that choice: the C library of this machine, or its macOS. A record never holds facts of the host that an EP's output may
depend on: those are read on this machine. Packages built from sources are pinned by their sources alone, and an environment may have been
changed. So an environment that exists takes precedence over its record.

A wrong record can only lead to a wrong key, and a result under that key is used only if it was signed for exactly the key's document.
Before anything is compiled, the record is compared with the environment (`session.provisioning`).
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
from epbuild.core.digest import hash_document
from epbuild.core.records import convert
from epbuild.recipe.requirement import is_same_version, normalize_name
from epbuild.remote.envelope import RecordKind
from epbuild.toolchain.environment import RUNTIME, Environment, find_ep_modules
from epbuild.toolchain.lock import LockedEnvironment, Package
from epbuild.toolchain.platforms import describe_host, get_own_platform

FORMAT = 1
KIND = "toolchain"
_TAGS = {
    "linux-x86_64": "linux-x86_64",
    "linux-arm64": "linux-aarch64",
    "windows-x86_64": "win-amd64",
    "windows-arm64": "win-arm64",
}
"""Python's name of each platform. Those of macOS are missing: they have the version that the Python was built for."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Identified(Protocol):
    """A toolchain whose identity is known, whether or not its environment exists here."""

    def identity(self, entries: Iterable[EpEntry], packages: Iterable[str] = ()) -> dict[str, Any]:
        """Return the toolchain's part of a key, for an action with these EPs and packages of custom operators."""


class ModuleIdentity(Struct, frozen=True):
    """Part of an identity: the facts of an environment and of one Python package in it."""

    python: str
    platform: str
    distributions: Mapping[str, str]
    libraries: Mapping[str, str]
    files: Mapping[str, str]


class RecordedToolchain(Struct, frozen=True):
    """A toolchain that is known only by the records of its Python packages, by name."""

    modules: Mapping[str, ModuleIdentity]

    def identity(self, entries: Iterable[EpEntry], packages: Iterable[str] = ()) -> dict[str, Any]:
        """Return the same as `Environment.identity`. Facts of the host are read from this machine."""
        used = list(entries)
        first = self.modules[RUNTIME]
        known = [self.modules[name] for name in sorted({*find_ep_modules(used), *packages} & self.modules.keys())]
        document: dict[str, Any] = {
            "python": first.python,
            "platform": first.platform,
            "distributions": dict(first.distributions),
            "libraries": {name: digest for module in known for name, digest in module.libraries.items()},
            "files": {name: digest for module in known for name, digest in module.files.items()},
        }
        host = describe_host(used)
        return document if host is None else {**document, "host": host}


def record_documents(
    locked: LockedEnvironment, platform: str, entries: Iterable[EpEntry], packages: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the documents behind the keys of a locked environment's records, by Python package.

    Empty for an environment that is not provisioned from the lock, and if an installer's choice on `platform` is unknown here.
    """
    used = list(entries)
    tag = sysconfig.get_platform() if platform == get_own_platform() else _TAGS.get(platform)
    if tag is None or locked.is_installed:
        return {}
    found = {}
    for module in sorted({*find_ep_modules(used), *packages}):
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


def find_recorded_toolchain(records: Mapping[str, Mapping[str, Any]]) -> RecordedToolchain | None:
    """Return the toolchain of sound records, given by Python package. None if there is none, or if their environments differ."""
    modules = {name: convert(record["result"], ModuleIdentity) for name, record in records.items()}
    shared = {(item.python, item.platform, tuple(sorted(item.distributions.items()))) for item in modules.values()}
    return RecordedToolchain(modules) if len(shared) == 1 and RUNTIME in modules else None


def is_toolchain_record(record: Mapping[str, Any]) -> bool:
    """Return whether a record has the shape of a toolchain record, and its result is possible for its document."""
    try:
        document: Any = record["document"]
        found = convert(record.get("result"), ModuleIdentity)
        if (document["format"], document["kind"]) != (FORMAT, KIND) or not isinstance(document["module"], str):
            return False
        if not all(_DIGEST.fullmatch(digest) for digest in (*found.libraries.values(), *found.files.values())):
            return False
        wanted = {name: version for name, version, *_ in document["packages"]}
        held = {normalize_name(name): version for name, version in found.distributions.items()}
        if (found.python, found.platform, held.keys()) != (document["python"], document["platform"], wanted.keys()):
            return False
        return all(is_same_version(held[name], version) for name, version in wanted.items())
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def record_key(document: Mapping[str, Any]) -> str:
    """Return the key of the record that has this document."""
    return hash_document(document)


def open_toolchain_records(root: Path) -> ActionRecords:
    """Return the toolchain records in the store at `root`."""
    return ActionRecords(root / "identities", is_toolchain_record)


def make_records(environment: Environment, documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the record of each document, unless the environment no longer matches its lock."""
    for document in documents:
        record = {"document": dict(document), "result": environment.fingerprint.document([document["module"]])}
        if is_toolchain_record(record):
            yield record_key(document), record


def _leaves_a_choice(locked: LockedEnvironment, module: str, entries: Iterable[EpEntry]) -> bool:
    """Return whether a distribution that may contain the module can be installed from several files."""
    names = {normalize_name(name) for entry in entries if entry.module == module for name in entry.distributions}

    def may_hold(package: Package) -> bool:
        return package.name.startswith(RUNTIME) if module == RUNTIME else not names or package.name in names

    return any(len(package.files) > 1 and may_hold(package) for package in locked.packages)


def _choice(platform: str) -> str | None:
    """Return the basis, besides Python, of an installer's choice between files for `platform`. None if it is unknown here."""
    if platform.startswith("windows-"):
        return platform
    if platform != get_own_platform():
        return None
    if platform.startswith("macos-"):
        return f"macos {machine.mac_ver()[0]}"
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "libc"
    except (ValueError, OSError):  # not the GNU C library
        return "libc"


TOOLCHAIN = RecordKind(
    KIND, lambda record: record_key(record["document"]), is_toolchain_record, lambda record: {}, is_result=False
)
"""Toolchain records as a remote cache keeps them. They have no files."""
