"""`python -m tools.golden FOLDER`: everything that a user of epbuild can see, as files to compare before and after a refactoring.

It builds the recipes that need no hardware, in a project at a fixed place, with an empty store and the toolchains of this machine. FOLDER
then holds the help of each command, the schemas, the plan with its keys, the key document of each step, the JSON of each command, and the
SHA-256 of every output, in every layout and archive format. Values that differ between runs, such as times, are replaced by a placeholder.
`lock`, `doctor`, `measure` and `plan --executor` are left out: they depend on a network, other machines or measurements. To compare two
checkouts:

    python -m tools.golden before        # in one checkout
    python -m tools.golden after         # in the other checkout
    diff -r before after
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.main import get_command

from epbuild.cli import app
from tools.reference.commands import list_commands

ROOT = Path(__file__).parents[1]
PROJECT = Path(tempfile.gettempdir()) / "epbuild-golden"
PLANNED = ("intel-npu", "ryzen-ai", "zoo")
"""Recipes that need hardware or long downloads. They are only planned."""
ARCHIVES = "archives"
EVERY_ARCHIVE = """\
epbuild: 1
name: archives
extends: quickstart.yaml
outputs:
  - {layout: directory, path: "dist/archives/${group}-${target}"}
  - {layout: directory, archive: zip, path: "dist/archives/${group}-${target}.zip"}
  - {layout: directory, archive: tar.zst, path: "dist/archives/${group}-${target}.tar.zst"}
  - {layout: directory, archive: oci, path: "dist/archives/${group}-${target}-image"}
  - {layout: ort-model-package, path: dist/archives/all.ortpackage}
  - {layout: ort-model-package, archive: zip, path: dist/archives/all.ortpackage.zip}
  - {layout: ort-model-package, archive: tar.zst, path: dist/archives/all.ortpackage.tar.zst}
  - {layout: ort-model-package, archive: oci, path: dist/archives/all-image}
