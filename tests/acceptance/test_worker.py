"""The worker as a service: signals, crashes, wake-up, readiness."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.driving import PATIENCE, Holdfast


def job_of(holdfast: Holdfast, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = holdfast.json("job", "show", job_id)["job"]
    return job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_graceful_stop_gives_jobs_back_and_costs_no_attempt(
    holdfast: Holdfast, tmp_path: Path, number: signal.Signals
) -> None:
    job_id = holdfast.submit("gate", '{"name": "open"}')
    with holdfast.worker() as worker:
        worker.wait_for("waiting")
        code = worker.stop(number)
    shown = holdfast.json("job", "show", job_id)

    assert code == 0
    assert f"stopping on {number.name}" in "".join(worker.lines)
    assert shown["job"]["state"] == "pending"
    assert (shown["job"]["failures"], shown["job"]["crashes"]) == (0, 0)
    assert shown["executions"][0]["code"] == "released"
    (tmp_path / "open").touch()
    holdfast.run_all()
    after = holdfast.json("job", "show", job_id)
    assert after["result"]["response"] == "opened!"
    # The step before was finished by the first worker and is not run again.
    assert after["steps"][0]["exec_id"] == shown["executions"][0]["exec_id"]


def test_a_second_signal_ends_the_worker_now(holdfast: Holdfast) -> None:
    holdfast.submit("deaf", '{"name": "never"}')
    with holdfast.worker("--check-interval", "0") as worker:
        worker.wait_for("not listening")
        worker.process.send_signal(signal.SIGINT)
        worker.wait_for("stopping on SIGINT")
        began = time.monotonic()
        code = worker.stop(signal.SIGINT)

    assert code == 130
    assert time.monotonic() - began < 5


def test_a_step_that_does_not_stop_is_abandoned_and_goes_on_elsewhere(holdfast: Holdfast, tmp_path: Path) -> None:
    job_id = holdfast.submit("deaf", '{"name": "open"}')
    with holdfast.worker("--stop-grace", "0.1", "--check-interval", "0") as worker:
        worker.wait_for("not listening")
        code = worker.stop()

    assert code == 0
    assert "abandoned" in "".join(worker.lines)
    assert job_of(holdfast, job_id)["state"] == "pending"
    (tmp_path / "open").touch()
    holdfast.run_all()
    assert holdfast.json("job", "wait", job_id)["state"] == "succeeded"


def test_another_worker_takes_over_at_once_from_one_that_was_killed(holdfast: Holdfast, tmp_path: Path) -> None:
    job_id = holdfast.submit("gate", '{"name": "open"}')
    with holdfast.worker("--lease", "600") as first:
        first.wait_for("waiting")
        with holdfast.worker("--lease", "600") as second:
            first.process.kill()
            second.wait_for("waiting")
            (tmp_path / "open").touch()
            result = holdfast.json("job", "wait", job_id, "--timeout", str(PATIENCE))

    assert result["response"] == "opened!"
    assert "took over" in "".join(second.lines)
    assert job_of(holdfast, job_id)["crashes"] == 1
    assert holdfast("check").code == 0


def test_a_worker_that_starts_later_takes_over_from_one_that_was_killed(holdfast: Holdfast, tmp_path: Path) -> None:
    job_id = holdfast.submit("gate", '{"name": "open"}')
    with holdfast.worker("--lease", "600") as first:
        first.wait_for("waiting")
        first.process.kill()
        first.process.wait()
    (tmp_path / "open").touch()
    holdfast.run_all()

    assert holdfast.json("job", "wait", job_id)["state"] == "succeeded"


def test_an_idle_worker_starts_at_once_what_another_process_submits(holdfast: Holdfast) -> None:
    with holdfast.worker("--log-format", "json") as worker:
        holdfast.submit()
        worker.wait_for("preparing")
        first = holdfast.submit("greet", '{"name": "again"}')
        holdfast.ok("job", "wait", first)
    shown = holdfast.json("job", "show", first)

    # From the durable submit to the lease, by the database's own clock; polling would take seconds.
    assert shown["executions"][0]["started_at"] - shown["job"]["created_at"] < 500


def test_an_idle_worker_uses_next_to_no_processor(holdfast: Holdfast) -> None:
    with holdfast.worker() as worker:
        before = _processor_seconds(worker.process.pid)
        # Nothing happens that could be waited for: that is the point.
        time.sleep(1.5)
        used = _processor_seconds(worker.process.pid) - before

    assert used < 0.1


def test_a_worker_exits_when_nothing_is_left_that_can_start(holdfast: Holdfast) -> None:
    done = holdfast.submit("both")
    holdfast.submit("later")
    holdfast.ok("queues", "pause", "errands", "--reason", "closed")
    ended = holdfast("worker", "--exit-when-idle")

    assert ended.code == 0
    assert "nothing is left to do" in ended.err
    assert holdfast.json("job", "wait", done)["state"] == "succeeded"


def test_a_worker_that_exits_when_idle_waits_for_what_is_scheduled(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("greet", '{"name": "you"}', "--delay", "0.7")
    holdfast.run_all()

    assert holdfast.json("job", "wait", job_id)["state"] == "succeeded"


def test_readiness_is_announced_to_programs(holdfast: Holdfast) -> None:
    with holdfast.worker("--json") as worker:
        assert worker.process.stdout is not None
        line = worker.process.stdout.readline()

    assert '"event":"ready"' in line
    assert '"greet"' in line


def test_readiness_and_stopping_are_told_to_systemd(holdfast: Holdfast, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE)
        with holdfast.worker(NOTIFY_SOCKET=str(address)) as worker:
            ready = manager.recv(100)
            worker.stop()
        stopping = manager.recv(100)

    assert (ready, stopping) == (b"READY=1", b"STOPPING=1")


def test_normal_durability_is_a_setting(holdfast: Holdfast) -> None:
    job_id = holdfast.submit()

    assert holdfast("worker", "--exit-when-idle", "--sync", "normal").code == 0
    assert holdfast.json("job", "wait", job_id)["state"] == "succeeded"


@pytest.mark.parametrize(
    "words",
    [
        ("--queue-limit", "errands"),
        ("--queue-limit", "errands=many"),
        ("--queue-limit", "a b=1"),
        ("--concurrency", "0"),
        ("--lease", "0"),
        ("--stall", "never"),
        ("--metrics-port", "70000"),
    ],
    ids=" ".join,
)
def test_a_setting_that_cannot_be_is_refused(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    ended = holdfast("worker", *words)

    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert not holdfast.state.exists()


def test_a_port_in_use_is_told(holdfast: Holdfast) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = holdfast("worker", "--metrics-port", str(taken.getsockname()[1]))

    assert ended.code == 2
    assert "cannot serve metrics" in ended.err


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
