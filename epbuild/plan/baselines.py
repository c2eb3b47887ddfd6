"""Reader of earlier releases, with which sizes and measured figures are compared."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from epbuild.core.canonical import parse_json
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import EnvironmentFailure, Problem
from epbuild.core.records import convert
from epbuild.core.safepath import open_regular
from epbuild.plan.measuring import FigureBaseline, ModelMeasurement
from epbuild.plan.steps import Baseline, SessionGroup
from epbuild.recipe.model import MeasuredOn, Reference
from epbuild.recipe.outputs import ARCHIVE_FORMS

_FORMAT = 1
_MAX_BYTES = 64 << 20
_MAX_MANIFESTS = 10_000
_ARCHIVES = tuple(f".{name}" for name, form in ARCHIVE_FORMS.items() if form.is_file)
_HINT = (
    "Write the path of a report (`epbuild report -o release.json`), or of the manifest, the folder or the archive of an output."
)

_UNREADABLE = "is not a report or manifest that this epbuild can read"
_PACKAGE = "is the manifest of a model package, which lists no models; write the folder of the package"
_OLD = "has no sizes of compile results, because an earlier epbuild wrote it"
_TOO_LARGE = f"has more than {_MAX_BYTES >> 20} MiB of JSON, or more than {_MAX_MANIFESTS:,} manifests"

_Size = Annotated[int, Meta(ge=0, le=1 << 60)]
_Figure = Annotated[float, Meta(ge=0, le=1e18)]
_REQUIRED = frozenset({"format", "group", "target", "models"})
"""Keys of all manifests. Files without them belong to other programs."""
_Set = tuple[str, str, frozenset[str]]
"""Models that were compiled together: their group, target and names."""


class _Step(Struct, frozen=True):
    action: str
    size: _Size | None = None


class _Figures(Struct, frozen=True):
    figures: Mapping[str, _Figure]
    on: MeasuredOn
    device: str | None = None


class _Measurement(_Figures, frozen=True, kw_only=True):
    group: str
    target: str
    member: str


class _Report(Struct, frozen=True):
    """Part of a report that is compared. The whole report is `commands.reporting.values.Report`."""

    format: int
    steps: tuple[_Step, ...]
    measurements: tuple[_Measurement, ...] = ()


class _Target(Struct, frozen=True):
    name: str


class _Model(Struct, frozen=True):
    name: str
    action_key: str
    compiled_size: _Size | None = None
    measured: _Figures | None = None
    merged: tuple[_Model, ...] = ()


class _Manifest(Struct, frozen=True):
    """Part of a manifest that is compared. The whole manifest is `output.manifest.PartManifest`."""

    format: int
    group: str
    target: _Target
    models: tuple[_Model, ...]

    @property
    def unmerged(self) -> Iterator[_Model]:
        """Models that were compiled, in place of the models that they were merged into."""
        for model in self.models:
            yield from model.merged or (model,)


class _Release(Struct, frozen=True):
    files: Sequence[Path] = ()
    """Files and folders that were read."""
    actions: Mapping[str, int | None] = field(default_factory=dict)
    """Sizes by action, from a report."""
    sets: Mapping[_Set, int | None] = field(default_factory=dict)
    """Sizes from manifests."""
    figures: Mapping[tuple[str, str, str], _Figures] = field(default_factory=dict)
    """Figures by group, target and model."""


class _BadRelease(Exception):
    """Error for an unusable release. The text is the reason."""


class _Manifests:
    """Collector of sizes and figures from manifests. Each one is kept with the name of its manifest."""

    def __init__(self) -> None:
        self.sizes: dict[_Set, tuple[int | None, str]] = {}
        self._figures: dict[tuple[str, str, str], tuple[_Figures, str]] = {}

    def add(self, name: str, manifest: _Manifest) -> None:
        """Add a manifest. Raises _BadRelease if a size or a figure differs from that in an earlier manifest."""
        if manifest.format != _FORMAT:
            raise _BadRelease(_UNREADABLE)
        group, target = manifest.group, manifest.target.name
        together: defaultdict[tuple[str, int | None], set[str]] = defaultdict(set)
        for model in manifest.unmerged:
            together[model.action_key, model.compiled_size].add(model.name)
            if model.measured is not None:
                figures, earlier = self._figures.setdefault((group, target, model.name), (model.measured, name))
                if figures != model.measured:
                    raise _make_conflict("figures", manifest, earlier, name)
        for (_, found), names in together.items():
            size, earlier = self.sizes.setdefault((group, target, frozenset(names)), (found, name))
            if size != found:
                raise _make_conflict("sizes", manifest, earlier, name)

    def collect(self, files: Sequence[Path]) -> _Release:
        """Return the sizes and figures. Raises _BadRelease if no size is known."""
        sizes = {models: size for models, (size, _) in self.sizes.items()}
        if all(size is None for size in sizes.values()):
            raise _BadRelease(_OLD)
        return _Release(files, sets=sizes, figures={model: figures for model, (figures, _) in self._figures.items()})


def _make_conflict(what: str, manifest: _Manifest, earlier: str, name: str) -> _BadRelease:
    models = f"the group '{manifest.group}' for '{manifest.target.name}'"
    return _BadRelease(f"is ambiguous: {earlier} and {name} have different {what} of {models}")


class Baselines:
    """Reader of releases that reads each one once. Paths are relative to the folder `base`. Unusable ones are added to `problems`."""

    def __init__(self, base: Path, problems: list[Problem]) -> None:
        self._base = base
        self._problems = problems
        self._releases: dict[str, _Release] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """Files and folders of the releases."""
        return tuple(dict.fromkeys(path for release in self._releases.values() for path in release.files))

    def find_size(self, group: SessionGroup, release: Reference) -> Baseline:
        """Return the size of a session group's result in a release."""
        found = self._open(release)
        of_set = found.sets.get((group.group, group.target.name, frozenset(member.name for member in group.members)))
        return Baseline(release.name, found.actions.get(group.id, of_set))

    def add_figures(self, measurement: ModelMeasurement, groups: Mapping[str, SessionGroup]) -> ModelMeasurement:
        """Return a copy of `measurement` in which members whose growth is limited have their figures in a release."""
        members = []
        for member in measurement.members:
            release = groups[member.session].member(member.name).expect.baseline
            if member.growth and release is not None:
                found = self._open(release).figures.get((measurement.group, measurement.target.name, member.name))
                known = (found.figures, found.on, found.device) if found is not None else ()
                member = replace(member, baseline=FigureBaseline(release.name, *known))  # noqa: PLW2901
            members.append(member)
        return replace(measurement, members=tuple(members))

    def _open(self, release: Reference) -> _Release:
        if release.name not in self._releases:
            path = self._base / release.name
            try:
                self._releases[release.name] = _read_release(path)
            except (_BadRelease, OSError) as error:
                why = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
                self._problems.append(Problem("EPB298", f"the baseline '{release.name}' {why}", release.where, _HINT))
                self._releases[release.name] = _Release([path])
        return self._releases[release.name]


