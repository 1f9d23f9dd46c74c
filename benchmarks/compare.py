"""Measures the engine beside its peers, in turn on the same disk and the same PostgreSQL server.

    python benchmarks/compare.py [--quick] [--json] [--only NAME ...] [--dir DIR] [--repeat N]

NAME is a comparison or a peer. Peers are installed at pinned versions into environments of their own (.venv-peers).
The exit code is 1 if work of ours was lost or doubled, 2 if a peer that was asked for could not be measured.
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
from comparisons import field, idle, latency, recovery, throughput
from measuring.contestants import Ground
from measuring.environments import NotMeasured, python_of
from measuring.figures import Figure, Settings, table
from measuring.machine import describe_machine
from measuring.tables import Report
from questions.fleet import server_on_disk

COMPARISONS: Mapping[str, Callable[[Settings, Ground], Iterator[Figure]]] = {
    "five": throughput.five,
    "noop": throughput.noop,
    "start": latency.start,
    "recovery": recovery.recovery,
    "idle": idle.idle,
}
PEERS = sorted({one.peer for one in field.ALL} - {field.OURS.peer})


def main() -> int:
    """Make the comparisons, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    names = [*COMPARISONS, *PEERS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=[], help=", ".join(names))
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where databases are made; must be a real disk")
    parser.add_argument("--repeat", type=int, help="rounds per comparison (5, with --quick 3)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    asked = [name for name in options.only if name in PEERS]
    comparisons = [name for name in COMPARISONS if name in options.only] or list(COMPARISONS)
    began = time.perf_counter()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.dir) as directory:
        settings = Settings(directory, options.quick, options.repeat or (3 if options.quick else 5))
        with server_on_disk(settings) as server:
            machine = {**describe_machine(directory), "postgres": str(server.execute("SHOW server_version")[0][0])}
            ground = Ground(directory, server, {*(asked or PEERS), field.OURS.peer})
            install(ground)
            for name in comparisons:
                print(f"{time.perf_counter() - began:6.1f} s  {name}", file=sys.stderr, flush=True)
                figures += COMPARISONS[name](settings, ground)
    print(f"{time.perf_counter() - began:6.1f} s  done", file=sys.stderr)
    if options.json:
        report = Report(
            machine=machine,
            quick=options.quick,
            repeat=settings.repeat,
            figures=figures,
            not_measured=ground.out,
        )
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(", ".join(f"{key} {value}" for key, value in machine.items()))
        print(table(figures))
    for title, reason in ground.out.items():
        print(f"NOT MEASURED: {title}: {reason}", file=sys.stderr)
    if any(one.name == recovery.FAULTS and one.reached is False for one in figures):
        return 1
    return 2 if asked and ground.out else 0


def install(ground: Ground) -> None:
    """All environments, before anything is timed."""
    for one in ground.taking_part(*field.ALL):
        try:
            python_of(one.peer)
        except NotMeasured as reason:
            ground.out[one.title] = str(reason)


if __name__ == "__main__":
    sys.exit(main())
