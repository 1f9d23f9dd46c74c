"""`holdfast serve` and `holdfast token` as they are used: a worker in the process, a terminal, tokens by hand."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast import Engine, JobState
from tests.integration.fleet_app import Work, fleet_flow
from tests.support.backends import Backend, PostgresBackend, SqliteBackend
from tests.support.fleet import EFFECTS
from tests.support.serving import ENVIRONMENT, WebProcess, holdfast, make_token
from tests.support.waiting import PATIENCE, eventually

APP = ("--app", "tests.integration.fleet_app:fleet_flow")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    backend: Backend = SqliteBackend(tmp_path / "state")
    if request.param == "postgres":
        backend = PostgresBackend(tmp_path / "state")
    backend.open(None)
    backend.execute(EFFECTS)
    yield backend.place
    backend.close()


def test_a_job_is_submitted_worked_on_and_read_in_one_process(place: str, tmp_path: Path) -> None:
    with (
        WebProcess(place, "--listen", f"unix:{tmp_path}/h.sock", "--work", *APP) as server,
        server.by_socket() as client,
    ):
        made = client.post("/v1/flows/fleet/jobs", json={"request": {"number": 7}})
        job = made.json()["job_id"]
        ended = client.get(f"/v1/jobs/{job}/result", headers={"Prefer": "wait=20"}, timeout=PATIENCE * 2)
        code = server.stop()
    checked = holdfast(place, "check", "--deep")

    assert made.status_code == 201, made.text
    assert ended.status_code == 200, ended.text
    assert server.worker_id is not None
    assert code == 0
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_works_gives_the_job_back_and_counts_no_crash(
    place: str, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    with Engine.open(place, flows=[fleet_flow]) as engine:
        job = engine.submit(fleet_flow, Work(number=1, seconds=1.5, log=str(log)))
        with WebProcess(place, "--listen", f"unix:{tmp_path}/h.sock", "--work", *APP) as server:
            eventually(log.exists)
            code = server.stop(number)
        after = engine.store.job(job)
        executions = engine.store.executions(job)

    assert code == 0
    assert after.state is JobState.PENDING
    assert (after.crashes, after.failures) == (0, 0)
    assert len(executions) == 1
    assert executions[0].code == "released"


def test_without_an_app_it_shows_what_is_in_the_store(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with WebProcess(state, "--listen", f"unix:{tmp_path}/h.sock") as server, server.by_socket() as client:
        answers = [client.get(path).status_code for path in ("/v1/stats", "/v1/jobs", "/readyz", "/")]
        code = server.stop()

    assert answers == [200] * 4
    assert code == 0


def test_to_work_it_needs_an_app(tmp_path: Path) -> None:
    server = WebProcess(str(tmp_path / "state"), "--listen", f"unix:{tmp_path}/h.sock", "--work")
    with pytest.raises(AssertionError, match="--app"):
        server.ready()


def test_on_a_terminal_a_link_logs_in_once(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "--state", str(tmp_path / "state"), "serve", "--listen"]
    process = subprocess.Popen([*command, "127.0.0.1:0"], env=ENVIRONMENT, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    text = ""
    try:
        while (found := re.search(r"(http://[^/]+)/login\?link=[0-9a-f]{64}", text)) is None:
            text += os.read(ours, 4096).decode()
        with httpx.Client(base_url=found[1]) as client, httpx.Client(base_url=found[1]) as other:
            answers = [client.get(found[0]).status_code, client.get("/v1/stats").status_code]
            again = [other.get(found[0]).status_code, other.get("/v1/stats").status_code]
    finally:
        process.terminate()
        code = process.wait(PATIENCE)
        os.close(ours)

    assert answers == [303, 200]
    assert again == [401, 401]
    assert code == 0


def test_tokens_are_made_listed_and_revoked_by_hand(place: str) -> None:
    text = make_token(place, "ci", "submit", "--expires", "30d")
    holdfast(place, "token", "create", "for-ever", "--scope", "read", "--expires", "never")
    listed = json.loads(holdfast(place, "--json", "token", "list").stdout)
    revoked = holdfast(place, "token", "revoke", "ci")
    table = holdfast(place, "token", "list").stdout

    assert re.fullmatch(r"hft_[0-9a-f]{16}_[0-9a-f]{64}", text)
    assert [(one["name"], one["scope"], one["state"]) for one in listed] == [
        ("ci", "submit", "valid"),
        ("for-ever", "read", "valid"),
    ]
    assert listed[0]["expires_at"] - listed[0]["created_at"] == 30 * 86_400_000
    assert listed[1]["expires_at"] is None
    assert revoked.returncode == 0
    assert "revoked" in table
    assert text.rpartition("_")[2] not in table + json.dumps(listed)


@pytest.mark.parametrize("expires", ["", "30", "0d", "-1d", "30y", "99999w", "1d2h"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, expires: str) -> None:
    done = holdfast(str(tmp_path), "token", "create", "x", "--scope", "read", "--expires", expires)

    assert done.returncode == 2
    assert "--expires" in done.stderr


@pytest.mark.parametrize("header", ["Host", "User-Agent", "X-Forwarded-For", "Sec-Fetch-Site", "", "X User"])
def test_a_header_that_everybody_sends_is_not_trusted_to_name_the_user(tmp_path: Path, header: str) -> None:
    make_token(str(tmp_path))
    listen = ["--listen", "127.0.0.1:0"]
    done = holdfast(str(tmp_path), "serve", *listen, "--trust-proxy-header", header, "--proxy-scope", "admin")

    assert done.returncode == 2
    assert "names a user" in done.stderr


def test_looking_for_tokens_makes_no_database(tmp_path: Path) -> None:
    done = holdfast(str(tmp_path / "state"), "token", "list")

    assert done.returncode == 6
    assert not (tmp_path / "state").exists()
