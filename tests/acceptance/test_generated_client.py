"""A client that somebody else's generator has made of the OpenAPI document drives a real server, from end to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast import Engine
from holdfast.web.application import api_routes
from holdfast.web.openapi import document
from tests.support.web import a_flow
from tests.support.web_server import Server

SCENARIO = """
import sys
from holdfast_http import AuthenticatedClient
from holdfast_http.api.flows import submit_job, submit_job_demo
from holdfast_http.api.house import limit_queue, list_queues, list_changes
from holdfast_http.api.jobs import cancel_job, explain_job, get_job, get_result, list_jobs, verify_job
from holdfast_http.models import Ask, Cancel, JobState, Problem, QueueChange, Submit, SubmitDemo

client = AuthenticatedClient(base_url=sys.argv[1], token="admin", timeout=60)
wish = SubmitDemo(request=Ask(name="order", number=7), priority=3)
first = submit_job_demo.sync(client=client, body=wish, idempotency_key="once")
again = submit_job_demo.sync(client=client, body=wish, idempotency_key="once")
assert first == again and first.created, (first, again)
result = get_result.sync(first.job_id, client=client, prefer="wait=30")
assert result.state is JobState.SUCCEEDED and result.response["trail"] == ["one", "two", "three"], result
assert verify_job.sync(first.job_id, client=client).holds

later = submit_job_demo.sync(client=client, body=SubmitDemo(request=Ask(), delay=600))
seen = get_job.sync_detailed(later.job_id, client=client)
refused = cancel_job.sync(later.job_id, client=client, body=Cancel(reason="why"), if_match='"older"')
assert isinstance(refused, Problem) and (refused.status, refused.code) == (412, "job-moved-on"), refused
done = cancel_job.sync(later.job_id, client=client, body=Cancel(reason="why"), if_match=seen.headers["ETag"])
assert done.state is JobState.FAILED, done
assert explain_job.sync(later.job_id, client=client).code == "cancelled"

page = list_jobs.sync(client=client, state=[JobState.FAILED], limit=10)
assert [row.job.job_id for row in page.rows] == [later.job_id]
assert limit_queue.sync("-", client=client, body=QueueChange(limit=5, reason="small")).queue.max_running == 5
assert len(list_changes.sync(client=client, limit=1000).changes) >= 4
wrong = submit_job.sync("absent", client=client, body=Submit(request={}))
assert wrong.code == "unknown-flow" and wrong.hint, wrong
print("done")
"""


def test_a_generated_client_drives_a_server_from_end_to_end(tmp_path: Path) -> None:
    described, package = tmp_path / "openapi.json", tmp_path / "holdfast_http"
    described.write_bytes(msgspec.json.encode(document(api_routes(), [a_flow()])))
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    generate = ["-m", "openapi_python_client", "generate", "--meta", "none", "--config", str(tmp_path / "config.yml")]
    made = subprocess.run(
        [sys.executable, *generate, "--path", str(described), "--output-path", str(package)],
        capture_output=True,
        text=True,
        check=False,
    )
    (tmp_path / "scenario.py").write_text(SCENARIO)

    state = tmp_path / "state"
    with Server(str(state)) as server, Engine.open(state, flows=[a_flow()]) as engine, engine.worker(concurrency=1):
        command = [sys.executable, "scenario.py", f"http://127.0.0.1:{server.port}"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (made.returncode, "Warning" in made.stdout + made.stderr) == (0, False), made.stdout + made.stderr
    assert ran.stdout == "done\n", ran.stderr
