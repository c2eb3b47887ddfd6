"""Planner of targets, which checks options and session keys against the catalog."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath

from msgspec import Struct, field

from epbuild.catalog.catalog import BUILT_IN, Catalog, find_run_option, find_session_key, get_full_name, get_short_name
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import BadValue, UnknownName, check_metadata, find_option, find_refusals, format_plain, normalize
from epbuild.catalog.options import Option, release_numbers
from epbuild.core.errors import Position, Problem, find_closest
from epbuild.core.safepath import expand_home, is_anchored, is_outside
from epbuild.core.shown import format_path
from epbuild.plan.possible import compile_problems, find_session_conflicts
from epbuild.plan.target import OptionFile, PlannedEp, PlannedTarget
from epbuild.recipe.model import EpChoice, Setting, Target, ToolchainSpec
from epbuild.recipe.paths import use_slashes

_RUNTIME = "onnxruntime"
COMPILER_SINCE = "1.23"
"""First release of ONNX Runtime whose Python package has ModelCompiler and loads plugin EPs."""
_RELATIVE = "Paths are relative to the recipe."
_OWN_NAME = re.compile(r"exec.*$", re.IGNORECASE)


class TargetPlanner(Struct):
    """Planner of targets. Paths of plugin libraries are relative to `base`. Invalid settings are added to `problems`."""

    catalog: Catalog
    base: Path
    problems: list[Problem]
    needs: dict[str, dict[str, PlannedEp]] = field(default_factory=dict)
    """EPs that targets use, by the name of the toolchain and then by the name of the EP."""
    _known_eps: tuple[str, ...] = ()
    _packagings: dict[tuple[str, int], tuple[EpEntry, _Release | None]] = field(default_factory=dict)
    _runtimes: dict[tuple[int, ...], _RuntimeRules] = field(default_factory=dict)
    _rules: dict[tuple[int | str, bool, _Release | None], _OptionRules] = field(default_factory=dict)
    """Rules for settings, by the arguments that they are built from. These caches exist because a recipe may have ten thousand targets."""

    def __post_init__(self) -> None:
        self._known_eps = self.catalog.known_eps()

    def plan(self, target: Target, toolchain: ToolchainSpec | None) -> PlannedTarget | None:
        """Plan a target. Normalize its options and session keys to the strings that ONNX Runtime expects.

        Return None if an EP is unknown, if the target is incomplete, or if `toolchain` is None. All other checks run in any case.
        """
        self._check_once(target)
        eps: list[PlannedEp] = []
        unchecked: list[str] = []
        for choice in target.eps:
            planned = self._plan_ep(choice, target, toolchain, unchecked)
            if planned is not None:
                eps.append(planned)
        runtime = self._get_runtime_rules(eps, toolchain, strict=not target.allow_unknown_session_keys)
        session = _OptionValidator(runtime.session, self.problems)
        session.check(target.session_options)
        files, staged = self._stage_files(target.session_options, session, "session")
        run = _OptionValidator(runtime.run, self.problems)
        run.check(target.run_options)
        if len(eps) == len({choice.ep.name for choice in target.eps}) and target.whole:
            problems = list(compile_problems(target, eps))
            self.problems += problems
            if toolchain is not None and not problems:
                needs = self.needs.setdefault(toolchain.name, {})
                for ep in eps:
                    needs[ep.entry.ep] = ep
        plugin = next((ep.entry.ep for ep in eps if ep.entry.kind == "plugin"), None) if runtime.is_old else None
        if plugin is not None and toolchain is not None:
            message = f"{runtime.release} does not support plugin EPs such as {plugin}"
            self.problems.append(Problem("EPB251", message, toolchain.where, f"Pin onnxruntime {COMPILER_SINCE} or later."))
        if len(eps) < len(target.eps) or toolchain is None or not target.whole:
            return None
        found = PlannedTarget(
            name=target.name,
            toolchain=toolchain,
            eps=tuple(eps),
            session_options={**session.values, **staged},
            session_files=files,
            unkeyed=session.unkeyed,
            environment={name: format_plain(setting.value) for name, setting in target.environment.items()},
            run_options=run.values,
            unchecked=(*session.unchecked, *run.unchecked, *unchecked),
            allow_nondeterminism=target.allow_nondeterminism,
            where=target.where,
            old_runtime=str(runtime.release) if runtime.is_old else None,
        )
        if target.session_options and not session.failed:
            self.problems += find_session_conflicts(found, target.session_options)
        return found

    def _plan_ep(
        self, choice: EpChoice, target: Target, toolchain: ToolchainSpec | None, unchecked: list[str]
    ) -> PlannedEp | None:
        """Plan one EP of a target, and add the names of its unchecked options to `unchecked`. Return None if the EP is unknown."""
        name, known = choice.ep.name, self._known_eps
        if not name:  # the reader of the recipe has reported an invalid name
            return None
        if name not in known:
            names = ", ".join(get_short_name(ep) if ep in BUILT_IN.known_eps() else ep for ep in known)
            hint = _suggest_ep(name, known) or f"Known EPs: {names}. To add an EP, list a catalog file under `catalogs`."
            self.problems.append(Problem("EPB210", f"unknown EP '{name}'", choice.ep.where, hint))
            return None
        if toolchain is None and len(self.catalog.entries_for(name)) > 1:
            return None  # several packages contain the EP, and only the toolchain determines which of them is used
        found, release = self._get_packaging(name, toolchain)
        strict = not target.allow_unknown_options
        # The version of a plugin library from the recipe is unknown.
        checked = _OptionValidator(
            self._get_option_rules(found, strict, release if choice.library is None else None), self.problems
        )
        checked.check(choice.provider_options)
        # If a value is invalid or unknown, further refusals would be noise.
        for options, reason in find_refusals(found, checked.values) if strict and target.whole and not checked.failed else ():
            at = next(
                (choice.provider_options[option].where for option in options if option in choice.provider_options),
                choice.ep.where,
            )
            self.problems.append(Problem("EPB214", f"{found.ep}: {reason}", at))
        self._check_device(choice, found)
        files, staged = self._stage_files(choice.provider_options, checked, found.short)
        unchecked += checked.unchecked
        return PlannedEp(
            entry=found,
            device=choice.device,
            provider_options={**checked.values, **staged},
            files=files,
            library=self._find_library(choice, found),
            unkeyed=checked.unkeyed,
            only_compiling=frozenset([name for name, result in checked.special.items() if result.only_compiling]),
        )

    def _get_packaging(self, name: str, toolchain: ToolchainSpec | None) -> tuple[EpEntry, _Release | None]:
        """Return the catalog entry of an EP for a toolchain's packages, and the release that the toolchain pins."""
        key = (name, id(toolchain))
        if key not in self._packagings:
            requirements = toolchain.requirements if toolchain is not None else ()
            found = self.catalog.entry(name, (requirement.distribution for requirement in requirements))
            release = _find_pinned_release(toolchain, found.distributions) if toolchain is not None else None
            self._packagings[key] = found, release
        return self._packagings[key]

    def _get_runtime_rules(self, eps: Sequence[PlannedEp], toolchain: ToolchainSpec | None, *, strict: bool) -> _RuntimeRules:
        """Return the rules of the ONNX Runtime that a target uses."""
        key = (id(toolchain), strict, *[id(ep.entry) for ep in eps])
        if key not in self._runtimes:
            release = _find_runtime(eps, toolchain)
            self._runtimes[key] = _RuntimeRules(
                release,
                is_old=release is not None and release.is_before(COMPILER_SINCE),
                session=self._get_rules("session key", find_session_key, strict, release),
                run=self._get_rules("run option", find_run_option, strict, release),
            )
        return self._runtimes[key]

    def _get_option_rules(self, entry: EpEntry, strict: bool, release: _Release | None) -> _OptionRules:
        key = (id(entry), strict, release)
        if key not in self._rules:

            def canonical(option: Option, value: object) -> str:
                table = entry.names.get(option.name)
                if table is not None and isinstance(value, str):
                    value = table.find(value) or value
                try:
                    return normalize(
                        option, value, booleans=entry.booleans, names=entry.canonical_names(option.name), strict=strict
                    )
                except BadValue as error:
                    hint = error.hint or (table.suggest_product(str(value)) if table is not None else None)
                    raise BadValue(error.message, hint) from error

            escape = "allow_unknown_options"
            self._rules[key] = _OptionRules("option", escape, strict, release, lambda name: find_option(entry, name), canonical)
        return self._rules[key]

    def _get_rules(self, kind: str, find: Callable[[str], Option], strict: bool, release: _Release | None) -> _OptionRules:
        """Return the rules for options of ONNX Runtime itself."""
        key = (kind, strict, release)
        if key not in self._rules:

            def canonical(option: Option, value: object) -> str:
                return normalize(option, value, booleans=("0", "1"), names={}, strict=strict)

            escape = "allow_unknown_session_keys"
            self._rules[key] = _OptionRules(kind, escape, strict, release, find, canonical)
        return self._rules[key]

    def _check_device(self, choice: EpChoice, found: EpEntry) -> None:
        if choice.device.virtual and not found.virtual_devices:
            message = f"{found.ep} does not support virtual devices"
            self.problems.append(Problem("EPB218", message, choice.ep.where, "Remove `virtual` from the target's device."))
        for key, value in choice.device.metadata.items():
            try:
                check_metadata(found, key, value)
            except BadValue as error:
                self.problems.append(Problem("EPB218", f"device metadata '{key}': {error.message}", choice.ep.where, error.hint))

    def _check_once(self, target: Target) -> None:
        if len(target.eps) == 1:
            return
        seen: set[str] = set()
        for choice in target.eps:
            if choice.ep.name and choice.ep.name in seen:
                message = f"the target '{target.name}' lists {choice.ep.name} twice"
                self.problems.append(Problem("EPB219", message, choice.ep.where, "List each EP only once."))
            seen.add(choice.ep.name)

    def _stage_files(
        self, settings: Mapping[str, Setting], checked: _OptionValidator, owner: str
    ) -> tuple[dict[str, OptionFile], dict[str, str]]:
        """Return the files that options name, by option and number, and option values with staged names instead of paths."""
        files: dict[str, OptionFile] = {}
        staged: dict[str, str] = {}
        for name, result in checked.special.items():
            if result.option.type == "folder":
                use_slashes(result.value, settings[name].where, self.problems)
            names = []
            for number, text in enumerate(result.files):
                path = use_slashes(text, settings[name].where, self.problems)
                # Relative to the file that contains the option. That may be an included file.
                here = Path(settings[name].where.file).parent / path
                if not here.is_file():
                    message = f"the file of the option '{name}' does not exist: {format_path(path)}"
                    self.problems.append(Problem("EPB215", message, settings[name].where, _RELATIVE))
                names.append(f"options/{owner}/{name}/{number}/{PureWindowsPath(path).name}")
                files[name if number == 0 else f"{name} {number + 1}"] = OptionFile(here, names[-1])
            if names:
                staged[name] = result.option.with_files(result.value, names)
        return files, staged

    def _find_library(self, choice: EpChoice, found: EpEntry) -> Path | None:
        if choice.library is None:
            return None
        named, where = str(choice.library.value), choice.library.where
        path = self.base / expand_home(named)
        if found.kind != "plugin":
            self.problems.append(
                Problem("EPB216", f"{found.ep} is built into ONNX Runtime and cannot be loaded from a plugin library", where)
            )
        elif not path.is_file():
            self.problems.append(Problem("EPB215", f"the plugin library does not exist: {named}", where, _RELATIVE))
        return path


