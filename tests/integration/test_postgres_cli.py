"""The command line on PostgreSQL: the same commands, another --store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backends import PostgresBackend
from tests.support.fleet import EFFECTS, ROOT
from tests.support.waiting import eventually


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(tmp_path)
    backend.execute(EFFECTS)
    yield backend
    backend.close()


def command(backend: PostgresBackend, *arguments: str) -> list[str]:
    app = ["--app", "tests.integration.fleet_app:fleet_flow"]
    return [sys.executable, "-m", "holdfast.cli", "--store", backend.place, *app, *arguments]


ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}


def holdfast(backend: PostgresBackend, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(backend, *arguments), env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_looking_at_a_database_without_a_store_leaves_no_trace(backend: PostgresBackend) -> None:
    done = holdfast(backend, "jobs")

    assert done.returncode != 0
    assert "error:" in done.stderr
    assert backend.query(f"SELECT 1 FROM pg_namespace WHERE nspname = '{backend.schema}'") == []


def test_a_job_is_submitted_run_listed_and_checked(backend: PostgresBackend) -> None:
    job_id = holdfast(backend, "submit", "fleet", '{"number": 1}').stdout.strip()
    worker = subprocess.Popen(command(backend, "worker"), env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: backend.query("SELECT 1 FROM jobs WHERE state = 'succeeded'"), "the job has run", within=60)
    finally:
        worker.send_signal(signal.SIGTERM)
        stopped = worker.wait(60)
    listed = json.loads(holdfast(backend, "--json", "jobs").stdout)
    checked = holdfast(backend, "check", "--deep")

    assert stopped == 0
    assert job_id in json.dumps(listed)
    assert checked.returncode == 0
    assert backend.query("SELECT number FROM effects") == [(1,)]
