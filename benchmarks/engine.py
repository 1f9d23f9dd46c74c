"""Measures the engine, each figure beside the raw limit of its database with the same durability, in one run.

    python benchmarks/engine.py [--store postgres] [--quick] [--json] [--only NAME ...] [--dir DIR] [--repeat N]

Nothing is asserted about absolute times. The exit code is 1 only if work was lost or doubled. See README.md here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# So that it runs from a checkout, too, whatever the current directory is.
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "src")]
# The tests know how to start a PostgreSQL.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from measuring.asking import ask, parser_for, show
from measuring.figures import Figure, Settings
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
    parser = parser_for(__doc__, [*QUESTIONS, *ON_POSTGRES])
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite", help="what is measured")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    report = ask(ON_POSTGRES if options.store == "postgres" else QUESTIONS, options)
    show(report, as_json=options.json)
    return int(any(one.question == "recovery" and one.reached is False for one in report.figures))


if __name__ == "__main__":
    sys.exit(main())
