"""Benchmarks of epbuild's costs: `python bench/run.py [NAME...] [--rounds N]`.

Each benchmark answers a question of users. It compares epbuild with the cost of the job without epbuild. Where epbuild makes a
promise, the benchmark checks it. Contenders take turns in rounds, so that a machine that slows down affects all of them alike.
The first round does not count, and limits apply to the median. The measured epbuild is the one of the Python that runs this file.
All work is done in a temporary folder with a store of its own. The user's files are not touched. The table goes to standard
output, and every sample to `bench/results/NAME.json`. The exit code is 0 if all limits are kept, and 1 if one is missed or a
benchmark could not run. Other load on the machine shows as a wide span between the smallest and the largest sample.

The benchmarks:

    changes-1000         a build after few changes, without its compiles; `plan`; and a fresh checkout with a warm store
    changes-10000        the same for 10,000 steps and 30,000 files, against ninja
    changes-100000       the same for 100,000 steps and 120,000 files, 98,000 compiles by 1,000 processes, without the checkout
    cluster              10,000 actions on 20 machines of four kinds, on virtual time, against the lower bound; and the overhead
                         of each of 200 short actions on a scheduler and two workers, against a local build
    cold-64mb            a build of one model with 64 MB of weights from nothing, against a script with the same compiler call
    cold-512mb           the same with 512 MB
    cold-parallel        a build of four models at `-j 2`, against a script that compiles one after the other
    command-line         the time that typer adds to each command, against click and typer 0.29
    emitting-archive     2 GiB of artifacts from the store into a tar.zst, against tar --zstd; into a zip; and the peak memory
    emitting-directory   the same into a folder, against cp
    hashing              4 GiB in one file and in four, against sha256sum and DVC
    large-model          `plan` with a model of 1.9 GB, against hashing it; and the peak memory
    large-recipe         validating and planning 10,000 targets, and a recipe of 1 MB
    many-models          every command that reads many models, at 248, 1,000 and 4,000 models: at most linear growth
    memory               the peak memory of the epbuild process itself, with 64 MB of weights against 1 MB (not on Windows)
    nothing-to-do        `epbuild run` when every step is current
    nothing-to-do-1000   the same for 1,000 steps and 3,000 files, against ninja, make, doit, SCons and DVC
    nothing-to-do-10000  the same for 10,000 steps and 30,000 files, without DVC
    remote-cache         10,000 look-ups in a remote cache, and 1 GiB from it, against curl and sha256sum
    report-page          writing the page of a report of 10,000 steps, and opening it in Chromium
    restoring            2 GiB of artifacts from the store, against cp
    startup              validate, plan, and the start of each command

The other tools are installed into the temporary folder. Those that come with the system are used from there (make, cp, sha256sum,
tar, zstd, curl, nginx). A complete run takes about 40 minutes, 12 GB of disk and 10 GB of memory.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks import BENCHMARKS
from results import save
from table import render
from workshop import Unable, Workshop, machine

RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure the time and memory that epbuild needs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run; default: all of {', '.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="number of samples of each measurement (default: 5)")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="measure the processor time of each command instead of the elapsed time; ignore limits in seconds then, but not "
        "relative limits (not on Windows)",
    )
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; available: {', '.join(BENCHMARKS)}")
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    return given


def main() -> int:
    given = arguments()
    facts = machine()
    print(f"epbuild {facts['epbuild']}, Python {platform.python_version()}, {facts['system']}, {facts['cpus']} CPUs")
    print(f"Rounds: {given.rounds}, after one warm-up round. System load at the start: {facts['load']}.")
    if given.processor_time:
        print("Times are processor time.")
        facts["seconds"] = "of processors"
    kept = True
    for name in given.names or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix="epbuild-bench-", ignore_cleanup_errors=True) as folder:
            try:
                result = BENCHMARKS[name](Workshop(Path(folder), processor_time=given.processor_time), given.rounds)
            except Unable as error:
                print(f"\n{name}: cannot run: {error}", flush=True)
                kept = False
                continue
        print(f"\n{render(name, result)}", flush=True)
        save(RESULTS / f"{name}.json", name, result, facts)
        kept = kept and result.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
