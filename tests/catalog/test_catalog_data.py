"""The data files must be whole: a row with a slip in it would let a wrong option through to an EP, which does not check either."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import epbuild.catalog
from epbuild.catalog import Entry, Option, entry, known_eps, normalize, session_keys

DATA = Path(epbuild.catalog.__file__).parent / "data"
ROW_WORDS = {"type", "output", "meaning", "values", "minimum", "maximum", "pattern", "example"}
FILE_WORDS = {
    "revision",
    "ep",
    "short",
    "kind",
    "module",
    "distribution",
    "sources",
    "devices",
    "output_depends_on_host",
    "booleans",
    "sharing",
    "binary",
    "names",
    "options",
}


def rows() -> Iterator[tuple[str, Option, tuple[str, str], Mapping[str, str]]]:
    """Every option of every EP and every session key, with what `normalize` needs for it."""
    for ep in known_eps():
        found = entry(ep)
        for name, option in found.options.items():
            yield f"{found.short}.{name}", option, found.booleans, found.names.get(name, {})
    for name, option in session_keys().options.items():
        yield name, option, ("0", "1"), {}


each_row = pytest.mark.parametrize(("option", "booleans", "names"), [pytest.param(*row, id=name) for name, *row in rows()])
each_ep = pytest.mark.parametrize("ep", known_eps())


def test_qnn_and_openvino_are_known_and_what_is_not_known_is_a_key_error() -> None:
    assert known_eps() == ("OpenVINOExecutionProvider", "QNNExecutionProvider")
    with pytest.raises(KeyError):
        entry("NoSuchExecutionProvider")


def test_every_data_file_is_read_so_that_no_ep_is_forgotten() -> None:
    names = {tomllib.loads(path.read_text(encoding="utf-8")).get("ep", "session keys") for path in DATA.glob("*.toml")}
    assert names == {*known_eps(), "session keys"}


@pytest.mark.parametrize("path", sorted(DATA.glob("*.toml")), ids=lambda path: path.stem)
def test_no_word_of_a_data_file_is_ignored_because_it_is_misspelled(path: Path) -> None:
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    allowed = {"revision", "options", "reserved"} if path.stem == "session" else FILE_WORDS
    assert set(document) <= allowed
    for name, row in document["options"].items():
        assert set(row) <= ROW_WORDS, name


@each_row
def test_a_row_says_what_its_type_needs_and_nothing_that_its_type_ignores(
    option: Option, booleans: tuple[str, str], names: Mapping[str, str]
) -> None:
    assert option.meaning.endswith("."), "a meaning is a sentence"
    assert bool(option.values) == (option.type == "choice")
    assert len({value.lower() for value in option.values}) == len(option.values)
    assert (option.pattern is not None) == (option.example is not None) == (option.type == "pattern")
    assert not names or option.type == "name"
    if option.type != "integer":
        assert option.minimum is None
        assert option.maximum is None
    if option.minimum is not None and option.maximum is not None:
        assert option.minimum <= option.maximum


@each_row
def test_every_value_that_a_row_offers_is_accepted_as_it_is_written(
    option: Option, booleans: tuple[str, str], names: Mapping[str, str]
) -> None:
    offered = [*option.values, *names.values(), *((option.example or "").split(", ") if option.example else ())]
    if option.type == "boolean":
        offered += booleans
    offered += [str(bound) for bound in (option.minimum, option.maximum) if bound is not None]
    for value in offered:
        assert normalize(option, value, booleans=booleans, names=names) == value


@each_ep
def test_an_entry_speaks_only_of_options_that_it_has(ep: str) -> None:
    found = entry(ep)
    assert set(found.names) <= set(found.options)
    assert {refusal.option for refusal in found.sharing.refusals} <= set(found.options)
    if found.target_option is not None:
        assert found.target_option in found.options


@each_ep
def test_an_entry_can_be_used_for_all_that_the_build_asks_of_it(ep: str) -> None:
    found = entry(ep)
    assert found.ep == ep
    assert found.revision >= 1
    assert found.kind in {"plugin", "provider"}
    assert found.sources
    assert re.fullmatch(r"[a-z][a-z0-9]*", found.short), "it becomes part of file names"
    assert found.module.isidentifier()
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", found.distribution), "the probe's spelling of a distribution"
    assert len(set(found.booleans)) == 2
    assert set(found.devices) <= {"cpu", "gpu", "npu"}
    assert found.sharing.binaries in {"one", "each"}
    assert found.sharing.possible or found.sharing.reason, "a refusal needs its reason"
    for refusal in found.sharing.refusals:
        re.compile(refusal.pattern)
        assert refusal.reason
    if found.target_pattern is not None:
        assert re.compile(found.target_pattern).groups >= 1, "the first group is the target's name"
    assert (found.target_pattern is None) == (found.target_option is None)


def test_short_names_tell_eps_apart_so_that_their_binaries_do_not_meet() -> None:
    shorts = [entry(ep).short for ep in known_eps()]
    assert len(set(shorts)) == len(shorts)


def test_a_soc_number_stands_for_one_name_that_no_other_number_has() -> None:
    names = entry("QNNExecutionProvider").names["soc_model"]
    assert len(set(names.values())) == len(names)
    assert all(name == name.upper() and number.isdigit() for number, name in names.items())


def test_a_session_key_is_either_the_users_or_epbuilds_and_epbuilds_say_what_to_write_instead() -> None:
    keys = session_keys()
    assert keys.revision >= 1
    assert not set(keys.options) & set(keys.reserved)
    assert all(keys.reserved.values())


@each_ep
def test_no_ep_option_has_the_name_of_a_session_key_since_silence_goes_by_name(ep: str) -> None:
    assert not set(entry(ep).options) & set(session_keys().options)


def test_the_target_is_read_out_of_a_context_binary_as_qnn_writes_it() -> None:
    found: Entry = entry("QNNExecutionProvider")
    assert found.target_pattern is not None
    match = re.search(found.target_pattern, "...;soc_type=SC8380XP;arch=73;...")
    assert match is not None
    assert match[1] == "SC8380XP"


@pytest.mark.parametrize(("value", "refused"), [("SM8750", False), ("SM8750,SC8380XP", True), ("", False)])
def test_only_a_list_of_socs_rules_sharing_out(value: str, refused: bool) -> None:
    (refusal,) = entry("QNNExecutionProvider").sharing.refusals
    assert refusal.matches(value) is refused
