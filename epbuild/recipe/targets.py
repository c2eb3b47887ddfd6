"""Reader of targets, toolchains and the section `cache`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from epbuild.catalog.catalog import get_full_name
from epbuild.core.errors import Position, Problem
from epbuild.recipe.address import BadAddress
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import DeviceChoice, EpChoice, Reference, Setting, Target, ToolchainSpec
from epbuild.recipe.models import read_measure
from epbuild.recipe.nodes import KeyedNode, Node, ScalarNode, get_entries
from epbuild.recipe.paths import is_library_path, use_slashes
from epbuild.recipe.problems import TEMPLATE, WRONG_VALUE, quote_text
from epbuild.recipe.remote_address import PUBLIC_KEY, CacheChoice, RemoteAddress, parse_remote
from epbuild.recipe.requirement import is_requirement, read_requirement
from epbuild.recipe.template import find_variables

_KEY_FORM = "`epbuild cache key` creates a key pair. Write its public key here: 'ed25519:' and 44 characters of Base64."
_ANY_DEVICE = DeviceChoice()
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def read_toolchain(name: str, where: Position, fields: MappingReader) -> ToolchainSpec:
    """Read the definition of a toolchain, and report invalid requirements."""
    packages, interpreter, python = fields.texts("packages"), fields.path("interpreter"), fields.text("python")
    named = [(text, where) for text, where in packages if text]
    foreign = [(text, where) for text, where in named if not is_requirement(text)]
    fields.problems += [_make_requirement_problem(text, where) for text, where in foreign]
    if "interpreter" in fields.entries:
        read = [(text, where) for text, where in named if (text, where) not in foreign]
        fields.problems += [_make_uncheckable_problem(text, where) for text, where in read if not read_requirement(text).is_plain]
    if python is not None and (python.startswith("-") or not python.isprintable()):
        message = f"invalid Python version or path {quote_text(python)}"
        fields.problems.append(
            Problem(WRONG_VALUE, message, fields.where_of("python"), "Write a version, such as '3.11', or a path.")
        )
    return ToolchainSpec(
        name=name,
        where=where,
        python=use_slashes(python, fields.where_of("python"), fields.problems) if python else python,
        packages=tuple(text for text, _ in packages),
        interpreter=interpreter.name if interpreter else None,
        platforms=tuple(dict.fromkeys(text for text, _ in fields.texts("platforms"))),
        custom_ops=_read_custom_ops(fields),
    )


def read_target(name: str, where: Position, fields: MappingReader, *, whole: bool) -> Target:
    """Read a target from one row of its definition. `whole` is False if an invalid part of the row was removed."""
    choices = [fields.of(item) for item in fields.items("eps")] or [fields]
    return Target(
        name=name,
        where=where,
        toolchain=fields.reference("toolchain"),
        eps=tuple([_read_ep(choice) for choice in choices]),
        session_options=fields.settings("session_options"),
        environment=fields.settings("environment"),
        run_options=fields.settings("run_options"),
        allow_unknown_options=fields.flag("allow_unknown_options"),
        allow_unknown_session_keys=fields.flag("allow_unknown_session_keys"),
        allow_nondeterminism=fields.flag("allow_nondeterminism"),
        measure=read_measure(fields),
        whole=whole,
    )


def _read_custom_ops(fields: MappingReader) -> tuple[Reference, ...]:
    """Read the list `custom_ops`: paths of libraries, relative to the recipe, and names of packages."""
    named = [(text, where) for text, where in fields.texts("custom_ops") if text]
    fields.problems += filter(None, (_find_custom_ops_problem(text, where) for text, where in named))
    return tuple(fields.rebased(text, where) if is_library_path(text) else Reference(text, where) for text, where in named)


def _read_ep(fields: MappingReader) -> EpChoice:
    library, named = fields.path("library"), fields.reference("ep")
    return EpChoice(
        # A template may have a short name as its value. All other short names have been written out.
        ep=Reference(get_full_name(named.name) or named.name, named.where),
        device=_read_device(fields.mapping("device")) if "device" in fields.entries else _ANY_DEVICE,
        provider_options=fields.settings("provider_options"),
        library=Setting(library.name, library.where, fields.entries["library"].name_where) if library else None,
    )


def _read_device(fields: MappingReader) -> DeviceChoice:
    kind: Any = fields.text("type")
    metadata = fields.mapping("metadata")
    return DeviceChoice(
        type=kind,
        vendor=fields.text("vendor"),
        metadata={key: metadata.text(key) or "" for key in metadata.entries},
        virtual=fields.flag("virtual"),
    )


def _make_requirement_problem(requirement: str, where: Position) -> Problem:
    hint = "Write <name>==<version>. To use your own wheel, set UV_FIND_LINKS to its folder."
    return Problem(
        WRONG_VALUE, f"invalid requirement {quote_text(requirement)}: expected a package name at the start", where, hint
    )


def _make_uncheckable_problem(requirement: str, where: Position) -> Problem:
    message = f"the requirement {quote_text(requirement)} cannot be checked in an existing environment"
    return Problem(WRONG_VALUE, message, where, "With 'interpreter', write '<name>' or '<name>==<version>'.")


def _find_custom_ops_problem(text: str, where: Position) -> Problem | None:
    """Return a problem if a text is neither the path of a library nor the import name of a package."""
    if is_library_path(text) or _MODULE.fullmatch(text):
        return None
    message = f"{quote_text(text)} is neither the path of a shared library nor the name of a Python package"
    imported = text.replace("-", "_")
    hint = "Write a path that ends in .so, .dll or .dylib, or the import name of the package."
    if _MODULE.fullmatch(imported):  # the text is the package's name for pip
        hint = (
            f"Write the import name of the package, such as {quote_text(imported)}, or the path of a library, such as './{text}'."
        )
    return Problem(WRONG_VALUE, message, where, hint)


def read_cache(fields: MappingReader) -> CacheChoice:
    """Read the `cache` section. Skip invalid values, and add a problem for each of them."""
    trust: list[str] = []
    for key, where in fields.texts("trust"):
        if PUBLIC_KEY.fullmatch(key):
            trust.append(key)
        else:  # the message does not quote the key, because it may be a secret key
            fields.problems.append(Problem(WRONG_VALUE, "invalid public key", where, _KEY_FORM))
    return CacheChoice(fields.where, _read_remote(fields), tuple(dict.fromkeys(trust)))


def find_environment_problems(cache: Node, variables: Mapping[str, KeyedNode]) -> list[Problem]:
    """Return a problem if the address of the remote cache contains an environment variable.

    The environment variable may be in the address itself or in one of the recipe's `variables`. This check prevents an untrusted
    recipe from sending any environment variable to any server.
    """
    remote = get_entries(cache).get("remote")
    if remote is None:
        return []
    named = _find_names(remote.node)
    through = (variables[name.removeprefix("vars.")].node for name in named if name.removeprefix("vars.") in variables)
    if not any(name.startswith("env.") for name in named.union(*map(_find_names, through))):
        return []
    message = "the address of a remote cache must not contain an environment variable"
    hint = "Write the full address, or set EPBUILD_REMOTE_CACHE instead."
    return [Problem(TEMPLATE, message, remote.node.where, hint)]


def _find_names(node: Node) -> frozenset[str]:
    """Return the names that the template in a node refers to."""
    return find_variables(node.value) if isinstance(node, ScalarNode) and isinstance(node.value, str) else frozenset()


def _read_remote(fields: MappingReader) -> RemoteAddress | None:
    text, where = fields.text("remote"), fields.where_of("remote")
    if not text:
        return None
    try:
        address = parse_remote(text)
    except BadAddress as error:
        fields.problems.append(Problem(WRONG_VALUE, error.message, where, error.hint))
        return None
    return replace(address, text=fields.rebased(text, where).name) if address.is_directory else address
