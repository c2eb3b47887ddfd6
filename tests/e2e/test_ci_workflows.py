"""Workflows of docs/ci, run line by line with the real compiler in jobs that share only a remote cache."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from check_jsonschema import main
from click.testing import CliRunner

from epbuild.remote.keys import SigningKey
from tests.e2e.workflow_runs import ROOT, Ci, Ran
from tests.support.cache_server import serving_cache
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project, built_once, copy_of_quickstart

pytestmark = pytest.mark.gate

OURS = SigningKey.generate()
GITHUB, SMALL = (ROOT / "docs" / "ci" / f"{name}.yml" for name in ("github", "github-small"))
GITLAB, GITLAB_MATRIX = (ROOT / "docs" / "ci" / f"{name}.yml" for name in ("gitlab-ci", "gitlab-matrix-ci"))
BUILT = "] built"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return the quickstart with a lock."""
    folder = tmp_path_factory.mktemp("ci")
    project = copy_of_quickstart(folder / "quickstart", folder / "cache")
    done = project.epbuild("lock")
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture(scope="module")
def programs(shared_folder: Path) -> str:
    """Return the folder of the epbuild that the action installs from this checkout. It is installed once in a test run."""
    folder = shared_folder / "action"

    def install(folder: Path) -> None:
        assert succeeded([set_up(folder, "uv", "{command: setup}")])

    built_once(folder, install)
    return (folder / "job1" / "temp" / "epbuild" / "bin").as_posix()


def set_up(folder: Path, installer: str, inputs: str) -> Ran:
    """Run the action with these inputs on a machine that has Python and one installer."""
    (folder / "checkout").mkdir()
    (folder / "programs").mkdir()
    for name in ("python", installer):
        program = folder / "programs" / name
        program.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).with_name(name)}" "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    workflow = folder / "w.yml"
    workflow.write_text(f"jobs: {{x: {{steps: [{{uses: epbuild/epbuild@COMMIT, with: {inputs}}}]}}}}", encoding="utf-8")
    [run] = Ci(folder / "checkout", folder, {"PATH": f"{folder / 'programs'}:/usr/bin:/bin"}).github(workflow)["x"]
    return run


def checkout(locked: Project, folder: Path, remote: str) -> Project:
    copy = copy_of_quickstart(folder, folder.parent / "unused")
    (folder / "epbuild.lock").write_bytes((locked.folder / "epbuild.lock").read_bytes())
    copy.edit("epbuild: 1\n", f"epbuild: 1\ncache: {{remote: '{remote}', trust: ['{OURS.public}']}}\n")
    return copy


def published(run: Ran) -> list[str]:
    dist = run.folder / "project" / "dist"
    return sorted(path.relative_to(dist).as_posix() for path in dist.rglob("*") if path.is_file())


def succeeded(runs: Iterable[Ran]) -> bool:
    for run in runs:
        assert run.result == "success", run.log
    return True


def stored(remote: Path) -> dict[str, bytes]:
    return {path.relative_to(remote).as_posix(): path.read_bytes() for path in remote.rglob("*") if path.is_file()}


def installed(line: str) -> str:
    """Replace the installation of epbuild in a job by the environment of this test."""
    own = {"python -m venv .venv": f"mkdir -p .venv/bin; ln -s {Path(sys.executable).with_name('epbuild')} .venv/bin/"}
    return own.get(line, ":" if "pip install" in line else line)


