"""Measures the engine beside its peers, in turn on the same disk and the same PostgreSQL server.

    python benchmarks/compare.py [--quick] [--json] [--only NAME ...] [--dir DIR] [--repeat N]

NAME is a comparison or a peer. Peers are installed at pinned versions into environments of their own (.venv-peers).
The exit code is 1 if work of ours was lost or doubled, 2 if a peer that was asked for could not be measured.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# So that it runs from a checkout, too, whatever the current directory is.
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "src")]
# The tests know how to start a PostgreSQL.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from comparisons import field, idle, latency, recovery, throughput
from measuring.asking import Clock, parser_for, settings_of, show
from measuring.contestants import Ground
from measuring.environments import NotMeasured, python_of
from measuring.figures import Figure, Settings
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
    options = parser_for(__doc__, [*COMPARISONS, *PEERS]).parse_args()
    logging.basicConfig(level=logging.ERROR)
    asked = [name for name in options.only if name in PEERS]
    comparisons = [name for name in COMPARISONS if name in options.only] or list(COMPARISONS)
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.dir) as directory:
        settings = settings_of(options, directory)
        with server_on_disk(settings) as server:
            machine = {**describe_machine(directory), "postgres": str(server.execute("SHOW server_version")[0][0])}
            report = Report(machine=machine, quick=settings.quick, repeat=settings.repeat, figures=[])
            ground = Ground(directory, server, {*(asked or PEERS), field.OURS.peer})
            install(ground)
            for name in comparisons:
                clock.tell(name)
                report.figures += COMPARISONS[name](settings, ground)
    clock.tell("done")
    report.not_measured = ground.out
    show(report, as_json=options.json)
    if any(one.name == recovery.FAULTS and one.reached is False for one in report.figures):
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
