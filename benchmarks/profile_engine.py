"""Where the time goes: plans and costs of the statements, and which functions of the worker's threads are busy.

    python benchmarks/profile_engine.py plans [--jobs 100000] [--pending 10000]
    python benchmarks/profile_engine.py functions [--flows 4096] [--concurrency 128]

`plans` shows how SQLite carries out every statement of the store on a database full of finished jobs; a SCAN of a
table that grows with history is marked. `functions` runs five-step flows under cProfile, a profile per kind of thread.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import re
import sqlite3
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import closing
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "src")]

from measuring import flows
from measuring.filling import fill
from measuring.workers import drain, new_engine, submit

from holdfast import Engine
from holdfast.sql_files import load_statements

GROWING = ("jobs", "requests", "executions", "steps", "journal", "children")
SCAN = re.compile(
    r"\bSCAN (\w+)(?! USING (?:COVERING )?INDEX (?:jobs_ready|jobs_due|jobs_waiting|executions_under_way))"
)


def plans(jobs: int, pending: int) -> None:
    """Print the plan of every statement; `!!` marks a scan of what grows with history."""
    with tempfile.TemporaryDirectory() as folder:
        with closing(Engine.open(folder, flows=flows.ALL)) as engine:
            submit(engine, flows.five_steps, pending)
        fill(Path(folder) / "holdfast.db", jobs)
        with closing(sqlite3.connect(Path(folder) / "holdfast.db")) as connection:
            for name, statement in load_statements("holdfast.store", "sqlite").items():
                aliases = re.findall(r"\b(\w+) AS (\w+)\b", statement)
                growing = {*GROWING, *(alias for table, alias in aliases if table in GROWING)}
                print(name)
                for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}", _parameters(statement)):
                    found = SCAN.search(detail)
                    print(f"  {'!!' if found and found[1] in growing else '  '} {detail}")


def _parameters(statement: str) -> dict[str, object] | tuple[object, ...]:
    """Any values will do: a plan does not depend on them."""
    names = re.findall(r":([a-z_]+)", statement)
    if "?" in statement:
        return tuple([None] * (statement.count("?") + len(set(names))))
    return dict.fromkeys(names)


def functions(count: int, concurrency: int) -> None:
    """Print where each kind of thread spends its time."""
    profiles: dict[str, list[cProfile.Profile]] = defaultdict(list)
    original = threading.Thread.run

    def run(thread: threading.Thread) -> None:
        profile = cProfile.Profile()
        profiles[thread.name].append(profile)
        profile.runcall(original, thread)

    threading.Thread.run = run  # type: ignore[method-assign]
    with new_engine(tempfile.gettempdir()) as engine:
        drained = drain(engine, flows.five_steps, count, concurrency)
    print(f"{count / drained.seconds:,.0f} flows/s under the profiler, {drained.group:.1f} writes per commit")
    for name, gathered in profiles.items():
        print(f"--- {name}")
        pstats.Stats(*gathered).strip_dirs().sort_stats("tottime").print_stats(20)


def main() -> None:
    """Choose."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("plans")
    command.add_argument("--jobs", type=int, default=100_000)
    command.add_argument("--pending", type=int, default=10_000)
    command = commands.add_parser("functions")
    command.add_argument("--flows", type=int, default=4096)
    command.add_argument("--concurrency", type=int, default=128)
    options = parser.parse_args()
    if options.command == "plans":
        plans(options.jobs, options.pending)
    else:
        functions(options.flows, options.concurrency)


if __name__ == "__main__":
    main()