def test_github_plans_compiles_in_a_matrix_and_publishes_the_results(locked: Project, programs: str, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    project = checkout(locked, tmp_path / "checkout", str(remote))
    ci = Ci(project.folder, tmp_path, {"SIGNING_KEY_OF_TEST": OURS.text}, bare=frozenset({"plan", "publish"}), programs=programs)

    first = ci.github(GITHUB, ref_protected=True)
    assert succeeded(run for runs in first.values() for run in runs)
    [plan] = first["plan"]
    jobs = json.loads(plan.outputs["matrix"])["include"]
    assert len(jobs) == len(first["compile"]) == 4
    assert all(BUILT in run.log and published(run) == [] for run in first["compile"])
    [last] = first["publish"]
    assert BUILT not in last.log
    assert "4 of 4 found" in last.log
    assert len([name for name in published(last) if name.endswith("_ctx.onnx")]) == 6
    assert "### epbuild run: `quickstart`" in last.summary
    assert not any((run.folder / "toolchains").exists() for run in (plan, last)), (
        "neither compiles, and neither installs a compiler"
    )
    before = stored(remote)
    assert before

    again = ci.github(GITHUB, ref_protected=True)
    assert again["plan"][0].outputs["matrix"] == '{"include": []}'
    assert [run.result for runs in again.values() for run in runs] == ["success", "skipped", "success"]
    assert published(again["publish"][0]) == published(last)

    (project.folder / "models" / "classifier" / "classifier.onnx").write_bytes(
        (project.folder / "models" / "classifier" / "classifier.onnx").read_bytes() + b"\x72\x00"
    )
    ci.bare = frozenset({"plan"})
    fork = ci.github(GITHUB, ref_protected=False)
    assert [run.result for runs in fork.values() for run in runs] == ["success", "skipped", "success"], fork["publish"][0].log
    jobs = json.loads(fork["plan"][0].outputs["matrix"])["include"]
    assert sorted(step for job in jobs for step in job["steps"].split("\n")) == [
        f"compile:classifier/snapdragon-{soc}/classifier" for soc in ("SC8380XP", "SM8750")
    ]
    took = [float(seconds) for data in before.values() for seconds in re.findall(rb'"seconds":([0-9.]+)', data)]
    # Models are estimated from the times of similar ones, in tenths of a second.
    assert all(min(took) - 0.15 < job["seconds"] < max(took) + 0.15 for job in jobs), "what it took in the first run is kept"
    assert fork["publish"][0].log.count(BUILT) == 2
    assert stored(remote) == before, "a pull request writes nothing"


def test_a_small_repository_keeps_its_store_in_githubs_own_cache(locked: Project, programs: str, tmp_path: Path) -> None:
    project = copy_of_quickstart(tmp_path / "checkout", tmp_path / "unused")
    (project.folder / "epbuild.lock").write_bytes((locked.folder / "epbuild.lock").read_bytes())
    ci = Ci(project.folder, tmp_path, {}, programs=programs)
    [first] = ci.github(SMALL, ref="refs/heads/main")["build"]
    assert succeeded([first])
    assert BUILT in first.log
    [second] = ci.github(SMALL, ref="refs/pull/1/merge")["build"]
    assert succeeded([second])
    assert BUILT not in second.log
    assert published(second) == published(first)


def test_gitlab_compiles_in_equal_jobs_and_publishes_the_results(locked: Project, tmp_path: Path) -> None:
    with serving_cache() as server:
        project = checkout(locked, tmp_path / "checkout", server.address)
        ci = Ci(project.folder, tmp_path, {})
        done = ci.gitlab(GITLAB, installed, CI_COMMIT_REF_PROTECTED="true", EPBUILD_SIGNING_KEY=OURS.text)
        assert succeeded(run for runs in done.values() for run in runs)
        assert [BUILT in run.log for run in done["compile"]] == [True] * 4
        [last] = done["publish"]
        assert BUILT not in last.log
        assert len([name for name in published(last) if name.endswith("_ctx.onnx")]) == 6
        assert "4 of 4 found" in (last.folder / "project" / "epbuild-summary.md").read_text(encoding="utf-8")
        server.requests.clear()
        fork = ci.gitlab(GITLAB, installed, CI_COMMIT_REF_PROTECTED="false", CI_PIPELINE_SOURCE="merge_request_event")
        assert list(fork) == ["publish"]
        assert succeeded(fork["publish"])
        assert server.count("PUT", "ac") == 0


def test_gitlab_compiles_missing_results_in_a_generated_pipeline(locked: Project, tmp_path: Path) -> None:
    project = checkout(locked, tmp_path / "checkout", str(tmp_path / "remote"))
    ci = Ci(project.folder, tmp_path, {}, bare=frozenset({"plan", "publish"}))

    def run() -> dict[str, list[Ran]]:
        return ci.gitlab(GITLAB_MATRIX, installed, CI_COMMIT_REF_PROTECTED="true", EPBUILD_SIGNING_KEY=OURS.text)

    first = run()
    assert succeeded(one for runs in first.values() for one in runs)
    assert [BUILT in one.log for one in first["compile"]] == [True] * 4
    [written] = Path(first["plan"][0].folder).rglob("jobs.yml")
    check("gitlab-ci", [written])
    [last] = first["publish"]
    assert BUILT not in last.log
    assert len([name for name in published(last) if name.endswith("_ctx.onnx")]) == 6
    again = run()
    assert succeeded(one for runs in again.values() for one in runs)
    assert len(again["compile"]) == 1
    assert "epbuild" not in again["compile"][0].log, "a pipeline has to have a job"


@pytest.mark.parametrize("installer", mark_rest_exhaustive(["uv", "pip"], sample=["uv"]))
def test_the_action_installs_with_any_available_installer(installer: str, tmp_path: Path) -> None:
    run = set_up(tmp_path, installer, "{command: setup, package: filelock}")
    assert succeeded([run])
    assert list((run.folder / "temp" / "epbuild" / "lib").rglob("filelock/__init__.py"))


def test_the_action_builds_without_a_lock_and_suggests_a_lock(programs: str, tmp_path: Path) -> None:
    project = copy_of_quickstart(tmp_path / "checkout", tmp_path / "unused")
    workflow = tmp_path / "w.yml"
    workflow.write_text("jobs: {x: {steps: [{uses: epbuild/epbuild@COMMIT, with: {command: plan}}]}}", encoding="utf-8")
    [run] = Ci(project.folder, tmp_path, {}, programs=programs).github(workflow)["x"]
    assert succeeded([run])
    assert "::notice::epbuild.yaml has no lock: run `epbuild lock` and commit its file" in run.log


FAKE = """\
#!/bin/sh
case "$*" in
  --version) echo "epbuild 1" ;;
  "cache --json") printf '{\\n    "place": "%s",\\n}\\n' "$EPBUILD_TOOLCHAIN_DIR" ;;
  "validate --explain epbuild.yaml") cat epbuild.yaml ;;
  *) for name in $(sed -n 's/^  \\(.*\\): {packages.*/\\1/p' epbuild.yaml); do
       [ -e "$EPBUILD_TOOLCHAIN_DIR/$name/complete" ] || echo "installs $name"
       mkdir -p "$EPBUILD_TOOLCHAIN_DIR/$name"; touch "$EPBUILD_TOOLCHAIN_DIR/$name/complete"
     done ;;
esac
"""
"""Program that installs every toolchain of a recipe as an empty folder."""
TWO = "epbuild: 1\ntoolchains:\n  one: {packages: [x==1]}\n  two: {packages: [y==1]}\nmodels: [a.onnx]\n"


def cached_runs(folder: Path, recipes: Iterable[str], **inputs: str) -> list[str]:
    """Run the action with an epbuild that only installs toolchains, once for each recipe. Return the logs."""
    for name in ("checkout", "programs"):
        (folder / name).mkdir()
    program = folder / "programs" / "epbuild"
    program.write_text(FAKE, encoding="utf-8")
    program.chmod(0o755)
    workflow = folder / "w.yml"
    workflow.write_text(
        json.dumps({"jobs": {"x": {"steps": [{"uses": "epbuild/epbuild@COMMIT", "with": inputs}]}}}), encoding="utf-8"
    )
    ci = Ci(folder / "checkout", folder, {"EPBUILD_TOOLCHAIN_DIR": str(folder / "toolchains")}, programs=str(program.parent))
    logs = []
    for recipe in recipes:
        (ci.checkout / "epbuild.yaml").write_text(recipe, encoding="utf-8")
        [run] = ci.github(workflow)["x"]
        assert succeeded([run])
        logs.append(" ".join(re.findall(r"installs \w+", run.log)))
        shutil.rmtree(folder / "toolchains", ignore_errors=True)
    return logs


def test_the_action_keeps_toolchains_until_the_recipe_needs_others(tmp_path: Path) -> None:
    edited, other = TWO.replace("a.onnx", "b.onnx"), TWO.replace("y==1", "y==2")
    assert cached_runs(tmp_path, [TWO, edited, other]) == ["installs one installs two", "", "installs one installs two"]


@pytest.mark.parametrize("inputs", [{"signing-key": "secret"}, {"cache-toolchains": "false"}, {"arguments": "--no-compile"}])
def test_the_action_restores_no_toolchains_for_jobs_that_should_not_run_them(inputs: dict[str, str], tmp_path: Path) -> None:
    assert cached_runs(tmp_path, [TWO, TWO], **inputs) == ["installs one installs two"] * 2


@pytest.mark.exhaustive
def test_restored_toolchains_compile(programs: str, tmp_path: Path) -> None:
    project = copy_of_quickstart(tmp_path / "checkout", tmp_path / "unused")
    workflow = tmp_path / "w.yml"
    workflow.write_text("jobs: {x: {steps: [{uses: epbuild/epbuild@COMMIT}]}}", encoding="utf-8")
    own = {"EPBUILD_TOOLCHAIN_DIR": str(tmp_path / "toolchains")}
    ci = Ci(project.folder, tmp_path, own, programs=programs)
    [first] = ci.github(workflow)["x"]
    shutil.rmtree(tmp_path / "toolchains")
    [second] = ci.github(workflow)["x"]
    assert succeeded([first, second])
    assert [("ready " in run.log, BUILT in run.log) for run in (first, second)] == [(True, True), (False, True)]


def test_the_action_refuses_an_unknown_command(tmp_path: Path) -> None:
    run = set_up(tmp_path, "uv", "{command: lock, package: filelock}")
    assert run.result == "failure"
    assert "::error::the input 'command' is run, plan or setup, and not 'lock'" in run.log


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", [GITHUB, SMALL, *(ROOT / ".github" / "workflows").glob("*.yml")]),
        ("github-actions", [ROOT / "action.yml"]),
        ("gitlab-ci", [GITLAB, GITLAB_MATRIX]),
    ],
    ids=["workflows", "action", "pipeline"],
)
def test_workflow_files_match_their_schemas(schema: str, files: list[Path]) -> None:
    check(schema, files)


def check(schema: str, files: list[Path]) -> None:
    done = CliRunner().invoke(main, ["--builtin-schema", f"vendor.{schema}", *map(str, files)])
    assert done.exit_code == 0, done.output