def _suggest_ep(name: str, known: Sequence[str]) -> str | None:
    """Return a hint with the closest known EP name, or None. Ignore the suffix `ExecutionProvider`. Use a short name if `name` is short."""
    own = {_OWN_NAME.sub("", ep).lower(): ep for ep in known}
    close = find_closest(_OWN_NAME.sub("", name).lower(), own)
    if not close:
        return None
    short, is_short = close[0], _OWN_NAME.search(name) is None
    return f"Did you mean '{short if is_short and get_full_name(short) is not None else own[short]}'?"


class _Release(Struct, frozen=True):
    """Version of a distribution that a toolchain pins."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    def is_before(self, release: str) -> bool:
        """Return whether this version is older than `release`. Return False if the version has no readable numbers."""
        numbers = release_numbers(self.version)[:2]
        return len(numbers) == 2 and numbers < release_numbers(release)


def _find_pinned_release(toolchain: ToolchainSpec, distributions: Iterable[str]) -> _Release | None:
    """Return the release that a toolchain pins for one of the distributions. Return None if it pins none or several releases."""
    wanted = frozenset(distributions)
    releases = {
        _Release(requirement.distribution, requirement.version)
        for requirement in toolchain.requirements
        if requirement.distribution in wanted and requirement.version is not None
    }
    return releases.pop() if len(releases) == 1 else None


def _find_runtime(eps: Sequence[PlannedEp], toolchain: ToolchainSpec | None) -> _Release | None:
    """Return the pinned release of `onnxruntime` or of a build that includes an EP, such as `onnxruntime-gpu`. Return None if unpinned."""
    if toolchain is None:
        return None
    builds = (name for ep in eps if ep.entry.kind == "provider" for name in ep.entry.distributions)
    return _find_pinned_release(toolchain, (_RUNTIME, *builds))


class _CheckedValue(Struct, frozen=True):
    """Option with a canonical value, and everything that follows from the two. Thousands of targets may have the same value."""

    option: Option
    value: str
    is_known: bool
    """True if the release supports the option."""
    files: tuple[str, ...]
    only_compiling: bool
    is_special: bool
    """False for most values: they are known, keyed, part of what every session receives, and name no place on disk."""


class _OptionRules(Struct):
    """Rules for settings of one kind: options of an EP, or session keys.

    `release` is the pinned release that will read the settings. If `strict` is true, settings that the release does not support are
    errors. Otherwise, unknown settings are passed unchanged, and settings of other releases in the spelling of those releases.
    """

    kind: str
    escape: str
    strict: bool
    release: _Release | None
    find: Callable[[str], Option]
    canonical: Callable[[Option, object], str]
    _found: dict[tuple[str, type, object], _CheckedValue] = field(default_factory=dict)

    def apply(self, name: str, value: object) -> _CheckedValue:
        """Return the option with its canonical value. Raises UnknownName and BadValue."""
        key = (name, type(value), value)
        if key not in self._found:
            option, release = self.find(name), self.release
            known = release is None or option.known_in(release.version)
            if self.strict and not known:
                message = f"{release} does not support the {self.kind} '{option.name}', which is available {option.releases}"
                hint = f"Pin a release that supports it, or set {self.escape} on the target to pass it without a check."
                raise UnknownName(message, hint)
            text = self.canonical(option, value)
            files, only_compiling = option.files(text), option.only_compiling(text)
            is_special = (
                not known or not option.is_keyed or option.diagnostic or option.type == "folder" or bool(files) or only_compiling
            )
            self._found[key] = _CheckedValue(option, text, known, files, only_compiling, is_special)
        return self._found[key]


class _RuntimeRules(Struct, frozen=True):
    """Rules for the settings that ONNX Runtime itself reads.

    `release` is the pinned release of ONNX Runtime. `is_old` is True if it lacks ModelCompiler.
    """

    release: _Release | None
    is_old: bool
    session: _OptionRules
    run: _OptionRules


class _OptionValidator(Struct):
    """Validator of settings of one kind, with their canonical values."""

    rules: _OptionRules
    problems: list[Problem]
    values: dict[str, str] = field(default_factory=dict)
    special: dict[str, _CheckedValue] = field(default_factory=dict)
    failed: bool = False
    unchecked: list[str] = field(default_factory=list)
    unkeyed: frozenset[str] = frozenset()

    def check(self, settings: Mapping[str, Setting]) -> None:
        for name, setting in settings.items():
            try:
                checked = self.rules.apply(name, setting.value)
            except UnknownName as error:
                self._add_unknown(name, setting, error)
            except BadValue as error:
                self._add_problem("EPB212", f"{self.rules.kind} '{name}': {error.message}", setting.where, error.hint)
            else:
                self.values[name] = checked.value
                if checked.is_special:
                    self.special[name], option = checked, checked.option
                    if not checked.is_known:
                        self.unchecked.append(option.name)
                    if not option.is_keyed:
                        self.unkeyed |= {name}
                    if option.diagnostic and option.type in ("text", "folder"):
                        self._check_place(name, self.values[name], setting.where)

    def _check_place(self, name: str, value: str, where: Position) -> None:
        """Add a problem if the path of a diagnostic option leads outside the staging directory. epbuild only keeps files inside it."""
        if is_anchored(value) or is_outside(value):
            message = f"{self.rules.kind} '{name}': the path '{value}' must be relative and must not contain '..'"
            self._add_problem("EPB212", message, where, "epbuild keeps the files beside the log of the step.")

    def _add_unknown(self, name: str, setting: Setting, error: UnknownName) -> None:
        if error.reserved:
            self._add_problem("EPB213", error.message, setting.name_where, error.hint)
        elif self.rules.strict:
            hint = error.hint or f"Set {self.rules.escape} on the target to pass it without a check."
            self._add_problem("EPB211", error.message, setting.name_where, hint)
        else:
            self.values[name] = format_plain(setting.value)
            self.unchecked.append(name)

    def _add_problem(self, code: str, message: str, where: Position, hint: str | None) -> None:
        self.failed = True
        self.problems.append(Problem(code, message, where, hint))


def find_sharing_refusals(target: PlannedTarget) -> list[str]:
    """Return the reasons, as sentences, why `target` does not support shared weights. The list is empty if it does."""
    reasons = []
    for ep in target.compiling or target.eps:
        sharing = ep.entry.sharing
        if not sharing.possible:
            reasons.append(sharing.reason)
            continue
        for refusal in sharing.refused_values:
            value = ep.provider_options.get(refusal.option, "")
            if refusal.matches(value):
                reasons.append(f"{refusal.option} is '{value}', and {refusal.reason}")
    return reasons
