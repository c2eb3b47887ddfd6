"""The models of a recipe."""

from __future__ import annotations

from typing import Any

from epbuild.core.errors import Position, Problem
from epbuild.recipe.address import address_problem
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import ModelSpec
from epbuild.recipe.model_path import is_remote, package_file
from epbuild.recipe.preparations import read_preparations
from epbuild.recipe.problems import WRONG_VALUE
from epbuild.recipe.verifying import read_verify


def read_model(name: str, where: Position, fields: MappingReader) -> ModelSpec:
    path, path_where, sha256 = fields.text("path") or "", fields.where_of("path"), fields.text("sha256")
    folder = fields.path("external_data")
    if is_remote(path):
        problem = address_problem(path, path_where, pinned=sha256 is not None)
        fields.problems += [problem] if problem else []
        if folder:
            message = "a model at an address has its external data beside it there, and not in a folder"
            hint = "Leave 'external_data' out, or name a copy of the model by its path."
            fields.problems.append(Problem(WRONG_VALUE, message, folder.where, hint))
    elif path and package_file(path) is None:
        path = fields.rebased(path, path_where).name
    pins, sizes = fields.mapping("data_sha256"), fields.mapping("free_dimensions")
    read: Any = fields.text("read") or "file"
    return ModelSpec(
        name=name,
        where=where,
        path=path,
        path_where=path_where,
        sha256=sha256.lower() if sha256 else None,
        data_sha256={file: (pins.text(file) or "").lower() for file in pins.entries},
        inputs=fields.shapes("inputs"),
        free_dimensions=_dimensions(sizes.mapping("by_name")),
        denoted_dimensions=_dimensions(sizes.mapping("by_denotation")),
        dimension_places={
            f"{kind}.{key}": entry.name_where for kind in sizes.entries for key, entry in sizes.mapping(kind).entries.items()
        },
        read=read,
        external_data=folder,
        verify=read_verify(fields),
        prepare=read_preparations(fields),
    )


def _dimensions(fields: MappingReader) -> dict[str, int]:
    return {name: fields.integer(name) or 0 for name in fields.entries}
