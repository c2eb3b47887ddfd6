"""Planning of a recipe from its files and its remote models."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import NONE_UNCHANGED, UnchangedFiles
from epbuild.cache.location import find_cache_directory, tag_cache
from epbuild.cache.memo import NO_MEMO, Memo
from epbuild.cache.roots import Roots
from epbuild.cache.workspace import REMOTE_MODEL, Workspace
from epbuild.core.defaults import WORKSPACE
from epbuild.core.digest import hash_document
from epbuild.core.errors import PlanError, Problem, RecipeError, StoreError
from epbuild.core.redact import conceal
from epbuild.plan.planner import check_partial_recipe, make_plan
from epbuild.plan.steps import Plan
from epbuild.recipe.address import PackageAddress
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import ModelSpec, Recipe
from epbuild.remote.settings import RemoteSettings, read_user_cache, resolve_remote_settings
from epbuild.session.events import Fetched, Fetching
from epbuild.session.lock import check_lock, find_locked_wheels
from epbuild.session.request import ONLINE, Request

if TYPE_CHECKING:
    from epbuild.engine.events import Progress
    from epbuild.fetch.download import FetchProgress
    from epbuild.fetch.models import Pins, RemoteModel

_REPORT_SECONDS = 0.2
"""Interval of progress reports while a model is being fetched."""


class ReadVariables(Mapping[str, str]):
    """Environment variables of this process, with a record of the variables that were read."""

    def __init__(self) -> None:
        self.seen: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> str:
        self.seen[name] = os.environ.get(name)
        value = os.environ[name]
        conceal(name, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def read_plan(
    request: Request,
    fetching: NeededModels | None = None,
    environment: Mapping[str, str] | None = None,
    memo: Memo = NO_MEMO,
    unchanged: UnchangedFiles = NONE_UNCHANGED,
) -> tuple[Recipe, Plan]:
    """Return the recipe and its plan. Nothing is written unless a model is fetched.

    `fetching` fetches missing remote models that the plan needs. If it is None, the files of missing models stay unknown. The recipe
    reads its variables from `environment` (None: this process's). Raises RecipeError, PlanError, and the errors of `fetching`.
    """
    with Workspace.open(get_workspace_folder(request.recipe), create=False) as workspace:
        recipe = read_recipe(request, environment)
        return recipe, plan_recipe(request, recipe, fetching, workspace, memo, unchanged)


def read_recipe(request: Request, environment: Mapping[str, str] | None) -> Recipe:
    """Return the recipe without planning it. Raises RecipeError."""
    try:
        return load(request.recipe, environment=environment, settings=request.settings)
    except BrokenRecipe as error:
        # Report everything that has to be fixed in one run.
        raise RecipeError(*error.problems, *check_partial_recipe(error.rest)) from error


def plan_recipe(
    request: Request,
    recipe: Recipe,
    fetching: NeededModels | None,
    workspace: Workspace,
    memo: Memo,
    unchanged: UnchangedFiles,
) -> Plan:
    """Return the plan of a recipe. Raises the same errors as `read_plan`."""
    remote = RemoteModels(workspace, BlobStore(find_cache_directory()))
    resolve_remote(request, recipe)  # wrong settings fail before anything is fetched
    if request.locked:
        check_lock(recipe)  # before anything is fetched
    if fetching is not None:
        remote = replace(remote, wheels=find_locked_wheels(recipe))
    locate = remote.known if fetching is None else lambda model: fetching.fetch(remote, model)
    selection = request.selection
    if request.shard is not None:
        from epbuild.plan.shards import select_shard  # only CI uses shards

        selection = select_shard(make_plan(recipe, selection, places=request.places, memo=memo), request.shard)
        if not selection:
            return Plan((), {})
    plan = make_plan(recipe, selection, locate, request.places, memo, unchanged)
    if not request.emits:
        plan = plan.without_emissions()
    if request.push_only:
        plan = plan.with_pushes_only()
        if not plan.actions:
            message = "no requested output is pushed to a registry"
            raise PlanError(Problem("EPB240", message, None, "Set `registry` of an output with `archive: oci` in the recipe."))
    if any(part.genai is not None for emission in plan.emissions.values() for part in emission.parts):
        from epbuild.output.genai_files import check_pipelines  # few recipes have GenAI outputs

        check_pipelines(plan)
    return plan


def resolve_remote(request: Request, recipe: Recipe) -> RemoteSettings | None:
    """Return a request's settings for the remote cache, or None if no cache is used. Raises RecipeError for wrong settings."""
    chosen = request.remote
    if chosen is None:
        return None
    mode = "off" if chosen.offline else chosen.mode
    user = read_user_cache() if mode != "off" else None
    found = resolve_remote_settings(recipe.cache, recipe.directory, os.environ, mode, insecure=chosen.insecure, user=user)
    return replace(found, uploads_inputs=True) if found is not None and request.cluster is not None else found


def get_workspace_folder(recipe: Path) -> Path:
    """Return the folder beside a recipe that holds the workspace."""
    return recipe.absolute().parent / WORKSPACE


class ModelFetcher(Protocol):
    """Fetcher of remote models. The module `epbuild.fetch.models` is the built-in one."""

    def fetch_model(
        self,
        text: str,
        pins: Pins,
        store: BlobStore,
        *,
        progress: FetchProgress,
        cancelled: threading.Event,
    ) -> RemoteModel:
        """Fetch the model at the address `text`."""


class RemoteModels(Struct, frozen=True):
    """Remote models of a recipe. Their paths are recorded in the workspace."""

    workspace: Workspace
    store: BlobStore
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Locked SHA-256 digests of each release's wheels, by requirement. A fetched wheel must match a digest of its release."""
    only_checked: bool = False
    """True if a previously fetched model may be used only if it came from a wheel with a locked SHA-256."""

    fetcher: ModelFetcher | None = None
    """Fetcher of models. None means the built-in fetcher."""

    def known(self, model: ModelSpec) -> Path | None:
        """Return the path of a model, or None if it was not fetched before or no longer exists. Uses no network."""
        remembered = self.workspace.fact(_make_fact_name(model))
        graph = Path(remembered) if remembered else None
        return graph if graph is not None and graph.is_file() else None

    def fetched(self, model: ModelSpec, progress: Progress, cancelled: threading.Event) -> Path:
        """Return the path of a model. Fetch the model if it is missing. Raises PlanError, FetchError and StoreError."""
        known = self.known(model)
        if known is not None and not self.only_checked:
            return known
        from epbuild.fetch import models

        fetcher: ModelFetcher = self.fetcher or models
        try:
            remote = fetcher.fetch_model(
                model.path,
                models.Pins(model.sha256, model.data_sha256, self.wheels, self.only_checked),
                self.store,
                progress=_FetchReporter(model.name, progress),
                cancelled=cancelled,
            )
        except (PlanError, StoreError) as error:
            raise _add_position(error, model) from error
        if remote.graph != known:
            self.workspace.record_fact(_make_fact_name(model), str(remote.graph))
            progress.report(Fetched(model.name))
        return remote.graph


class _FetchReporter(Struct):
    """Reporter of the progress of fetching a model's files."""

    model: str
    progress: Progress
    _reported: float = 0.0
    _address: str = ""
    _began: float = 0.0
    _first: int = 0
    """Bytes of the file at `_address` that had arrived at the time `_began`, in this process or an earlier one."""

    def arrived(self, address: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if address != self._address or done < self._first:
            self._address, self._began, self._first = address, now, done
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            new = done - self._first
            left = (now - self._began) * (total - done) / new if new and total is not None else None
            self.progress.report(Fetching(self.model, address, done, total, left))


def find_wheels(address: PackageAddress, model: ModelSpec) -> tuple[str, ...]:
    """Return the SHA-256 of each wheel of the release at `address`. Raises StoreError (EPB320, EPB322) at the position of `model`."""
    from epbuild.fetch.wheels import find_wheel_digests

    try:
        return find_wheel_digests(address)
    except StoreError as error:
        raise _add_position(error, model) from error


def _add_position(error: PlanError | StoreError, model: ModelSpec) -> PlanError | StoreError:
    """Return the error with the position of the model's path."""
    kind = PlanError if isinstance(error, PlanError) else StoreError
    return kind(*(replace(problem, where=model.path_where) for problem in error.problems))


def _make_fact_name(model: ModelSpec) -> str:
    """Return the name under which a workspace records a model's path. The name is a digest, as an address may contain a secret."""
    asked = {"path": model.path, "sha256": model.sha256, "data": dict(model.data_sha256)}
    return f"{REMOTE_MODEL}{hash_document(asked)}"


class NeededModels(Struct, frozen=True):
    """Fetcher of missing remote models that a build needs."""

    request: Request
    progress: Progress
    cancelled: threading.Event
    fetcher: ModelFetcher | None

    def fetch(self, remote: RemoteModels, model: ModelSpec) -> Path:
        known = remote.known(model)
        if known is not None:
            return known
        if self.request.is_offline:
            raise PlanError(Problem("EPB525", f"the model '{model.name}' has not been fetched yet", model.path_where, ONLINE))
        # Planning creates no workspace, but the path of a fetched model has to be recorded in a workspace.
        with open_workspace(self.request.recipe) as workspace:
            stored = replace(remote, workspace=workspace, fetcher=self.fetcher)
            return stored.fetched(model, self.progress, self.cancelled)


@contextmanager
def open_workspace(recipe: Path) -> Iterator[Workspace]:
    """Open the workspace beside a recipe, and register it with the store. Create the workspace if it is missing."""
    with Workspace.open(get_workspace_folder(recipe)) as workspace:
        with suppress(StoreError):  # a later write reports the error
            tag_cache(find_cache_directory())
            Roots(find_cache_directory()).register(workspace.directory)
        yield workspace
