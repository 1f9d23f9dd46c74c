"""process-image with a worker beside it, without one, and when either is killed in the middle."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from tests.acceptance.driving import PATIENCE
from tests.acceptance.images.driving import Gate, ImageHoldfast, ended
from tests.acceptance.test_observe import scrape

METRICS = Path(__file__).parents[3] / "docs/reference/metrics.md"


def owners(holdfast: ImageHoldfast, job_id: str) -> list[str]:
    """The processes that have worked for a job."""
    executions = holdfast.json("job", "show", job_id)["executions"]
    return [execution["lease_owner"].split(":")[1] for execution in executions]


def test_a_worker_that_runs_does_the_work(holdfast: ImageHoldfast) -> None:
    with holdfast.worker("--metrics-port", "0") as worker:
        data = holdfast.process(holdfast.source())
        pids = {pid for stage in data["stages"].values() for pid in owners(holdfast, stage["job_id"])}
        metrics = scrape(worker)

    assert pids == {str(worker.process.pid)}
    assert metrics['holdfast_images{state="completed"}'] == 1
    assert metrics['holdfast_image_devices{state="verified"}'] == 1
    assert metrics['holdfast_snapshots{state="active"}'] == 1
    assert metrics["holdfast_pool_capacity_bytes"] > metrics["holdfast_pool_available_bytes"] > 0
    assert sum(value for name, value in metrics.items() if name.startswith("holdfast_pool_health{")) == 1
    _, _, page = METRICS.read_text().partition("A worker of images has gauges")
    told = {name.partition("{")[0] for name in metrics}
    assert set(re.findall(r"^\| `(holdfast_\w+)`", page, re.MULTILINE)) <= told


def test_a_worker_keeps_the_limits_of_the_queues(holdfast: ImageHoldfast) -> None:
    with holdfast.worker():
        queues = {queue["name"]: queue["max_running"] for queue in holdfast.json("queues", "list")["queues"]}

    assert queues["downloads"] == 5
    assert queues["unpacking"] == 2


def test_an_operators_limit_stays_above_them(holdfast: ImageHoldfast) -> None:
    holdfast.process(holdfast.source())
    holdfast.ok("queues", "limit", "downloads", "1")
    holdfast.process(holdfast.source(name="b.tar"))
    queues = {queue["name"]: queue["max_running"] for queue in holdfast.json("queues", "list")["queues"]}

    assert queues["downloads"] == 1


def test_without_the_worker_that_died_the_command_goes_on_itself(holdfast: ImageHoldfast, gate: Gate) -> None:
    with holdfast.worker() as worker:
        command = holdfast.start("process-image", "--source", gate.url, "--json")
        assert gate.asked.wait(PATIENCE)
        worker.stop(signal.SIGKILL)
        gate.open()
        done = ended(command)

    assert done.code == 0, done
    pids = owners(holdfast, done.data["stages"]["download"]["job_id"])
    assert pids == [str(worker.process.pid), str(command.pid)]


def test_a_killed_command_is_gone_on_with_by_the_same_command(holdfast: ImageHoldfast, gate: Gate) -> None:
    words = ("process-image", "--source", gate.url, "--json")
    command = holdfast.start(*words)
    assert gate.asked.wait(PATIENCE)
    command.send_signal(signal.SIGKILL)
    ended(command)
    gate.open()
    done = holdfast(*words)

    assert done.code == 0, done
    assert len(holdfast.json("jobs")["jobs"]) == 4
    assert len(owners(holdfast, done.data["stages"]["download"]["job_id"])) == 2
    assert holdfast.json("verify-system", "--deep")["findings"] == []


def test_an_interrupted_command_says_how_to_go_on(holdfast: ImageHoldfast, gate: Gate) -> None:
    words = ("process-image", "--source", gate.url)
    command = holdfast.start(*words)
    assert gate.asked.wait(PATIENCE)
    command.send_signal(signal.SIGINT)
    stopped = ended(command)
    gate.open()
    done = holdfast(*words, "--json")

    assert stopped.code == 130, stopped
    assert "hint: the same command goes on" in stopped.err
    assert "Traceback" not in stopped.err
    assert done.code == 0, done
    assert len(holdfast.json("jobs")["jobs"]) == 4


def test_what_an_interrupted_command_left_is_done_by_a_worker(holdfast: ImageHoldfast, gate: Gate) -> None:
    command = holdfast.start("process-image", "--source", gate.url, "--image-id", "demo")
    assert gate.asked.wait(PATIENCE)
    command.send_signal(signal.SIGTERM)
    ended(command)
    gate.open()
    holdfast.ok("worker", "--exit-when-idle", "-q")

    assert [image["activation_status"] for image in holdfast.json("images")["images"]] == ["active"]


def test_a_worker_with_an_app_of_its_own_is_not_waited_for(holdfast: ImageHoldfast) -> None:
    with holdfast.worker(HOLDFAST_APP="app:flows"):
        data = holdfast.process(holdfast.source())

    assert data["stages"]["activate"]["state"] == "succeeded"


def test_a_removal_is_left_to_the_worker_too(processed: ImageHoldfast) -> None:
    with processed.worker() as worker:
        processed.ok("image", "remove", "demo", "--force")
        job = processed.json("jobs", "--flow", "remove-image")["jobs"][0]["job_id"]
        pids = owners(processed, job)

    assert pids == [str(worker.process.pid)]


def test_two_images_at_once_without_a_worker_are_both_processed(holdfast: ImageHoldfast, gate: Gate) -> None:
    first = holdfast.start("process-image", "--source", gate.url, "--image-id", "one", "--json")
    assert gate.asked.wait(PATIENCE)
    second = holdfast("process-image", "--source", holdfast.source(), "--image-id", "two", "--json")
    gate.open()
    done = ended(first)

    assert second.code == 0, second
    assert done.code == 0, done


def test_a_worker_with_wrong_settings_does_not_start(holdfast: ImageHoldfast) -> None:
    done = holdfast("worker", "--json", HOLDFAST_BACKEND="devicemapper")

    assert done.code == 1
    assert json.loads(done.err.splitlines()[-1])["error"]["type"] == "PoolUnusable"


def test_a_paused_queue_holds_a_command_up_until_it_is_resumed(holdfast: ImageHoldfast) -> None:
    holdfast.process(holdfast.source())
    holdfast.ok("queues", "pause", "unpacking", "--reason", "a new disk")
    command = holdfast.start("process-image", "--source", holdfast.source(name="b.tar"), "--json")
    holdfast.until(lambda data: bool(data["jobs"]), "jobs", "--flow", "unpack-image", "--state", "pending")
    holdfast.ok("queues", "resume", "unpacking")

    assert ended(command).code == 0


def test_an_interrupted_removal_goes_on_with_the_next_command(processed: ImageHoldfast, gate: Gate) -> None:
    request = '{"image_id": "demo", "force": true}'
    processed.ok("submit", "remove-image", request, "--key", "demo/force")
    processed.ok("image", "remove", "demo", "--force")

    assert processed.left() == []
    assert len(processed.json("jobs", "--flow", "remove-image")["jobs"]) == 1


def test_after_a_quarantined_stage_the_same_command_begins_anew(holdfast: ImageHoldfast, gate: Gate) -> None:
    words = ("process-image", "--source", gate.url, "--json")
    command = holdfast.start(*words)
    assert gate.asked.wait(PATIENCE)
    [download] = holdfast.json("jobs", "--flow", "download-image")["jobs"]
    holdfast.ok("job", "force", download["job_id"], "quarantined", "--reason", "as if all tries were used up")
    first = ended(command)
    gate.open()
    again = holdfast(*words)

    assert first.code == 1, first
    assert first.error["type"] == "JobFailed"
    assert again.code == 0, again
