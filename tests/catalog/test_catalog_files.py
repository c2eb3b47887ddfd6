"""Catalog files of users: messages for mistakes with their position, and the right packaging of an EP."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.catalog.catalog import BUILT_IN, Catalog, entries_for, entry
from epbuild.catalog.userfile import BadCatalog, load_catalog
from tests.catalog.options import normalize_option

GOOD = """
ep = "ContosoExecutionProvider"
short = "contoso"
kind = "plugin"
origin = "doc Contoso EP 3.1"
module = "contoso_ep"
distributions = ["contoso-ep"]
sharing = { possible = true, what = "one binary for all", binaries = "one", refused_values = [
  { option = "chip", pattern = ",", reason = "one chip at a time" },
] }

[names.chip]
rows = [{ name = "C1", spellings = ["1"], cores = "4" }, { name = "C2", spellings = ["2"], cores = "8" }]

[[refuse]]
when = { chip = "^C1$", speed = "^9$" }
reason = "C1 gets too hot"

[options]
chip = { type = "name", output = "measured", meaning = "The chip." }
speed = { type = "integer", minimum = 0, maximum = 9, default = "3", output = "unknown", meaning = "How fast." }
mode = { type = "choice", values = ["quick", "slow"], output = "none", meaning = "How." }
table = { type = "file", output = "documented", meaning = "A table." }
"""


def written(folder: Path, text: str, name: str = "contoso.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_unknown_ep_of_a_user_file_is_checked_like_a_built_in_ep(tmp_path: Path) -> None:
    catalog = Catalog.with_files([written(tmp_path, GOOD)])
    found = catalog.entry("ContosoExecutionProvider")
    assert found.user_file == "contoso.toml"
    assert normalize_option(found, "chip", 2) == "C2"
    assert found.options["table"].changes_output
    assert "ContosoExecutionProvider" in catalog.known_eps()
    assert set(BUILT_IN.known_eps()) < set(catalog.known_eps())
    assert "ContosoExecutionProvider" not in BUILT_IN.known_eps()


def test_minimal_catalog_file_is_enough_to_build(tmp_path: Path) -> None:
    found = load_catalog(written(tmp_path, 'ep = "XEP"\nshort = "x"\nkind = "provider"\norigin = "measured"\n'))
    assert (found.sources, found.module, found.booleans, found.options) == (("XEP",), "onnxruntime", ("0", "1"), {})
    assert not found.sharing.possible
    assert found.sharing.reason
    assert found.output_depends_on_host, "what is not known may not be shared between machines"


NODE_LOG = """[node_log]
refused = '^no'
node = '^node (?P<node>.*)$'
reason = '^why (?P<reason>.*)$'
more = '^and'
"""


@pytest.mark.parametrize(
    ("before", "after", "key", "message"),
    [
        ('kind = "plugin"', "", "", "'kind' is missing"),
        ('kind = "plugin"', 'kind = "plug-in"', "kind", "'plug-in' is not one of plugin, provider. Did you mean 'plugin'?"),
        ('kind = "plugin"', 'kind = "plugin"\nkindd = 1', "", "unknown key 'kindd'. Did you mean 'kind'?"),
        ('kind = "plugin"', 'kind = "plugin"\nrevision = 1.0', "revision", "1.0 is not a whole number"),
        ('short = "contoso"', 'short = "Con toso"', "short", "'Con toso' is not a short name of lower-case letters and digits"),
        ('origin = "doc Contoso EP 3.1"', 'origin = "hearsay"', "origin", "'hearsay' is not text that begins with 'measured'"),
        ('"contoso-ep"]', '"Contoso_EP"]', "distributions.0", "is not a distribution's name in lower case"),
        ('type = "integer"', 'type = "integr"', "options.speed.type", "Did you mean 'integer'?"),
        ("maximum = 9", "maximum = true", "options.speed.maximum", "True is not a number"),
        ("minimum = 0", "minimum = 10", "options.speed.minimum", "10 is more than the maximum, 9"),
        ('default = "3"', 'default = "30"', "options.speed.default", "30 is more than 9"),
        ('default = "3"', 'default = "+3"', "options.speed.default", "write '3'"),
        ('values = ["quick", "slow"], ', "", "options.mode", "requires the key 'values'"),
        ('["quick", "slow"]', '["quick", "Quick"]', "options.mode.values", "duplicate value"),
        (
            '["quick", "slow"]',
            '["quick", "slow"], aliases = { fast = "quik" }',
            "options.mode.aliases.fast",
            "'quik' is not one of the option's 'values'",
        ),
        (
            'type = "file"',
            'type = "file", minimum = 1',
            "options.table.minimum",
            "'minimum' is not allowed for an option of type 'file'",
        ),
        ('type = "file"', 'type = "pattern"', "options.table", "requires the key 'pattern'"),
        ('type = "file"', 'type = "pattern", pattern = "("', "options.table.pattern", "not a regular expression"),
        ('meaning = "A table."', 'meaning = "a table"', "options.table.meaning", "is not a sentence that ends with a full stop"),
        ('meaning = "A table."', 'meaning = "A table.", since = "v1"', "options.table.since", "is not a version such as 1.24.1"),
        ("[names.chip]", "[names.chipp]", "names.chipp", "there is no option 'chipp'. Did you mean 'chip'?"),
        ("[names.chip]", "[names.mode]", "names.mode", "only an option of type 'name' can have a table"),
        ('spellings = ["2"]', 'spellings = ["1"]', "names.chip.rows.1", "'1' is already a spelling of C1"),
        ('speed = "^9$"', 'sped = "^9$"', "refuse.0", "there is no option 'sped'. Did you mean 'speed'?"),
        ('speed = "^9$"', 'speed = "["', "refuse.0.when.speed", "not a regular expression"),
        (
            'option = "chip"',
            'option = "ship"',
            "sharing.refused_values.0.option",
            "there is no option 'ship'. Did you mean 'chip'?",
        ),
        ("possible = true", "possible = false", "sharing", "'reason' is missing"),
        ("[names.chip]", f"{NODE_LOG}\n[names.chip]", "node_log.node", "the expression needs a group named 'operator'"),
        ("[names.chip]", "[node_log]\nnode = 'x'\n[names.chip]", "node_log", "'refused' is missing"),
        (
            'kind = "plugin"',
            'kind = "plugin"\ngraph_optimization_level = "most"',
            "graph_optimization_level",
            "'most' is not one of",
        ),
        ('binaries = "one"', 'binaries = "two"', "sharing.binaries", "'two' is not one of one, each"),
    ],
)
def test_mistake_in_a_user_file_is_reported_with_its_place(
    tmp_path: Path, before: str, after: str, key: str, message: str
) -> None:
    assert before in GOOD
    with pytest.raises(BadCatalog) as caught:
        load_catalog(written(tmp_path, GOOD.replace(before, after, 1)))
    assert (caught.value.key, "\n" in str(caught.value)) == (key, False)
    assert message in caught.value.message
    assert str(caught.value).startswith("contoso.toml: ")


def test_unreadable_catalog_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadCatalog, match=r"missing\.toml: the catalog file cannot be read"):
        load_catalog(tmp_path / "missing.toml")
    with pytest.raises(BadCatalog, match=r"is not TOML: .*line 2"):
        load_catalog(written(tmp_path, "\nep = = 1"))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'ep = "\xe9"')
    with pytest.raises(BadCatalog, match="is not UTF-8 text"):
        load_catalog(latin)


LEAST = 'ep = "XEP"\nshort = "x"\nkind = "provider"\norigin = "measured"\n'
OPTION = '[options.a]\ntype = "integer"\noutput = "none"\nmeaning = "A."\n'
CANNOT = '[[cannot]]\nwhat = "w"\nwhy = "y"\norigin = "measured"\n'


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (f"revision = {'9' * 5000}", "", "4300 digits"),
        (f"revision = 0x{'f' * 5000}", "revision", "more than 64 bits"),
        (f"description = 0x{'f' * 5000}", "description", "more than 64 bits"),
        (f"[numbers]\nsmallest = 1{'0' * 400}", "numbers.smallest", "more than 64 bits"),
        (f"description{'.a' * 5000} = 1", "", "nested too deeply"),
        (f"options.a{'.a' * 5000} = 1", "", "nested too deeply"),
        ("[numbers.floats]\ncosine = nan", "numbers.floats.cosine", "nan is not a number"),
        ("[numbers.floats]\nmax_abs = inf", "numbers.floats.max_abs", "inf is not a number"),
        (f"{OPTION}minimum = nan", "options.a.minimum", "nan is not a number"),
        ("out_of_memory = 'a{99999999999}'", "out_of_memory", "not a regular expression: the repetition number is too large"),
        (f"out_of_memory = '{'(' * 3000}{')' * 3000}'", "out_of_memory", "not a regular expression"),
        (f"{OPTION}compile_only = '('", "options.a.compile_only", "not a regular expression"),
        ("[[host.drivers]]\nname = 'd'\npattern = '('", "host.drivers.0.pattern", "not a regular expression"),
        ("[[host.drivers]]\nname = 'd'\nprovider = '('", "host.drivers.0.provider", "not a regular expression"),
        (f"{CANNOT}when = {{ a = '(' }}\n{OPTION}", "cannot.0.when.a", "not a regular expression"),
    ],
)
def test_unusable_values_are_refused_with_their_place(tmp_path: Path, text: str, key: str, message: str) -> None:
    with pytest.raises(BadCatalog) as caught:
        load_catalog(written(tmp_path, LEAST + text))
    assert caught.value.key == key
    assert message in caught.value.message


@given(st.text(max_size=80))
def test_any_text_gives_an_entry_or_a_clear_refusal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(text.encode("utf-8", "replace"))
    with pytest.raises(BadCatalog):
        load_catalog(path)


def test_two_files_for_one_packaging_are_refused(tmp_path: Path) -> None:
    one, two = written(tmp_path, GOOD, "one.toml"), written(tmp_path, GOOD, "two.toml")
    with pytest.raises(BadCatalog, match=r"two\.toml: ep: one\.toml already describes the EP"):
        Catalog.with_files([one, two])
    other = written(tmp_path, GOOD.replace('"contoso-ep"', '"contoso-ep-next"'), "other.toml")
    assert len(Catalog.with_files([one, other]).entries_for("ContosoExecutionProvider")) == 2


def test_user_file_for_a_known_ep_takes_precedence_for_its_packaging(tmp_path: Path) -> None:
    text = 'ep = "OpenVINOExecutionProvider"\nshort = "openvino"\nkind = "plugin"\norigin = "measured"\ndistributions = ["my-openvino"]\n'
    catalog = Catalog.with_files([written(tmp_path, text)])
    assert catalog.entry("OpenVINOExecutionProvider").user_file == "contoso.toml"
    assert catalog.entry("OpenVINOExecutionProvider", ["my-openvino"]).user_file == "contoso.toml"
    assert catalog.entry("OpenVINOExecutionProvider", ["onnxruntime-openvino"]).user_file is None


@pytest.mark.parametrize(
    ("distributions", "kind"),
    [
        ([], "provider"),
        (["onnxruntime", "onnxruntime-ep-openvino"], "plugin"),
        (["onnxruntime-openvino"], "provider"),
        (["onnxruntime-ep-openvino-extras"], "provider"),
    ],
)
def test_distributions_of_a_toolchain_select_the_openvino_entry(distributions: list[str], kind: str) -> None:
    assert entry("OpenVINOExecutionProvider", distributions).kind == kind


def test_digest_covers_how_the_ep_is_driven_but_not_new_rows() -> None:
    qnn = entry("QNNExecutionProvider")
    digest = qnn.digest
    assert digest == replace(qnn, options={}, names={}, description="x", cannot=()).digest
    changed = [
        replace(qnn, revision=qnn.revision + 1),
        replace(qnn, kind="provider"),
        replace(qnn, output_depends_on_host=True),
        replace(qnn, sharing=replace(qnn.sharing, binaries="each")),
    ]
    assert len({digest, *(one.digest for one in changed)}) == 1 + len(changed)


def test_packagings_of_one_ep_have_different_digests() -> None:
    assert len({found.digest for found in entries_for("OpenVINOExecutionProvider")}) == 2
