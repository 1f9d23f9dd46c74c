"""Metrics that Prometheus can scrape, and logs that a machine can read."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from holdfast.engine.metrics import EngineCollector
from holdfast.engine.telemetry import Telemetry
from holdfast.errors import StoreUnavailable
from holdfast.store.opening import open_store
from tests.acceptance.driving import Holdfast, RunningWorker


def scrape(worker: RunningWorker) -> dict[str, float]:
    """name{labels} → value."""
    found = re.search(r"metrics at (\S+/metrics)", worker.wait_for("ready"))
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


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
    telemetry.transition("greet", "pending", "running")
    collector = EngineCollector(telemetry, store)
    found = {sample.name: sample.value for metric in collector.collect() for sample in metric.samples}
    collector.close()
    store.close()

    assert found["holdfast_transitions_total"] == 1
    assert found["holdfast_store_up"] == 0
    assert "holdfast_queue_running" not in found


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
