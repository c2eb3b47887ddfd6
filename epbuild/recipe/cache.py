"""The `cache` section of a recipe: a remote cache, and whose results are used."""

from __future__ import annotations

from dataclasses import replace

from epbuild.core.errors import Problem
from epbuild.recipe.address import BadAddress
from epbuild.recipe.fields import Fields
from epbuild.recipe.problems import WRONG_VALUE
from epbuild.recipe.remote_address import PUBLIC_KEY, CacheChoice, RemoteAddress, parse_remote

_KEY_FORM = "`epbuild cache key` makes a pair of keys: the public one, 'ed25519:' and 44 characters of Base64, stands here."


def read_cache(fields: Fields) -> CacheChoice:
    """What the section has; what is wrong in it is noted, and left out."""
    trust: list[str] = []
    for key, where in fields.texts("trust"):
        if PUBLIC_KEY.fullmatch(key):
            trust.append(key)
        else:  # it is not quoted, since it may be a secret that was mistaken for a public key
            fields.problems.append(Problem(WRONG_VALUE, "this is not a public key", where, _KEY_FORM))
    return CacheChoice(fields.where, _remote(fields), tuple(dict.fromkeys(trust)))


def _remote(fields: Fields) -> RemoteAddress | None:
    text, where = fields.text("remote"), fields.where_of("remote")
    if not text:
        return None
    try:
        address = parse_remote(text)
    except BadAddress as error:
        fields.problems.append(Problem(WRONG_VALUE, error.message, where, error.hint))
        return None
    return replace(address, text=fields.rebased(text, where).name) if address.is_directory else address
