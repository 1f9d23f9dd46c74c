"""Metrics that Prometheus can scrape, and logs that a machine can read."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine
from holdfast.errors import StoreUnavailable
from holdfast.store.open import open_store
from holdfast.worker.leases import WorkerSettings
from holdfast.worker.metrics import EngineCollector, MetricsServer
from holdfast.worker.telemetry import Telemetry
from holdfast.worker.worker import Worker
from tests.acceptance.driving import Holdfast, RunningWorker
from tests.support.waiting import eventually

REQUEST = '{"name": "you"}'


def scrape(worker: RunningWorker) -> dict[str, float]:
    """name{labels} → value."""
    found = re.search(r"metrics at (\S+/metrics)", worker.wait_for("ready"))
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def ask(worker: RunningWorker, path: str) -> tuple[int, Any]:
    found = re.search(r"metrics at (\S+)/metrics", worker.wait_for("ready"))
    assert found is not None
    return get(found[1] + path)


def get(url: str, *, parse: bool = True) -> tuple[int, Any]:
    """The status, and the answer if it is JSON."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, json.loads(answer.read()) if parse else None
    except urllib.error.HTTPError as error:
        is_json = error.headers.get_content_type() == "application/json"
        return error.code, json.loads(error.read()) if is_json else None


def test_a_worker_serves_what_it_has_done(holdfast: Holdfast) -> None:
    with holdfast.worker("--metrics-port", "0", "--queue-limit", "errands=3") as worker:
        for flow in ("greet", "doomed"):
            holdfast("submit", flow, '{"name": "you"}', "--wait")
        holdfast.ok("queues", "pause", "errands", "--reason", "closed")
        holdfast.submit("later")
        metrics = scrape(worker)

    assert metrics['holdfast_transitions_total{flow="greet",from="pending",to="running"}'] == 1
    assert metrics['holdfast_transitions_total{flow="greet",from="running",to="succeeded"}'] == 1
    assert metrics['holdfast_transitions_total{flow="doomed",from="running",to="failed"}'] == 1
    assert metrics['holdfast_step_outcomes_total{flow="greet",outcome="done",step="prepare"}'] == 1
    assert metrics['holdfast_step_outcomes_total{flow="greet",outcome="done",step="say"}'] == 1
    assert metrics['holdfast_step_seconds_count{flow="greet",step="say"}'] == 1
    assert metrics['holdfast_execution_ends_total{code="completed",flow="greet"}'] == 1
    assert metrics['holdfast_execution_ends_total{code="abort",flow="doomed"}'] == 1
    assert metrics['holdfast_wait_seconds_count{flow="greet"}'] == 1
    assert metrics['holdfast_jobs{flow="doomed",state="failed"}'] == 1
    assert metrics['holdfast_jobs{flow="later",state="pending"}'] == 1
    assert metrics['holdfast_step_outcomes_total{flow="doomed",outcome="abort",step="try"}'] == 1
    assert metrics['holdfast_step_seconds_count{flow="greet",step="prepare"}'] == 1
    assert metrics['holdfast_step_seconds_bucket{flow="greet",le="+Inf",step="prepare"}'] == 1
    assert metrics['holdfast_execution_seconds_count{flow="greet"}'] == 1
    assert metrics["holdfast_group_commits_total"] >= 2
    assert metrics["holdfast_writes_total"] >= metrics["holdfast_group_commits_total"]
    assert metrics["holdfast_lost_leases_total"] == 0
    assert metrics['holdfast_queue_pending{queue="errands"}'] == 1
    assert metrics['holdfast_queue_running{queue="errands"}'] == 0
    assert metrics['holdfast_queue_limit{queue="errands"}'] == 3
    assert metrics['holdfast_queue_paused{queue="errands"}'] == 1
    assert metrics["holdfast_store_up"] == 1
    assert metrics["holdfast_workers"] == 1
    assert metrics["process_open_fds"] > 0


def test_recoveries_and_findings_are_counted(holdfast: Holdfast) -> None:
    holdfast.submit("gate", '{"name": "never"}')
    with holdfast.worker() as first:
        first.wait_for("waiting")
        first.process.kill()
        first.process.wait()
    with holdfast.worker("--metrics-port", "0", "--check-interval", "0.1") as second:
        second.wait_for("waiting")
        holdfast.drop_trigger("journal_is_append_only")
        second.wait_for("journal_is_append_only")
        metrics = scrape(second)

    assert metrics['holdfast_recovered_total{flow="gate",outcome="given back"}'] == 1
    assert metrics['holdfast_findings_total{code="rule-missing"}'] >= 1


