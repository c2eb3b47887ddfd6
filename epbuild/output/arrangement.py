"""Names of the plan applied to what was made: places of files, and references."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from epbuild.core.digest import Blob
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.output.files import OutputFile, RelinkedModel
from epbuild.plan.result import CompileResult, ModelResult


def arrange(
    results: Iterable[CompileResult],
    names: Mapping[str, str],
    binaries: Mapping[str, Mapping[str, str]],
    reserved: str,
    step: str,
) -> tuple[OutputFile, ...]:
    """Where each file goes: `names` has the model's path by member, `binaries` the context binary's by member and EP.

    `reserved` is a path for none of them. External data keeps its location beside its model, since the model names it. Raises BuildError
    when a model has several context binaries by one EP, for which the recipe has one name, or when two files would get one path.
    """
    found: dict[str, OutputFile] = {reserved.casefold(): OutputFile(reserved, "manifest", Blob("", 0))}
    for result in results:
        stored = result.artifacts
        for model in result.models:
            path = names[model.member]
            folder = posixpath.dirname(path)
            _check_one_each(model, step)
            references = {}
            for binary, ep in model.binaries.items():
                target = binaries[model.member][ep]
                references[binary] = _seen_from(folder, target)
                _add(found, OutputFile(target, "context-binary", stored[binary]), step)
            for data in model.data:
                _add(found, OutputFile(posixpath.join(folder, data), "external-data", stored[data]), step)
            changed = {old: new for old, new in references.items() if old != new}
            own = stored[model.file]
            _add(found, OutputFile(path, "model", RelinkedModel(own, changed) if changed else own), step)
    del found[reserved.casefold()]
    return tuple(sorted(found.values(), key=lambda file: file.path.split("/")))


def _seen_from(folder: str, target: str) -> str:
    above, _, name = target.rpartition("/")
    return name if above == folder else posixpath.relpath(target, folder or ".")  # which takes its time


def _check_one_each(model: ModelResult, step: str) -> None:
    if len(set(model.binaries.values())) < len(model.binaries):
        message = f"the model '{model.member}' has several context binaries ({', '.join(model.binaries)}) and one name for them"
        raise BuildError(Problem("EPB421", message, StepId(step)))


def _add(found: dict[str, OutputFile], file: OutputFile, step: str) -> None:
    # Some file systems hold upper and lower case for one.
    other = found.setdefault(file.path.casefold(), file)
    if (other.path, _content(other)) != (file.path, _content(file)):
        raise BuildError(Problem("EPB422", f"two different artifacts would be written to '{file.path}'", StepId(step)))


def _content(file: OutputFile) -> str:
    """What two files that were made have in common where they are one, whatever their references become."""
    source = file.source
    return source.stored.digest if isinstance(source, RelinkedModel) else source.identity
