"""Every example runs as a user would run it, says what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

ESSENTIAL = {
    "quickstart.py": [
        r"SIGKILL, in the middle of bundle",
        r"holds the lease until",
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


def run_example(name: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=temporary,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(ESSENTIAL)


@pytest.mark.parametrize("name", sorted(ESSENTIAL))
def test_an_example_says_what_it_promises_and_cleans_up(name: str, tmp_path: Path) -> None:
    finished = run_example(name, tmp_path)
    missing = [line for line in ESSENTIAL[name] if not re.search(line, finished.stdout, re.MULTILINE)]
    # pytest keeps the directories of its last runs, wherever they are.
    left = [path.name for path in tmp_path.iterdir() if not path.name.startswith("pytest-of-")]

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert missing == [], finished.stdout
    assert "Traceback" not in finished.stderr
    assert left == []
