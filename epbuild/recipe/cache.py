"""Reader of the `cache` section, which sets a remote cache and trusted keys."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from epbuild.core.errors import Problem
from epbuild.recipe.address import BadAddress
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.nodes import KeyedNode, MappingNode, Node, ScalarNode
from epbuild.recipe.problems import TEMPLATE, WRONG_VALUE
from epbuild.recipe.remote_address import PUBLIC_KEY, CacheChoice, RemoteAddress, parse_remote
from epbuild.recipe.template import find_variables

_KEY_FORM = "`epbuild cache key` creates a key pair. Write its public key here: 'ed25519:' and 44 characters of Base64."


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
    remote = cache.entries.get("remote") if isinstance(cache, MappingNode) else None
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
