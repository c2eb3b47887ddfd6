"""Toolchain records: identities of locked environments, known without installing.

An action key includes the identity of a toolchain: its Python, its platform, the versions of its packages, and the SHA-256 of the files of
ONNX Runtime, the EPs and custom operators. A lock determines all of these, as it names each file by its SHA-256. So a build that has
provisioned a locked environment records its identity. Other builds can then compute their keys without provisioning the environment. There
is one record for each Python package whose files are part of an identity. Records are in the store and, signed, in a remote cache.

The key of a record is the digest of everything that determines the files: the Python, Python's name of the platform, and every package with
its version and the SHA-256 of its candidate files. If the lock lets the installer choose between several files, the key also includes the
basis of that choice: the C library of this machine, or its macOS version. An EP's output may depend on facts of the host. A record never
contains such facts: they are read on this machine. Packages built from sources are pinned by their sources alone, and an environment may
have been changed. So an existing environment takes precedence over its record.

A wrong record can only lead to a wrong key. A result under that key is used only if it was signed for exactly the key's document. Before
anything is compiled, the record is compared with the environment (`session.provisioning`).
"""

from __future__ import annotations

import os
import platform as machine
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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
"""Python's name of each platform. macOS is missing, as its names include the macOS version that the Python was built for."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ModuleIdentity(Struct, frozen=True):
    """Part of a toolchain's identity: facts about the environment and one of its Python packages."""

    python: str
    platform: str
    distributions: Mapping[str, str]
    libraries: Mapping[str, str]
    files: Mapping[str, str]


class RecordedToolchain(Struct, frozen=True):
    """Toolchain that is known only from the records of its Python packages. `modules` has the records by package name."""

    modules: Mapping[str, ModuleIdentity]

    def identity(self, entries: Iterable[EpEntry], packages: Iterable[str] = ()) -> dict[str, Any]:
        """Return the toolchain's part of an action's key document, like `Environment.identity`. Facts about the host are read here."""
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


Identified = Environment | RecordedToolchain
"""Toolchain whose identity is known, even if its environment does not exist on this machine."""


def build_record_documents(
    locked: LockedEnvironment, platform: str, entries: Iterable[EpEntry], packages: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the key documents of a locked environment's records, by Python package.

    The result is empty if the environment is not provisioned from the lock. It is also empty if this machine cannot determine which files
    an installer would choose on `platform`.
    """
    used = list(entries)
    tag = sysconfig.get_platform() if platform == get_own_platform() else _TAGS.get(platform)
    if tag is None or locked.is_installed:
        return {}
    found = {}
    for module in sorted({*find_ep_modules(used), *packages}):
        chosen_by = _describe_choice(platform) if _has_choice(locked, module, used) else ""
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
    """Return the toolchain that valid records describe. `records` has one record per Python package.

    Return None if there is no record of ONNX Runtime, or if the records are of different environments.
    """
    modules = {name: convert(record["result"], ModuleIdentity) for name, record in records.items()}
    shared = {(item.python, item.platform, tuple(sorted(item.distributions.items()))) for item in modules.values()}
    return RecordedToolchain(modules) if len(shared) == 1 and RUNTIME in modules else None


def is_toolchain_record(record: Mapping[str, Any]) -> bool:
    """Return whether a record has the shape of a toolchain record and its result is consistent with its document."""
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


def compute_record_key(document: Mapping[str, Any]) -> str:
    """Return the key of the record with this document."""
    return hash_document(document)


def open_toolchain_records(root: Path) -> ActionRecords:
    """Return the toolchain records in the store at `root`."""
    return ActionRecords(root / "identities", is_toolchain_record)


def make_records(environment: Environment, documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the record of each document, unless the environment no longer matches its lock."""
    for document in documents:
        record = {"document": dict(document), "result": environment.fingerprint.document([document["module"]])}
        if is_toolchain_record(record):
            yield compute_record_key(document), record


def _has_choice(locked: LockedEnvironment, module: str, entries: Iterable[EpEntry]) -> bool:
    """Return whether a distribution that may contain `module` has several files to choose from."""
    names = {normalize_name(name) for entry in entries if entry.module == module for name in entry.distributions}

    def may_contain(package: Package) -> bool:
        return package.name.startswith(RUNTIME) if module == RUNTIME else not names or package.name in names

    return any(len(package.files) > 1 and may_contain(package) for package in locked.packages)


def _describe_choice(platform: str) -> str | None:
    """Return the basis, besides Python, on which an installer chooses between files for `platform`.

    Return None if the basis is unknown on this machine.
    """
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
    KIND, lambda record: compute_record_key(record["document"]), is_toolchain_record, lambda record: {}, is_result=False
)
"""Kind of toolchain records in a remote cache. Toolchain records have no files."""
