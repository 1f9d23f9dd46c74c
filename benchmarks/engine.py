"""Measures the engine, each figure beside the raw limit of its database with the same durability, in one run.

    python benchmarks/engine.py [--store postgres] [--quick] [--json] [--only NAME ...] [--dir DIR] [--repeat N]

Nothing is asserted about absolute times. The exit code is 1 only if work was lost or doubled. See README.md here.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# So that it runs from a checkout, too, whatever the current directory is.
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "src")]
# The tests know how to start a PostgreSQL.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import msgspec
from measuring.figures import Figure, Settings, table
from measuring.machine import describe_machine
from questions import counts, fleet, history, idle, imports, latency, recovery, submitting, throughput, two_workers

QUESTIONS: Mapping[str, Callable[[Settings], Iterator[Figure]]] = {
    "counts": counts.counts,
    "noop": throughput.noop,
    "five": throughput.five,
    "submit": submitting.submit,
    "start": latency.start,
    "recovery": recovery.recovery,
    "two-workers": two_workers.two_workers,
    "idle": idle.idle,
    "imports": imports.imports,
    "history": history.history,
}
ON_POSTGRES: Mapping[str, Callable[[Settings], Iterator[Figure]]] = {
    "fleet": fleet.fleet,
    "fleet-noop": fleet.noop,
    "fleet-start": fleet.start,
}


def main() -> int:
    """Ask the questions, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs: under 90 s")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite", help="what is measured")
    names = [*QUESTIONS, *ON_POSTGRES]
    parser.add_argument("--only", nargs="+", choices=sorted(names), metavar="NAME", help=", ".join(names))
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where databases are made; must be a real disk")
    parser.add_argument("--repeat", type=int, help="runs per figure (5, with --quick 3)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    figures: list[Figure] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.dir) as directory:
        machine = describe_machine(directory)
        settings = Settings(directory, options.quick, options.repeat or (3 if options.quick else 5))
        for name, question in (ON_POSTGRES if options.store == "postgres" else QUESTIONS).items():
            if options.only and name not in options.only:
                continue
            print(f"{time.perf_counter() - began:6.1f} s  {name}", file=sys.stderr, flush=True)
            figures += question(settings)
    if options.json:
        report = {"machine": machine, "quick": options.quick, "repeat": settings.repeat, "figures": figures}
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(", ".join(f"{key} {value}" for key, value in machine.items()))
        print(table(figures))
    print(f"{time.perf_counter() - began:6.1f} s  done", file=sys.stderr)
    return int(any(one.question == "recovery" and one.reached is False for one in figures))


if __name__ == "__main__":
    sys.exit(main())
