"""Servers killed while requests with keys come in: nothing is lost, nothing is doubled."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Engine
from tests.support.backends import Backend, PostgresBackend, SqliteBackend
from tests.support.web import FLOW
from tests.support.web_server import Server

KILLS = 5
CLIENTS = 3
PATIENCE = 60.0


class Sender(threading.Thread):
    """Sends one request after the other, each with a key and until it is answered; now and then an old one again."""

    def __init__(self, server: Server, name: str, chance: random.Random) -> None:
        super().__init__(name=name)
        self._server = server
        self._chance = chance
        self.answers: dict[str, str] = {}
        self.changed: list[str] = []
        self.retries = 0
        self.stop = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            key = f"{self.name}-{number}"
            self.answers[key] = self._send(key)
            old = self._chance.choice(list(self.answers))
            if self._send(old) != self.answers[old]:
                self.changed.append(old)

    def _send(self, key: str) -> str:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            answer = self._once(key)
            if answer is not None:
                return answer
            self.retries += 1
            time.sleep(0.02)
        raise AssertionError(f"no answer to {key}")

    def _once(self, key: str) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=10)
        try:
            headers = {"Authorization": "Bearer submit", "Content-Type": "application/json", "Idempotency-Key": key}
            body = json.dumps({"request": {"name": key}})
            connection.request("POST", f"/v1/flows/{FLOW}/jobs", body, headers)
            answer = connection.getresponse()
            content = answer.read().decode()
            assert answer.status in (201, 409, 503), content
            return content if answer.status == 201 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


@pytest.fixture(params=[SqliteBackend, PostgresBackend], ids=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    backend: Backend = request.param(tmp_path)
    yield backend
    backend.close()


def test_each_key_makes_one_job_however_often_the_server_is_killed(backend: Backend, rng: random.Random) -> None:
    Engine.open(backend.place).close()
    server = Server(backend.place)
    senders = [Sender(server, f"client{number}", random.Random(rng.random())) for number in range(CLIENTS)]
    for sender in senders:
        sender.start()
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.1, 0.8))
        server.kill()
        server.start()
    for sender in senders:
        sender.stop.set()
    for sender in senders:
        sender.join()
    server.kill()

    answered = {key: json.loads(answer)["job_id"] for sender in senders for key, answer in sender.answers.items()}
    with Engine.open(backend.place) as engine:
        made = {
            json.loads(engine.store.request(job.job_id))["name"]: job.job_id for job in engine.store.jobs(limit=100_000)
        }
        jobs = len(engine.store.jobs(limit=100_000))
        findings = engine.check()
    print(f"{len(answered)} keys, {sum(sender.retries for sender in senders)} retries, {KILLS} kills")
    assert [sender.changed for sender in senders] == [[]] * CLIENTS
    assert made == answered
    assert jobs == len(answered) > CLIENTS
    assert [one for one in findings if one.severity == "error"] == []
