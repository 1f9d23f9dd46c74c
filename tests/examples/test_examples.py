"""Every example runs as a user would run it, says what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.sqlite.database import expected_schema

EXAMPLES = Path(__file__).parents[2] / "examples"

ESSENTIAL = {
    "quickstart.py": [
        r"SIGKILL, in the middle of bundle",
        r"is gone: its process has ended; the next worker to look takes it over",
        r"bundle +entered again, after a crash",
        r"Files: +q1\.bundle, q1\.collect, q1\.render",
        r"Rows in its table: +\['q1'\]",
        r"4  pid \d+ +running -> pending +in_progress -> aborted +pid \d+ on \S+ did not finish: its process is gone",
        r"8  pid \d+ +running -> succeeded +committed -> done",
        r"explain: It succeeded at",
        r"workers killed [1-9]",
        r"rows 201, lost 0, doubled 0",
        r"findings of a full check: 0",
    ],
    "image_demo.py": [
        r"download: .*\n  … killed with SIGKILL",
        r"^snapshot  snap-demo at ",
        r"^demo +file:///\S+ +completed +active ",
        r"^stages: handoff$",
        r"^in the snapshot: demo$",
        r"^error +PATH_TRAVERSAL +rootfs/\.\./",
        r"^\$ holdfast process-image --source \S+hostile.tar\n\(exit code 3,",
        r"^\$ holdfast verify-system --deep\n\(exit code 0,",
    ],
    "orders.py": [
        r"submitted twice with one key, the same job: True",
        r"another order under that key, added: False, the same request: False",
        r"A-1: charged 120, after 3 tries",
        r"A-2: failed: the card was declined: 900 is over its limit",
        r"letter: succeeded",
        r"files: letter-A-1, reserved-A-1$",
        r"orders: \[\('A-1', 120\)\]",
    ],
    "pipeline.py": [
        r"stage fetch: succeeded\nstage hash: succeeded",
        r"size 10",
        r"digest b6d243b19834f8ca",
        r"children \[\('fetch', 'succeeded'\), \('hash', 'succeeded'\)\]",
    ],
    "async_steps.py": [
        r"50 jobs .*: True",
        r"a step that was too late succeeded at try 2",
        r"rows: 51",
    ],
    "crash_test.py": [
        r"in process: \d+ crash points, \d+ histories, \d+ crashes, 0 violations",
        r"SIGKILL: \d+ crash points, \d+ histories, \d+ crashes, 0 violations",
        r"careless in process: .* [1-9]\d* violations",
        r"3 passed",
    ],
}


IN_A_SECOND_RUN = {
    "quickstart.py": [
        r"Job \w+ has done it in an earlier run",
        r"Rows in its table: +\['q1'\]",
        r"workers killed 0",
        r"rows 201, lost 0, doubled 0",
        r"findings of a full check: 0",
    ],
    "image_demo.py": [
        r"^stages: handoff$",
        r"^in the snapshot: demo$",
        r"^\$ holdfast verify-system --deep\n\(exit code 0,",
    ],
    "orders.py": ESSENTIAL["orders.py"],
    "pipeline.py": ESSENTIAL["pipeline.py"],
    "async_steps.py": ESSENTIAL["async_steps.py"],
}
"""What an example says when it is run again in the directory of its first run."""
KEEPS_NOTHING = {"crash_test.py"}
"""Explores fresh directories, hundreds of times."""


def run_example(name: str, temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=temporary,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def what_is_there(directory: Path) -> dict[str, object]:
    """The files an example has made, and the rows of its own tables."""
    state = directory / "state"
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_relative_to(state))
    there: dict[str, object] = {str(path.relative_to(directory)): path.read_bytes() for path in files}
    with closing(sqlite3.connect(state / "holdfast.db")) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in set(tables) - set(expected_schema()) - {"holdfast_migrations"}:
            there[f"table {table}"] = sorted(database.execute(f"SELECT * FROM {table}").fetchall())
    return there


def test_every_example_is_tested() -> None:
    # The demonstration of the page goes on until it is stopped: test_page_demo.py.
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*ESSENTIAL, "page_demo.py"}
    assert set(IN_A_SECOND_RUN) | KEEPS_NOTHING == set(ESSENTIAL)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(IN_A_SECOND_RUN))
def test_an_example_that_is_run_again_loses_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    directory.mkdir()
    first = run_example(name, tmp_path, str(directory))
    before = what_is_there(directory)
    second = run_example(name, tmp_path, str(directory))
    missing = [line for line in IN_A_SECOND_RUN[name] if not re.search(line, second.stdout, re.MULTILINE)]

    assert (first.returncode, second.returncode) == (0, 0), second.stdout + second.stderr
    assert missing == [], second.stdout
    assert before
    assert what_is_there(directory) == before


def test_a_second_order_under_the_number_of_one_that_was_taken_undoes_nothing(tmp_path: Path) -> None:
    """Were it a job of its own, its card would be declined, and its cleanup would release the stock of the first."""
    program = """
import sys
from pathlib import Path
from orders import Order, send_letter, take_order
from holdfast import Engine
with Engine.open("state", flows=[take_order, send_letter]) as engine, engine.worker():
    for amount in (120, 900):
        job_id = engine.submit(take_order, Order("A-1", amount, "."), key="A-1")
        print(engine.wait(job_id, timeout=60).state, Path("reserved-A-1").exists())
"""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), "PYTHONDONTWRITEBYTECODE": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert finished.stdout == "succeeded True\nsucceeded True\n", finished.stderr


@pytest.mark.parametrize("name", sorted(ESSENTIAL))
def test_an_example_says_what_it_promises_and_cleans_up(name: str, tmp_path: Path) -> None:
    finished = run_example(name, tmp_path)
    missing = [line for line in ESSENTIAL[name] if not re.search(line, finished.stdout, re.MULTILINE)]
    # pytest keeps the directories of its last runs, wherever they are.
    left = [path.name for path in tmp_path.iterdir() if not path.name.startswith("pytest-of-")]

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert missing == [], finished.stdout
    # A failed try is logged with its traceback; nothing else may have one.
    assert finished.stderr.count("Traceback") == len(re.findall(r"try \d+ failed", finished.stderr)), finished.stderr
    assert left == []
