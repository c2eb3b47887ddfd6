"""Reproducibility in the catalog: options identify the targets that are known to vary, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from epbuild.catalog.catalog import entries_for, entry, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.userfile import BadCatalog, load_catalog
from epbuild.core.canonical import read_schema
from epbuild.diff.byte_differences import Meaning

QNN = "QNNExecutionProvider"
KNOWN = [found for ep in known_eps() for found in entries_for(ep) if found.reproducible is not None]
CONTOSO = """
ep = "ContosoExecutionProvider"
short = "contoso"
kind = "plugin"
origin = "doc Contoso EP 3.1"

[reproducible]
what = "it gives the same bytes"
except = [{ when = { speed = "^9$", mode = "^q" }, why = "it hurries" }, { why = "it is Contoso's", by = "timestamp", origin = "measured" }]

[options]
speed = { type = "integer", output = "unknown", meaning = "How fast." }
mode = { type = "choice", values = ["quick", "slow"], output = "none", meaning = "How." }
"""


@pytest.mark.parametrize(
    ("soc", "by"),
    [("SM8750", []), ("69", []), ("SC8380XP,SM8750", ["timestamp"]), ("60,85,69", ["timestamp"]), (None, [])],
)
def test_qnn_target_for_several_socs_differs_by_time_of_day(soc: str | None, by: list[str]) -> None:
    options = {"backend_type": "htp", **({} if soc is None else {"soc_model": soc})}
    assert [row.by for row in entry(QNN).find_known_differences(options)] == by


def test_tensorrt_is_known_to_differ_for_any_options() -> None:
    assert [row.by for row in entry("TensorrtExecutionProvider").find_known_differences({})] == [None]


@pytest.mark.parametrize("ep", ["VitisAIExecutionProvider", "NvTensorRTRTXExecutionProvider"])
def test_ep_without_repeated_compiles_has_no_reproducibility_claim(ep: str) -> None:
    assert (entry(ep).reproducible, entry(ep).find_known_differences({})) == (None, ())


@pytest.mark.parametrize("found", KNOWN, ids=lambda found: f"{found.short}-{found.kind}")
def test_reproducibility_claim_names_its_origin(found: EpEntry) -> None:
    known = found.reproducible
    assert known is not None
    assert known.what
    for origin in (known.origin, *(row.origin for row in known.exceptions)):
        assert origin.startswith(("measured", "doc"))


def test_known_differences_have_a_meaning_that_diff_detects() -> None:
    allowed = read_schema("catalog")["properties"]["reproducible"]["properties"]["except"]["items"]["properties"]["by"]["enum"]
    assert allowed
    assert set(allowed) <= set(get_args(Meaning))


def test_user_catalog_file_can_declare_reproducibility(tmp_path: Path) -> None:
    (tmp_path / "contoso.toml").write_text(CONTOSO, encoding="utf-8")
    found = load_catalog(tmp_path / "contoso.toml")
    first, second = found.find_known_differences({"speed": "9", "mode": "quick"})
    assert (first.why, first.by, first.origin) == ("it hurries", None, "doc Contoso EP 3.1")
    assert (second.why, second.by, second.origin) == ("it is Contoso's", "timestamp", "measured")
    for options in ({"speed": "8", "mode": "quick"}, {"speed": "9"}, {}):
        assert found.find_known_differences(options) == (second,)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('speed = "^9$", mode', 'sped = "^9$", mode', "there is no option 'sped'. Did you mean 'speed'?"),
        ('speed = "^9$", mode', 'speed = "(", mode', "not a regular expression"),
        ('by = "timestamp"', 'by = "weather"', "'weather' is not one of timestamp"),
        ('why = "it hurries"', 'because = "it hurries"', "unknown key 'because'"),
        ('what = "it gives the same bytes"\n', "", "'what' is missing"),
    ],
)
def test_mistake_in_a_declaration_is_refused_with_its_place(before: str, after: str, message: str, tmp_path: Path) -> None:
    assert before in CONTOSO
    (tmp_path / "contoso.toml").write_text(CONTOSO.replace(before, after), encoding="utf-8")
    with pytest.raises(BadCatalog, match="reproducible") as caught:
        load_catalog(tmp_path / "contoso.toml")
    assert message in str(caught.value)
