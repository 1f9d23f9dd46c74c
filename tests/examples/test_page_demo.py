"""`make demo-page`: every view moves, and a Ctrl-C leaves no process, no mount and no file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.waiting import PATIENCE, eventually

DEMO = Path(__file__).parents[2] / "examples" / "page_demo.py"
STATES = ("running", "pending", "succeeded", "failed", "quarantined")
VIEWS = {"/": "Queues", "/flows": "order", "/jobs": "Jobs", "/images": "Images"}


def with_that_in_environment(text: str) -> list[int]:
    """The processes that were started for a state in this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in environment:
                found.append(int(entry.name))
    return found


def rows(client: httpx.Client, path: str) -> Any:
    return client.get(path).json()["rows"]


def counts(client: httpx.Client) -> dict[str, str]:
    """What the views say, without ages."""
    return {path: re.sub(r"<[^>]*>|\d+ s\b", "", client.get(path).text) for path in VIEWS}


def test_the_demo_lives_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        [sys.executable, str(DEMO), "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert demo.stdout is not None
        link = next(found[0] for line in demo.stdout if (found := re.search(r"http://\S+login\S+", line)))
        with httpx.Client(base_url=link.partition("/login")[0], follow_redirects=True, timeout=PATIENCE) as client:
            entered = client.get(link)
            again = httpx.get(link, timeout=PATIENCE)
            eventually(lambda: "ready" in {row["status"] for row in rows(client, "/v1/images")}, within=60)
            before = counts(client)
            eventually(lambda: all(rows(client, f"/v1/jobs?state={state}") for state in STATES), within=90)
            after = counts(client)
            machine = client.get("/flows/order").text
            job = client.get("/v1/jobs?flow=order").json()["rows"][-1]["job"]["job_id"]
            one = client.get(f"/jobs/{job}").text
        # One of the workers may have been killed by a job, and not been started again yet.
        eventually(lambda: len(with_that_in_environment(str(tmp_path))) >= 4)
    finally:
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=PATIENCE)

    assert entered.status_code == 200
    assert again.status_code in (400, 401, 403, 410)
    assert all(word in before[path] for path, word in VIEWS.items())
    assert all(before[path] != after[path] for path in VIEWS)
    assert ("reserve" in machine, "What happened when" in one) == (True, True)
    assert demo.returncode == 0
    assert "every file is removed" in said
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert with_that_in_environment(str(tmp_path)) == []


def test_a_killed_demo_takes_its_processes_along(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, str(DEMO), "--port", "0"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    assert next(line for line in demo.stdout if "login" in line)
    demo.kill()
    demo.communicate(timeout=PATIENCE)

    eventually(lambda: not with_that_in_environment(str(tmp_path)))