def test_a_store_that_cannot_be_read_costs_its_gauges_and_not_the_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StoreUnavailable("the disk is gone")

    store = open_store(tmp_path)
    monkeypatch.setattr(store, "queues", fail)
    telemetry = Telemetry()
    telemetry.transitions["greet", "pending", "running"] += 1
    collector = EngineCollector(telemetry, store)
    found = {sample.name: sample.value for metric in collector.collect() for sample in metric.samples}
    collector.close()
    store.close()

    assert found["holdfast_transitions_total"] == 1
    assert found["holdfast_store_up"] == 0
    assert "holdfast_queue_running" not in found


def test_every_way_a_job_ends_is_counted(holdfast: Holdfast) -> None:
    holdfast.submit("gate", '{"name": "never"}')
    for _ in range(5):  # the crash limit
        with holdfast.worker() as crashing:
            crashing.wait_for("waiting")
            crashing.process.kill()
            crashing.process.wait()
    first = holdfast.submit("doomed")
    holdfast.submit("greet", REQUEST, "--run-after", first)
    with holdfast.worker("--metrics-port", "0", "--check-interval", "0.2") as worker:
        deaf = holdfast.submit("deaf", '{"name": "never"}')
        eventually(
            lambda: scrape(worker).get('holdfast_execution_ends_total{code="stalled",flow="deaf"}'), "a stall is seen"
        )
        eventually(lambda: scrape(worker).get('holdfast_execution_ends_total{code="predecessor",flow="greet"}'))
        metrics = scrape(worker)
        holdfast("job", "force", deaf, "failed", "--reason", "enough")

    assert metrics['holdfast_transitions_total{flow="gate",from="failed",to="quarantined"}'] == 1
    assert metrics['holdfast_execution_ends_total{code="crashed",flow="gate"}'] == 1
    assert metrics['holdfast_recovered_total{flow="gate",outcome="quarantined"}'] == 1
    assert metrics['holdfast_transitions_total{flow="greet",from="running",to="failed"}'] == 1
    assert metrics['holdfast_transitions_total{flow="doomed",from="running",to="failed"}'] == 1
    assert metrics['holdfast_jobs{flow="gate",state="quarantined"}'] == 1


def test_jobs_for_later_do_not_count_as_waiting_now(holdfast: Holdfast) -> None:
    with holdfast.worker("--metrics-port", "0") as worker:
        worker.wait_for("ready")
        for _ in range(3):
            holdfast.submit("later", REQUEST, "--delay", "3600")
        eventually(lambda: scrape(worker).get('holdfast_queue_scheduled{queue="errands"}') == 3, "they are seen")
        holdfast.ok("queues", "pause", "errands", "--reason", "closed")
        waiting = holdfast.submit("later")
        holdfast.submit("later", REQUEST, "--run-after", waiting)
        eventually(lambda: scrape(worker)['holdfast_queue_oldest_seconds{queue="errands"}'] > 0.05, "it waits")
        metrics = scrape(worker)

    assert metrics['holdfast_queue_pending{queue="errands"}'] == 1
    assert metrics['holdfast_queue_scheduled{queue="errands"}'] == 3
    assert metrics['holdfast_queue_waiting{queue="errands"}'] == 1


def test_a_dead_worker_is_not_counted(holdfast: Holdfast) -> None:
    with holdfast.worker("--metrics-port", "0") as worker:
        with holdfast.worker() as other:
            other.wait_for("ready")
            assert scrape(worker)["holdfast_workers"] == 2
            other.process.kill()
            other.process.wait()
        left = scrape(worker)["holdfast_workers"]

    assert left == 1


def test_a_worker_says_whether_it_is_well(holdfast: Holdfast) -> None:
    with holdfast.worker("--metrics-port", "0") as worker:
        scrape(worker)
        well, ready = ask(worker, "/healthz"), ask(worker, "/readyz")
        elsewhere = [ask(worker, path)[0] for path in ("/", "/health", "/metrics/more")]

    assert well == (200, {"status": "ok", "problems": []})
    assert ready == (200, {"status": "ok", "problems": []})
    assert elsewhere == [404, 404, 404]


def test_a_worker_whose_scheduler_died_is_not_well(tmp_path: Path) -> None:
    """In this process, where a thread can be made to die, with the very server that the command starts."""

    def fail() -> None:
        raise ValueError("a bug")

    with Engine.open(tmp_path / "state", flows=[]) as engine:
        worker = Worker(engine.store, {}, WorkerSettings(), Telemetry())
        server = MetricsServer(worker.telemetry, engine.store, port=0, problems=worker.problems, unready=worker.unready)
        try:
            before = get(server.url.replace("/metrics", "/healthz"))
            worker.start()
            running = get(server.url.replace("/metrics", "/healthz"))
            worker._runs.wake_due = fail  # type: ignore[method-assign]
            worker._wake()
            eventually(lambda: get(server.url.replace("/metrics", "/healthz"))[0] == 503, "it is told")
            code, body = get(server.url.replace("/metrics", "/healthz"))
            metrics = get(server.url, parse=False)[0]
        finally:
            worker.stop()
            server.close()

    assert before[0] == 503
    assert running == (200, {"status": "ok", "problems": []})
    assert code == 503
    assert "the worker cannot go on: ValueError" in body["problems"]
    assert metrics == 200


