"""Matching of the models of two artifacts: by an index, with the same result as a full comparison."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from epbuild.diff import difference
from epbuild.diff.facts import ModelFacts
from epbuild.diff.matching import ModelPair, pair_models
from epbuild.diff.sizes import FileSizes


def each_with_each(old: Sequence[ModelFacts], new: Sequence[ModelFacts]) -> list[ModelPair]:
    """Return the pairs by their definition: every model is compared with every other."""
    found: dict[int, ModelFacts] = {}
    left = list(new)
    for like in (
        lambda a, b: a.name is not None and a.name == b.name,
        lambda a, b: a.file == b.file,
        lambda a, b: not any(item.sense != "names" for item in difference._compare_models(a, b, manifests=False)),
    ):
        for first in old:
            match = None if id(first) in found else next((second for second in left if like(first, second)), None)
            if match is not None:
                found[id(first)] = match
                left = [second for second in left if second is not match]
    alone = [first for first in old if id(first) not in found]
    if len(alone) == len(left) == 1:
        found[id(alone[0])] = left.pop()
    return [*((first, found.get(id(first))) for first in old), *((None, second) for second in left)]


def some_model(chance: random.Random, number: int, side: str) -> ModelFacts:
    """Return a model whose parts come from small sets, so that many models are alike."""
    nodes = chance.randint(0, 2)
    digests = [chance.choice("12") for _ in range(chance.randint(0, 2))]
    return ModelFacts(
        name=chance.choice([None, None, f"name{chance.randint(0, 20)}"]),
        file=f"{side}{number}.onnx" if chance.random() < 0.8 else f"both{chance.randint(0, 20)}.onnx",
        sha256=chance.choice("abc"),
        holds_weights=chance.random() < 0.5,
        embeds=chance.random() < 0.5,
        inside={
            "graph": {"EPContext nodes": nodes, "initializers": {"w": "type 1[4]"} if chance.random() < 0.5 else {}},
            "names": {"graph name": chance.choice("xy"), "nodes": {str(item): {"node name": "n"} for item in range(nodes)}},
        },
        outside={
            "context": {"nodes": {str(item): {"context": chance.choice([None, "c"])} for item in range(nodes)}},
            "graph or weights": {"source file": {"source.onnx": chance.choice("st")}},
            "settings": {"action key": chance.choice("kl")},
        },
        data={
            "source data": {},
            "external data": {chance.choice([f"w{item}", f"v{item}"]): digest for item, digest in enumerate(digests)},
        },
        files=FileSizes("", None, (), {}, {}),
    )


@pytest.mark.parametrize("seed", range(40))
def test_index_finds_the_same_pairs_as_a_full_comparison(seed: int) -> None:
    chance = random.Random(seed)
    old, new = ([some_model(chance, number, side) for number in range(chance.randint(0, 25))] for side in "ab")
    for found, wanted in zip(pair_models(old, new), each_with_each(old, new), strict=True):
        assert found[0] is wanted[0]
        assert found[1] is wanted[1]
