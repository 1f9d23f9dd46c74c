"""Test a flow of your own with crashes: killed at every durable boundary and on both sides of every effect.

    pytest examples/crash_test.py -s

or, to the same effect, `python examples/crash_test.py`.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Engine, Flow, Run, Transaction
from holdfast.testing import CrashExplorer, Scenario

# --- The flow under test, and a careless variant of it ---


class Entry(msgspec.Struct):
    """A line for a ledger."""

    line: str


class Written(msgspec.Struct):
    """How long the ledger is."""

    lines: int = 0


Step = Callable[[Run[Entry, Written]], None]


def careful(ledger: Path) -> Step:
    def step(run: Run[Entry, Written]) -> None:
        """Leaves the same ledger however often it runs."""
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        if run.request.line not in lines:
            with run.effect("write"):
                ledger.with_suffix(".partial").write_text("\n".join([*lines, run.request.line]))
                ledger.with_suffix(".partial").replace(ledger)
        run.response.lines = len(ledger.read_text().splitlines())

    return step


def careless(ledger: Path) -> Step:
    def step(run: Run[Entry, Written]) -> None:
        """Appends once more each time it runs: wrong after a crash behind the effect."""
        with run.effect("write"), ledger.open("a") as file:
            file.write(run.request.line + "\n")
        run.response.lines = len(ledger.read_text().splitlines())

    return step


def record(run: Run[Entry, Written], tx: Transaction) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS ledger (job_id TEXT, lines INTEGER)")
    tx.execute("INSERT INTO ledger VALUES (?, ?)", (run.job.job_id, run.response.lines))


# --- The scenario: how to build the flow, what to submit, what the world looks like at the end ---


def scenario(step: Callable[[Path], Step]) -> Scenario:
    def flows(directory: Path) -> Sequence[Flow[Any, Any]]:
        flow = Flow("keep-ledger", request=Entry, response=Written, unique="forever")
        return [flow.start("append", step(directory / "ledger")).commit("record", record)]

    def submit(engine: Engine) -> None:
        engine.submit("keep-ledger", Entry("hold fast"), key="hold fast")  # done once, whoever submits it again

    return Scenario(flows=flows, submit=submit, observe=observe)


def observe(_engine: Engine, directory: Path) -> object:
    """Everything that must be the same whatever crashed; leave out ids and times."""
    with closing(sqlite3.connect(directory / "state" / "holdfast.db")) as database:
        rows = database.execute("SELECT lines FROM ledger").fetchall()
    return rows, (directory / "ledger").read_text().splitlines()


# --- The tests ---


@pytest.mark.parametrize("kill", [False, True])
def test_the_ledger_survives_a_crash_at_every_point(tmp_path: Path, kill: bool) -> None:  # noqa: FBT001
    report = CrashExplorer(scenario(careful), tmp_path).explore(kill=kill, pairs=10)
    print(f"\n{report}")

    assert not report.violations, str(report)


def test_the_explorer_finds_the_careless_step(tmp_path: Path) -> None:
    report = CrashExplorer(scenario(careless), tmp_path).explore()
    print(f"\ncareless {report}")

    assert "effect.write.after" in {violation.point for violation in report.violations}


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", __file__]))
