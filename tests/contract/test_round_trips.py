"""What a group costs on PostgreSQL: statements and waits, counted on the wire. They do not grow with the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.open import open_store
from tests.support.backends import PostgresBackend
from tests.support.bench import FLOWS, LEASE_MS, WORKER, Bench, SettableClock, commit, finish, finish_step
from tests.support.counting_proxy import ROUND_TRIP, STATEMENT, CountingProxy

# (statements, round trips). Two statements in one round trip begin a transaction; four in one tell others of news.
EXPECTED = {
    "submit": (13, 5),
    "claim": (13, 8),
    "finish a step": (5, 3),
    "commit": (9, 5),
    "finish": (12, 5),
}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[tuple[CountingProxy, Bench]]:
    backend = PostgresBackend(tmp_path)
    proxy = CountingProxy(backend.server.port)
    clock = SettableClock()
    # In the clear: an offer of encryption is answered by a byte that is no message.
    place = backend.place_at(backend.server.url_of("postgres", port=proxy.port))
    store = open_store(f"{place}&sslmode=disable&gssencmode=disable", clock=clock)
    yield proxy, Bench(store, clock)
    store.close()
    proxy.close()
    backend.close()


@pytest.mark.parametrize("size", [1, 100])
def test_statements_and_round_trips_of_a_group_are_these(proxy: tuple[CountingProxy, Bench], size: int) -> None:
    counting, bench = proxy

    group_by_group(counting, bench, size)  # by which the statements are prepared
    counted = group_by_group(counting, bench, size)

    assert counted == EXPECTED


def group_by_group(counting: CountingProxy, bench: Bench, size: int) -> dict[str, tuple[int, int]]:
    """Take so many jobs from submit to success together; what each verb has cost."""
    store = bench.store
    counted: dict[str, tuple[int, int]] = {}

    def count(verb: str, call: Callable[[], Any]) -> Any:
        counting.counted.clear()
        answer = call()
        counted[verb] = (counting.counted[STATEMENT], counting.counted[ROUND_TRIP])
        return answer

    def write(verb: str, writes: list[Any]) -> None:
        answers = count(verb, lambda: store.write(writes, worker_id=WORKER, lease_ms=LEASE_MS))
        assert answers == [None] * size

    count("submit", lambda: store.submit([bench.new_job() for _ in range(size)], actor="client"))
    claims = count("claim", lambda: store.claim(worker_id=WORKER, flows=FLOWS, limit=size, lease_ms=LEASE_MS))
    write("finish a step", [finish_step(claim) for claim in claims])
    write("commit", [commit(claim, position=1) for claim in claims])
    write("finish", [finish(claim) for claim in claims])
    return counted