"""
"""Recipe with every layout in every archive format."""
_TIMES = frozenset(
    {"began", "built", "done", "ended", "finished", "made_at", "seconds", "seconds_left", "started", "time", "took", "work"}
)
_SIZES = frozenset({"bytes_left", "free", "free_bytes", "memory", "peak"})
_PLACES = frozenset({"host", "machine", "pid", "process", "worker"})
_SIGNING_KEY = "ed25519-secret:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
_OF_THE_MOMENT = _TIMES | _SIZES | _PLACES
_PROGRESS = frozenset({"fetching", "hashing", "results_shared", "step_advanced", "toolchain_installing"})
"""Events that are reported once a second while something is running."""
_TIME = re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)\b")


def main() -> int:
    """Write the files. Return 1 if a command ended with an internal error."""
    parser = argparse.ArgumentParser(prog="python -m tools.golden", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go; it must not exist")
    parser.add_argument("--plan-only", action="store_true", help="build nothing")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    golden = Golden(arguments.folder)
    golden.write_references()
    golden.copy_recipes()
    try:
        recipes = sorted(path.stem for path in (PROJECT / "recipes").glob("*.yaml"))
        for recipe in recipes:
            golden.write_plan(recipe)
        if not arguments.plan_only:
            for recipe in recipes:
                if recipe not in PLANNED:
                    golden.write_build(recipe)
            golden.write_key_documents()
            golden.write_documents_of_outputs()
    finally:
        shutil.rmtree(PROJECT)
    return 1 if golden.has_internal_errors else 0


class Golden:
    """A folder of golden outputs, and the project that they come from."""

    def __init__(self, folder: Path) -> None:
        self.has_internal_errors = False
        self._folder = folder.resolve()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EPBUILD_", "GITHUB_", "CI"))}
        cache = Path(os.environ.get("EPBUILD_CACHE_DIR", Path.home() / ".cache" / "epbuild"))
        own = {"EPBUILD_CACHE_DIR": str(PROJECT / "cache"), "EPBUILD_TOOLCHAIN_DIR": str(cache / "toolchains"), "COLUMNS": "80"}
        self._environment = {**kept, **own, "NO_COLOR": "1", "EPBUILD_SIGNING_KEY": _SIGNING_KEY}

    def copy_recipes(self) -> None:
        """Begin the project with a copy of all recipes and their models."""
        shutil.rmtree(PROJECT, ignore_errors=True)
        ignored = shutil.ignore_patterns(".epbuild", "dist", "*.lock")
        shutil.copytree(ROOT / "recipes", PROJECT / "recipes", ignore=ignored)
        (PROJECT / "recipes" / f"{ARCHIVES}.yaml").write_text(EVERY_ARCHIVE, encoding="utf-8")

    def write_references(self) -> None:
        """Write the help of each command, and the schemas that `epbuild schema` prints."""
        PROJECT.mkdir(exist_ok=True)
        names = (name for name, _ in list_commands(get_command(app._application)))
        for name in ((), *names):
            self._write(f"help/{'-'.join(('epbuild', *name))}.txt", self._run(*name, "--help"))
        for schema in ("recipe", "manifest", "report", "catalog", "doctor"):
            self._write(f"schemas/{schema}.json", self._run("schema", schema))

    def write_plan(self, recipe: str) -> None:
        """Write the answers of `validate`, `plan` and `graph` before anything is built. The plan holds the key of each action."""
        file = f"recipes/{recipe}.yaml"
        self._write_json(f"{recipe}/validate.json", "validate", file, "--json")
        self._write_json(f"{recipe}/plan.json", "plan", file, "--json")
        self._write(f"{recipe}/plan.txt", self._run("plan", file))
        self._write_json(f"{recipe}/matrix.json", "plan", file, "--matrix", "2")
        self._write(f"{recipe}/graph.mmd", self._run("graph", file, "--format", "mermaid"))

    def write_build(self, recipe: str) -> None:
        """Build a recipe. Write its events, and the answer of each command afterwards."""
        file = f"recipes/{recipe}.yaml"
        self._write_json(f"{recipe}/run.json", "run", file, "--json", "-j", "1")
        for command in ("plan", "explain", "coverage", "report", "run"):
            self._write_json(f"{recipe}/{command}-after.json", command, file, *(["*"] if command == "explain" else []), "--json")
        for command in ("plan", "coverage", "run"):
            self._write(f"{recipe}/{command}-after.txt", self._run(command, file))

    def write_key_documents(self) -> None:
        """Write the documents whose digests are the keys of all steps."""
        with closing(sqlite3.connect(PROJECT / "recipes" / ".epbuild" / "state.sqlite")) as state:
            rows = state.execute("SELECT recipe, step, action_key, key_document FROM steps ORDER BY recipe, step")
            found = [(recipe, step, key, json.loads(document)) for recipe, step, key, document in rows]
        self._write("keys.json", json.dumps(found, indent=1, sort_keys=True).replace(str(PROJECT), "PROJECT") + "\n")

    def write_documents_of_outputs(self) -> None:
        """Write the digests of all outputs, and the answers of commands that need outputs or a store."""
        dist = PROJECT / "recipes" / "dist"
        digests = {
            path.relative_to(dist).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(dist.rglob("*"))
            if path.is_file()
        }
        self._write("outputs.json", json.dumps(digests, indent=1) + "\n")
        one, other = (f"recipes/dist/quickstart/decoder/snapdragon-{soc}" for soc in ("SM8750", "SC8380XP"))
        for path, name in (
            (one, "directory"),
            ("recipes/dist/shipping.ortpackage", "package"),
            ("recipes/dist/shipping-image", "image"),
        ):
            self._write_json(f"{name}/inspect.json", "inspect", path, "--json")
            self._write_json(f"{name}/verify.json", "verify", path, "--json")
        self._write_json("directory/diff.json", "diff", one, other, "--json")
        self._write_json("binary/wrap.json", "wrap", f"{one}/prefill_qnn.bin", "-o", "wrapped", "--json")
        self._write_json("directory/inspect-file.json", "inspect", f"{one}/prefill_ctx.onnx", "--json")
        self._write_json("bisect.json", "bisect", "compile:classifier/phone/classifier", "-r", "recipes/minimal.yaml", "--json")
        source = ROOT / "tests" / "commands" / "imported" / "olive" / "resnet_qnn_fp32_ctx.json"
        model = "recipes/models/classifier/classifier.onnx"
        options = ("--model", model, "--target", "SM8750", "-o", "imported.yaml", "--json")
        self._write_json("import.json", "import", str(source), *options)
        self._write_json("devices.json", "devices", "recipes/quickstart.yaml", "--json")
        self._write_json("devices-ep.json", "devices", "--ep", "qnn", "--json")
        self._write_json("version.json", "version", "--json")
        self._write_json("cache-verify.json", "cache", "verify", "--json")
        remote = _OF_THE_MOMENT | {"received_bytes", "sent_bytes", "size"}  # records hold times, whose lengths differ
        self._write_json("cache-push.json", "cache", "push", "recipes/cache.yaml", "--json", of_the_moment=remote)
        self._write_json(
            "cache-verify-remote.json", "cache", "verify", "recipes/cache.yaml", "--remote", "--json", of_the_moment=remote
        )
        for command in ("cache", "gc"):
            self._write_json(f"{command}.json", command, "--json", of_the_moment=_OF_THE_MOMENT | {"bytes", "count"})

    def _run(self, *arguments: str) -> str:
        """Return the output of a command and its exit code, with placeholders for times and for the project's place."""
        command = [sys.executable, "-m", "epbuild", *arguments]
        done = subprocess.run(
            command, cwd=PROJECT, env=self._environment, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
        )  # fmt: skip
        if "internal error" in done.stderr or "Traceback" in done.stderr:
            self.has_internal_errors = True
            sys.stderr.write(f"epbuild {' '.join(arguments)}:\n{done.stderr}\n")
        text = f"{done.stdout}exit code {done.returncode}\n"
        return _TIME.sub("TIME", text.replace(str(PROJECT), "PROJECT"))

    def _write_json(self, name: str, *arguments: str, of_the_moment: frozenset[str] = _OF_THE_MOMENT) -> None:
        """Write the documents that a command prints, indented and with placeholders. Events are sorted: actions run side by side."""
        text, _, code = self._run(*arguments).rpartition("exit code ")
        try:
            documents = [json.loads(text)]
        except ValueError:
            documents = [json.loads(line) for line in text.splitlines()]
        lasting = (_lasting(document, of_the_moment) for document in documents if document.get("event") not in _PROGRESS)
        texts = [json.dumps(document, indent=1) for document in lasting]
        self._write(name, "\n".join([*sorted(texts), f"exit code {code}"]))

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _lasting(value: Any, of_the_moment: frozenset[str]) -> Any:
    """Return a JSON value with a placeholder for the values of these keys."""
    if isinstance(value, dict):
        return {key: "MOMENT" if key in of_the_moment else _lasting(item, of_the_moment) for key, item in value.items()}
    return [_lasting(item, of_the_moment) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
