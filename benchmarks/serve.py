"""Measures `holdfast serve`: beside the client in process, what it costs a worker, lists of a million jobs.

    python benchmarks/serve.py [--quick] [--json] [--only NAME ...] [--dir DIR] [--repeat N]

Nothing is asserted about absolute times. The exit code is 1 only if a job submitted over HTTP is lost or doubled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "src")]
# The tests know how to start a PostgreSQL, and how to fill a store.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from measuring.asking import ask, parser_for, show
from measuring.figures import Figure, Settings
from questions import web

QUESTIONS: Mapping[str, Callable[[Settings], Iterator[Figure]]] = {
    "serve-submit": web.submits,
    "serve-read": web.reads,
    "serve-events": web.events,
    "serve-worker": web.beside_a_worker,
    "serve-list": web.lists,
}


def main() -> int:
    """Ask the questions, report."""
    options = parser_for(__doc__, [*QUESTIONS]).parse_args()
    logging.basicConfig(level=logging.ERROR)
    report = ask(QUESTIONS, options)
    show(report, as_json=options.json)
    return int(any(one.name == web.LOST_OR_DOUBLED and one.value for one in report.figures))


if __name__ == "__main__":
    sys.exit(main())
