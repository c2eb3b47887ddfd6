"""Runs of workflows of CI systems: their shell lines in bash, each job in a checkout and with a store of its own.

This module simulates the rest (third-party actions, the order of jobs, artifacts) as the systems' documentation defines
it. An unknown expression or action fails the test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from epbuild.cache.location import find_toolchain_directory

ROOT = Path(__file__).parents[2]
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_TOKEN = re.compile(r"'((?:[^']|'')*)'|&&|\|\||!=|==|!|[A-Za-z_][\w.-]*|[(),]|\s+")
_OPERATORS = {"&&": " and ", "||": " or ", "!=": "!=", "==": "==", "!": " not ", "(": "(", ")": ")", ",": ","}
_VARIABLES_OF_CI = re.compile(r"^(CI|GITHUB|RUNNER|EPBUILD|NO_COLOR|FORCE_COLOR)(_|$)")


def load(path: Path) -> dict[str, Any]:
    """Read a YAML file as a CI system does: `on` is a name."""
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return found


@dataclass
class Ran:
    """Result of one job."""

    result: str
    folder: Path
    log: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""


@dataclass
class Ci:
    """A CI system with one project, in which each job begins with only a copy of `checkout`."""

    checkout: Path
    scratch: Path
    variables: Mapping[str, str]
    """Environment variables of every job, in addition to the system's own."""
    bare: frozenset[str] = frozenset()
    """The jobs that begin without the toolchains of this machine."""
    kept: dict[str, Path] = field(default_factory=dict)
    """Entries of actions/cache by key, the oldest first."""
    programs: str = ""
    """Folder of an installed epbuild, as an installation takes long. If it is empty, the first job installs epbuild."""
    _jobs: int = 0

    def start(self, job: str) -> tuple[Path, dict[str, str]]:
        """Create a checkout and an environment for a job, with an own store and the toolchains of this machine or none."""
        self._jobs += 1
        folder = self.scratch / f"job{self._jobs}"
        shutil.copytree(self.checkout, folder / "project")
        (folder / "temp").mkdir()
        toolchains = folder / "toolchains" if job in self.bare else find_toolchain_directory()
        kept = {name: value for name, value in os.environ.items() if not _VARIABLES_OF_CI.match(name)}
        own = {"EPBUILD_CACHE_DIR": str(folder / "store"), "EPBUILD_TOOLCHAIN_DIR": str(toolchains), "CI": "true"}
        return folder, {**kept, **own, **self.variables}

    # -- GitHub Actions --------------------------------------------------------------------------------------------------

    def github(self, workflow: Path, **context: str | bool) -> dict[str, list[Ran]]:
        """Run the jobs of a workflow in order, those of a matrix one after the other. `context` is that of `github`."""
        done: dict[str, list[Ran]] = {}
        known: dict[str, Any] = {"github": {"run_id": str(self._jobs), "run_attempt": "1", **context}, "secrets": {}, "needs": {}}
        if context.get("ref_protected"):
            known["secrets"] = {"EPBUILD_SIGNING_KEY": self.variables.get("SIGNING_KEY_OF_TEST", "")}
        for name, job in load(workflow)["jobs"].items():
            needs = job.get("needs", [])
            needed = [needs] if isinstance(needs, str) else needs
            known["needs"] = {other: _summed(done[other]) for other in needed}
            wanted = value(
                job.get("if", "success()"), known, all(_summed(done[other])["result"] == "success" for other in needed)
            )
            if not wanted:
                done[name] = [Ran("skipped", self.scratch)]
                continue
            matrix = job.get("strategy", {}).get("matrix")
            rows = value(matrix, known)["include"] if matrix else [{}]
            assert rows, "GitHub refuses a matrix without jobs"
            done[name] = [self._github_job(name, job, {**known, "matrix": row}) for row in rows]
        return done

    def _github_job(self, name: str, job: Mapping[str, Any], known: Mapping[str, Any]) -> Ran:
        folder, environment = self.start(name)
        known = {**known, "github": {**known["github"], "workspace": str(folder / "project")}}
        own = {variable: str(value(text, known)) for variable, text in job.get("env", {}).items()}
        own.pop("EPBUILD_TOOLCHAIN_DIR", None)  # installing them takes long
        environment |= {**own, "GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(folder / "temp")}
        environment |= {"RUNNER_OS": "Linux", "RUNNER_ARCH": "X64"}
        run = Ran("success", folder)
        steps: dict[str, Any] = {}
        for step in job["steps"]:
            self._github_step(step, {**known, "steps": steps}, environment, run)
            if run.result != "success":
                break
        run.outputs = {output: value(text, {**known, "steps": steps}) for output, text in job.get("outputs", {}).items()}
        return run

    def _github_step(self, step: Mapping[str, Any], known: Mapping[str, Any], environment: dict[str, str], run: Ran) -> None:
        if not value(step.get("if", "success()"), known):
            return
        given = {name: value(text, known) for name, text in step.get("with", {}).items()}
        outputs: dict[str, str] = {}
        uses = step.get("uses", "").partition("@")[0]
        if step.get("name") == "Set epbuild up" and self.programs:
            environment["PATH"] = f"{self.programs}{os.pathsep}{environment['PATH']}"
        elif "run" in step:
            assert step.get("shell", "bash") == "bash"
            own = {name: str(value(text, known)) for name, text in step.get("env", {}).items()}
            outputs = self._shell(value(step["run"], known), {**environment, **own}, environment, run)
        elif uses == "epbuild/epbuild":
            action = load(ROOT / "action.yml")
            assert given.keys() <= action["inputs"].keys()
            inputs = {name: given.get(name, item.get("default", "")) for name, item in action["inputs"].items()}
            inner: dict[str, Any] = {}
            inside = {**known, "inputs": inputs, "steps": inner, "github": {**known["github"], "action_path": str(ROOT)}}
            for each in action["runs"]["steps"]:
                if run.result == "success":
                    self._github_step(each, inside, environment, run)
            outputs = {name: value(item["value"], inside) for name, item in action["outputs"].items()}
        else:
            outputs = self._action(uses, given, run)
        if "id" in step:
            known["steps"][step["id"]] = {"outputs": outputs}

    def _action(self, uses: str, given: Mapping[str, Any], run: Ran) -> dict[str, str]:
        """Run a third-party action, and return its outputs."""
        project = run.folder / "project"
        match uses:
            case "actions/checkout" | "actions/setup-python":
                pass
            case "actions/cache/restore":
                keys = [key for key in self.kept if key == given["key"] or key.startswith(given["restore-keys"])]
                if keys:
                    copy(self.kept[keys[-1]], project / given["path"])
                return {"cache-matched-key": keys[-1] if keys else ""}
            case "actions/cache/save":
                place = self.scratch / "kept" / str(len(self.kept))
                copy(project / given["path"], place)
                self.kept[given["key"]] = place
            case "actions/upload-artifact":
                assert any((project / given["path"]).rglob("*"))
            case _:
                raise AssertionError(f"an action that this test does not know: {uses}")
        return {}

    def _shell(self, script: str, variables: Mapping[str, str], environment: dict[str, str], run: Ran) -> dict[str, str]:
        files = {name: run.folder / "temp" / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
        for path in files.values():
            path.write_text("", encoding="utf-8")
        bash(script, {**variables, **{name: str(path) for name, path in files.items()}}, run)
        text = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
        run.summary += text["GITHUB_STEP_SUMMARY"]
        for line in text["GITHUB_PATH"].splitlines():
            environment["PATH"] = f"{line}{os.pathsep}{environment['PATH']}"
            self.programs = line
        return dict(line.split("=", 1) for line in text["GITHUB_OUTPUT"].splitlines())

    # -- GitLab CI -------------------------------------------------------------------------------------------------------

    def gitlab(self, pipeline: Path, before: Callable[[str], str], **own: str) -> dict[str, list[Ran]]:
        """Run the jobs of a pipeline by stage. `own` are the system's variables; `before` maps each line of before_script."""
        text = load(pipeline)
        shared = text.get("variables", {})
        listed = (name for name in text if name != "variables" and isinstance(text[name], dict) and not name.startswith("."))
        jobs = {name: self._extended(text, name) for name in listed}
        done: dict[str, list[Ran]] = {}
        for stage in text["stages"]:
            for name, job in jobs.items():
                rule = next((rule for rule in job["rules"] if _holds(rule["if"], own)), None)
                if job["stage"] != stage or rule is None:
                    continue
                variables = {**shared, **rule.get("variables", {}), **own}
                made = {name: job}
                if "trigger" in job:  # a pipeline that another job has written
                    [include] = job["trigger"]["include"]
                    [writer] = done[include["job"]]
                    made = load(writer.folder / "project" / include["artifact"])
                done[name] = [run for each in made.values() for run in self._gitlab_jobs(name, each, before, variables)]
        return done

    def _gitlab_jobs(
        self, name: str, job: Mapping[str, Any], before: Callable[[str], str], variables: Mapping[str, str]
    ) -> Iterator[Ran]:
        lines = [*map(before, job.get("before_script", [])), *job["script"]]
        parallel = int(job.get("parallel", "0"))
        for number in range(1, max(parallel, 1) + 1):
            folder, environment = self.start(name)
            nodes = {"CI_NODE_TOTAL": str(max(parallel, 1)), **({"CI_NODE_INDEX": str(number)} if parallel else {})}
            run = Ran("success", folder)
            bash("\n".join(lines), {**environment, **variables, **job.get("variables", {}), **nodes}, run)
            left = job.get("artifacts", {}).get("paths", [])
            assert run.result != "success" or all((folder / "project" / path).exists() for path in left)
            yield run

    def _extended(self, text: Mapping[str, Any], name: str) -> dict[str, Any]:
        job = dict(text[name])
        return {**self._extended(text, job["extends"]), **job} if "extends" in job else job


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copyfile(source, target)


def bash(script: str, variables: Mapping[str, str], run: Ran) -> None:
    """Run lines in the project's folder, as a runner does. A failed line fails the job."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=run.folder / "project",
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    run.log += done.stdout
    if done.returncode:
        run.result = "failure"


def value(text: Any, known: Mapping[str, Any], success: bool = True) -> Any:
    """Evaluate the expressions in a text.

    The result may have any type if the whole text is an expression. The braces of an `if` are optional.
    """
    if not isinstance(text, str):
        return text
    whole = _EXPRESSION.fullmatch(text.strip())
    if whole is not None:
        return _evaluated(whole[1], known, success)
    if "${{" not in text and re.search(r"\(\)|&&|==|!=", text) and "\n" not in text.strip():
        found = _evaluated(text, known, success)
        return found if "()" in text or success else False
    return _EXPRESSION.sub(lambda match: _shown(_evaluated(match[1], known, success)), text)


def _evaluated(expression: str, known: Mapping[str, Any], success: bool) -> Any:
    names: list[Any] = []

    def translated(match: re.Match[str]) -> str:
        token = match[0]
        if token.isspace():
            return ""
        if token in _OPERATORS:
            return _OPERATORS[token]
        names.append(match[1].replace("''", "'") if match[1] is not None else _named(token, known, success))
        return f"names[{len(names) - 1}]"

    assert _TOKEN.sub("", expression) == "", f"an expression that this test does not know: {expression}"
    code = _TOKEN.sub(translated, expression)
    return eval(code, {"__builtins__": {}}, {"names": names})


def _named(token: str, known: Mapping[str, Any], success: bool) -> Any:
    functions: dict[str, Callable[..., Any]] = {
        "fromJSON": json.loads,
        "format": lambda text, *values: text.format(*values),
        "cancelled": lambda: False,
        "success": lambda: success,
    }
    if token in functions:
        return functions[token]
    if token in ("true", "false"):
        return token == "true"
    found: Any = known
    for part in token.split("."):
        found = found.get(part, "") if isinstance(found, Mapping) else ""
    return found


def _summed(runs: Sequence[Ran]) -> dict[str, Any]:
    results = {run.result for run in runs}
    result = next(result for result in ("failure", "skipped", "success") if result in results)
    return {"result": result, "outputs": runs[0].outputs}


def _shown(found: Any) -> str:
    return str(found).lower() if isinstance(found, bool) else str(found)


def _holds(condition: str, variables: Mapping[str, str]) -> bool:
    """Evaluate a rule of GitLab: `$NAME == "text"`."""
    name, wanted = re.fullmatch(r'\$(\w+) == "([^"]*)"', condition).groups()  # type: ignore[union-attr]
    return variables.get(name) == wanted
