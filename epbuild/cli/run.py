"""`epbuild run`: make what is out of date."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from epbuild import api
from epbuild.cli import arguments, build_files, cluster_options, job_options, remote_options
from epbuild.cli.usage import UsageError
from epbuild.cli.watching import build, build_and_watch
from epbuild.commands.request import Request
from epbuild.commands.watch import SourceWatch
from epbuild.report.json.documents import plan_document, print_json
from epbuild.report.listener import Listener
from epbuild.report.reporter import reporter
from epbuild.report.terminal.plan import print_plan
from epbuild.report.terminal.waiting import WaitingRow

app = arguments.application()

_EXIT_CODES = """\b
Exit codes:
  0    everything is in place, but for what is allowed to fail
  1    a step failed, --check found something out of date, or
       --rebuild-and-compare a difference that is not known, or
       --no-compile a result that is not there
  2    the recipe or the command line is wrong
  3    the environment is: toolchain, device, permissions, disk
  130  interrupted; what was finished is kept. With --watch, Ctrl-C
       between builds ends with the code of the last build
"""


@app.command(epilog=_EXIT_CODES)
def run(
    names: arguments.Names,
    *,
    recipe: arguments.RecipeOption = None,
    jobs: arguments.Jobs = None,
    memory: Annotated[
        int | None,
        arguments.option(
            "--memory",
            parser=arguments.size,
            metavar="SIZE",
            help="How much memory may be used at once, such as 8GB; default: all there is.",
        ),
    ] = None,
    keep_going: Annotated[
        bool, arguments.option("--keep-going", "-k", help="After a failure, go on with what does not depend on it.")
    ] = False,
    dry_run: Annotated[bool, arguments.option("--dry-run", "-n", help="Show what would be made, and make nothing.")] = False,
    check: Annotated[bool, arguments.option("--check", help="Make nothing; exit with 1 if anything is out of date.")] = False,
    rebuild_and_compare: Annotated[
        bool,
        arguments.option("--rebuild-and-compare", help="Then compile everything again in a fresh place, and compare the bytes."),
    ] = False,
    no_emit: Annotated[
        bool, arguments.option("--no-emit", help="Make results and write no output: what is only published is left alone.")
    ] = False,
    push_only: Annotated[
        bool,
        arguments.option("--push-only", help="Only push images, each file from where it is, and write no folder."),
    ] = False,
    no_compile: Annotated[
        bool, arguments.option("--no-compile", help="Make no result: publish those that are there, and name those that are not.")
    ] = False,
    watch: Annotated[bool, arguments.option("--watch", help="Then build again whenever a source changes, until Ctrl-C.")] = False,
    shard: job_options.ShardText = None,
    retry: arguments.Retry = False,
    locked: arguments.Locked = False,
    remote_cache: remote_options.RemoteCacheMode = "read",
    offline: remote_options.Offline = False,
    insecure: remote_options.Insecure = False,
    executor: cluster_options.Executor = None,
    tls: cluster_options.Certificates = None,
    settings: arguments.Settings,
    summary: Annotated[
        Path | None,
        arguments.option(
            "--summary",
            metavar="FILE",
            help="Append tables of the build to FILE, in Markdown; default: in GitHub Actions, the job's summary.",
        ),
    ] = None,
    junit: build_files.JUnit = None,
    sarif: build_files.Sarif = None,
    report: build_files.ReportFile = None,
    against: build_files.Against = None,
    trace: build_files.TraceFile = None,
    all_warnings: arguments.AllWarnings = False,
    json: arguments.Json = False,
) -> int:
    """Build what is out of date in RECIPE: provision toolchains, compile, verify, publish the artifacts.

    Of STEPs that are named, what they need is built as well.
    """
    file, steps, places = arguments.named(names, recipe)
    build_files.spare_recipe(file, junit, sarif, trace, summary)
    if push_only and no_emit:
        raise UsageError("--push-only pushes outputs; --no-emit makes none")
    if rebuild_and_compare and no_compile:
        raise UsageError("--rebuild-and-compare compiles; --no-compile does not")
    if rebuild_and_compare and (dry_run or check):
        raise UsageError("--rebuild-and-compare builds; --dry-run and --check build nothing")
    if (junit or sarif or report or trace) and (dry_run or check):
        raise UsageError("--report, --trace, --junit and --sarif are about a build; --dry-run and --check build nothing")
    if watch and (dry_run or check or rebuild_and_compare or push_only or shard is not None):
        raise UsageError(
            "--watch builds again and again; --dry-run, --check, --rebuild-and-compare, --push-only and --shard do not"
        )
    request = Request(
        file, steps, jobs or os.cpu_count() or 1, keep_going, tuple(settings), memory, locked, rebuild_and_compare, retry=retry
    )
    remote = remote_options.remote_choice(remote_cache, offline=offline, insecure=insecure)
    request = replace(request, remote=remote, places=places, emits=not no_emit, push_only=push_only, compiles=not no_compile)
    if not offline:
        request = replace(request, cluster=cluster_options.cluster(executor, tls, insecure=insecure))
    if shard is not None:
        request = replace(request, shard=job_options.shard_of(shard, os.environ), emits=False)
    if not dry_run and not check:

        @contextmanager
        def listening() -> Iterator[Listener]:
            shown = reporter(json=json, summary=summary, all_warnings=all_warnings)
            listener = build_files.with_documents(shown, file, junit, sarif)
            with build_files.written_after(request, report, against, trace), listener as progress:
                yield progress

        if watch:
            return build_and_watch(SourceWatch(request), listening, reporter(json=json))
        with listening() as progress:
            return build(request, progress)
    with WaitingRow() as waiting:
        found = api.plan(request, waiting)
    if json:
        print_json(plan_document(str(file), found))
    else:
        print_plan(found, only_todo=True)
    return 1 if check and not found.nothing_to_try else 0