def test_a_worker_without_its_store_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.telemetry.PATIENCE", 0.5)

    def away(**_anything: object) -> None:
        raise StoreUnavailable("the disk is gone")

    with Engine.open(tmp_path / "state", flows=[]) as engine, engine.worker(recovery_interval=0.05) as worker:
        before = eventually(lambda: worker.is_ready) and worker.problems()
        monkeypatch.setattr(engine.store, "recover", away)
        problems = eventually(worker.problems, "the store is missed")
        monkeypatch.undo()
        monkeypatch.setattr("holdfast.worker.telemetry.PATIENCE", 0.5)
        eventually(lambda: not worker.problems(), "it is well again")

    assert before == []
    assert "the store has not answered" in problems[0]


def test_systemd_hears_from_a_worker_that_is_well(holdfast: Holdfast, tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(30)
    holdfast.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
    with manager, holdfast.worker() as worker:
        worker.wait_for("ready")
        heard = {manager.recv(100) for _ in range(3)}

    assert b"WATCHDOG=1" in heard


def test_a_dead_worker_is_one_line_however_many_jobs_it_held(holdfast: Holdfast) -> None:
    for _ in range(5):
        holdfast.submit("gate", '{"name": "never"}')
    with holdfast.worker() as first:
        eventually(lambda: len([line for line in first.lines if "waiting" in line]) == 5, "all are begun")
        first.process.kill()
        first.process.wait()
    with holdfast.worker() as second:
        line = second.wait_for("took over")
        second.stop()

    assert f"took over 5 job(s) from pid {first.process.pid} on" in line
    assert "5 given back" in line
    assert len([line for line in second.lines if "took over" in line]) == 1


def test_a_job_leaves_a_line_for_each_thing_that_happens_to_it(holdfast: Holdfast) -> None:
    with holdfast.worker("--log-format", "json") as worker:
        job_id = holdfast.submit()
        holdfast.ok("job", "wait", job_id)
        broken = holdfast.submit("broken")
        holdfast("job", "wait", broken)
        worker.wait_for("quarantined")
        worker.stop()
    lines = [line for line in worker.log if line["logger"] == "holdfast.job"]
    fine = [line for line in lines if line["job_id"] == job_id]
    failed = [line for line in lines if line["job_id"] == broken]

    assert [(line["level"], line["message"].rpartition(": ")[2]) for line in fine] == [
        ("info", "claimed"),
        ("info", "succeeded"),
    ]
    assert (fine[1]["outcome"], fine[1]["attempt"], fine[1]["flow"]) == ("completed", 1, "greet")
    assert fine[1]["seconds"] >= 0
    assert fine[1]["worker"]
    assert [line["level"] for line in failed] == ["info", "error", "error"]
    assert "in break_down" in failed[1]["exception"]
    assert "quarantined (error)" in failed[2]["message"]


def test_scraping_again_and_again_leaks_nothing(holdfast: Holdfast) -> None:
    with holdfast.worker("--metrics-port", "0") as worker:
        first = [scrape(worker)["process_open_fds"] for _ in range(3)][-1]
        last = [scrape(worker)["process_open_fds"] for _ in range(30)][-1]

    assert last <= first + 1


def test_every_line_of_a_json_log_is_an_object_bound_to_its_job(holdfast: Holdfast) -> None:
    with holdfast.worker("--log-format", "json", "-v") as worker:
        job_id = holdfast.submit()
        holdfast.ok("job", "wait", job_id)
        holdfast.submit("shaky")
        worker.wait_for("try 1 failed")
        worker.stop()
    lines = worker.log

    assert all({"ts", "level", "logger", "message"} <= set(line) for line in lines)
    [prepared] = [line for line in lines if line["message"] == "preparing"]
    assert (prepared["job_id"], prepared["flow"], prepared["step"], prepared["tries"]) == (
        job_id,
        "greet",
        "prepare",
        1,
    )
    assert len(prepared["exec_id"]) == 26
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", prepared["ts"])
    [failed] = [line for line in lines if "try 1 failed" in line["message"]]
    assert (failed["level"], failed["flow"]) == ("warning", "shaky")


def test_a_text_log_names_the_job_too(holdfast: Holdfast) -> None:
    with holdfast.worker() as worker:
        job_id = holdfast.submit()
        line = worker.wait_for("preparing")

    assert f"job_id={job_id}" in line
    assert "step=prepare" in line


def test_a_quiet_worker_says_only_what_is_wrong(holdfast: Holdfast) -> None:
    holdfast.submit()
    ended = holdfast("worker", "--exit-when-idle", "-q")

    assert (ended.code, ended.out, ended.err) == (0, "", "")