def _read_release(path: Path) -> _Release:
    """Read a report, or the manifests of outputs. Raises _BadRelease and OSError."""
    files = list(_list_files(path)) if path.is_dir() else [path]
    manifests, is_package = _Manifests(), False
    try:
        for name, content in _read_contents(path, files):
            document = parse_json(content)
            if not isinstance(document, dict):
                continue
            if "steps" in document and files == [path]:
                return _collect_steps(files, convert(document, _Report))
            is_package = is_package or "components" in document
            if document.keys() >= _REQUIRED:
                manifests.add(name, convert(document, _Manifest))
    except EnvironmentFailure as error:
        raise _BadRelease(f"cannot be read: {error.problems[0].message}") from error
    except (ValueError, RecursionError) as error:
        raise _BadRelease(_UNREADABLE) from error
    if not manifests.sizes:
        raise _BadRelease(_PACKAGE if is_package else _UNREADABLE)
    return manifests.collect(files)


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders, and the manifests and archives in them. Hidden folders and links to folders are skipped."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(root)
        yield from (Path(root, name) for name in sorted(names) if name == MANIFEST or name.endswith(_ARCHIVES))


def _read_contents(release: Path, files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of JSON files, and of the manifests at the beginning of archives, with their names for messages.

    Raises _BadRelease, OSError, and EnvironmentFailure if the zstd package is missing.
    """
    from epbuild.archive.formats import MAX_MANIFEST_BYTES, read_manifests  # few recipes have a baseline
    from epbuild.archive.members import quote_member

    total, count = 0, 0
    for file in files:
        if file.is_dir():
            continue
        contents = read_manifests(file) if file.name.endswith(_ARCHIVES) else [("", _read(file))]
        for member, content in contents:
            name = quote_member((file.relative_to(release.parent) / member).as_posix())
            if content is None:
                raise _BadRelease(f"contains {name}, which is damaged, larger than {MAX_MANIFEST_BYTES >> 20} MiB or a duplicate")
            total, count = total + len(content), count + 1
            if total > _MAX_BYTES or count > _MAX_MANIFESTS:
                raise _BadRelease(_TOO_LARGE)
            yield name, content


def _read(file: Path) -> bytes:
    with open_regular(file) as opened:
        return opened.read(_MAX_BYTES + 1)


def _collect_steps(files: Sequence[Path], report: _Report) -> _Release:
    if report.format != _FORMAT:
        raise _BadRelease(_UNREADABLE)
    sizes: defaultdict[str, list[int | None]] = defaultdict(list)
    for step in report.steps:
        sizes[step.action].append(step.size)
    return _Release(
        files,
        actions={action: None if None in of else sum(filter(None, of)) for action, of in sizes.items()},
        figures={(row.group, row.target, row.member): row for row in report.measurements},
    )
