"""The order of changes over all jobs: it only grows, and nothing that is committed is left out, in whatever order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from holdfast import Client
from holdfast.errors import BadInput, ChangesLostError
from holdfast.store import change_feed
from holdfast.store.protocol import Store
from holdfast.views import Change, Views
from tests.support.backends import Backend, PostgresBackend, on_postgres
from tests.support.bench import WORKER, Bench, SettableClock, commit, finish
from tests.support.waiting import eventually

WRITERS, JOBS, KEPT = 4, 12, 40


def numbers(changes: list[Change]) -> list[tuple[str, int]]:
    return [(change.entry.job_id, change.entry.seq) for change in changes]


def everything(store: Store) -> set[tuple[str, int]]:
    return {(entry.job_id, entry.seq) for entry in store.journal()}


class Reader:
    """Goes on behind the last change that it was given, some at a time."""

    def __init__(self, store: Store, limit: int = 3) -> None:
        self.store = store
        self.limit = limit
        self.place: str | None = store.last_change()
        self.read: list[Change] = []

    def look(self) -> list[Change]:
        """All that is to be had."""
        found: list[Change] = []
        while page := self.store.changes_after(self.place, limit=self.limit):
            found += page
            self.place = page[-1].number
        self.read += found
        return found


def test_changes_come_in_the_order_of_commits_with_flow_and_queue(bench: Bench, store: Store) -> None:
    views = Views(Client(store))
    start = views.last_change()
    first = bench.running(queue="q")
    second = bench.submit(flow="other")
    bench.apply(commit(first), finish(first))
    eventually(lambda: len(views.changes(start)) == 6)
    found = views.changes(start)

    begun, done = [(first.job.job_id, n) for n in (1, 2, 3)], [(first.job.job_id, n) for n in (4, 5)]
    assert numbers(found) == [*begun, (second, 1), *done]
    assert [(change.flow, change.queue) for change in found][2:4] == [("demo", "q"), ("other", "")]
    assert numbers(views.changes(found[2].number, limit=2)) == numbers(found)[3:5]
    assert numbers(views.changes()) == numbers(found)
    assert views.changes(found[-1].number) == []


@pytest.mark.parametrize("place", ["x", "-1", "1.2", "..", "1; DROP TABLE changes", "9" * 40])
def test_what_is_no_place_is_refused(store: Store, place: str) -> None:
    with pytest.raises(BadInput):
        store.changes_after(place, limit=1)


def test_a_place_that_this_store_never_reached_is_lost(bench: Bench, store: Store) -> None:
    bench.submit()
    eventually(lambda: store.last_change() != "0")
    [first, *rest] = store.last_change().split(".")

    with pytest.raises(ChangesLostError):
        store.changes_after(".".join([str(int(first) + 1000), *rest]), limit=1)


def test_a_place_of_another_history_is_lost_however_far_this_one_has_come(
    backend: Backend, bench: Bench, store: Store
) -> None:
    """As in a store that was restored, or a replica that became the store: numbers and jobs are there, and others."""
    claim = bench.running()
    bench.succeeded()
    eventually(lambda: len(store.changes_after(None, limit=99)) == 8)
    [_, _, third, *_] = changes = store.changes_after(None, limit=99)
    number, job_id, seq, head = third.number.split(".")
    forged = {
        "another entry": ".".join([number, job_id, seq, "0" * len(head)]),
        "another number": ".".join([str(int(changes[-1].number.split(".")[0]) - 1), job_id, seq, head]),
        "another job": f"{number}.{changes[-1].entry.job_id}.{seq}.{head}",
        "an entry to come": f"{number}.{job_id}.99.{head}",
    }

    assert (job_id, seq) == (claim.job.job_id, "3")
    assert len(store.changes_after(third.number, limit=99)) == 5
    for what, place in forged.items():
        with pytest.raises(ChangesLostError):
            pytest.fail(f"{what}: {store.changes_after(place, limit=1)}")


def test_a_reader_whose_last_job_was_removed_goes_on(bench: Bench, store: Store) -> None:
    reader = Reader(store)
    bench.succeeded()
    eventually(lambda: bool(reader.look()) or len(reader.read) == 5)
    bench.clock.advance(3600)
    store.prune(before=bench.clock(), limit=100, actor=WORKER, dry_run=False)
    bench.submit()
    eventually(lambda: bool(reader.look()) or len(reader.read) == 6)
    number, job_id, seq, head = reader.read[4].number.split(".")

    assert reader.read[5].entry.job_from is None
    for other in (".".join([number, job_id, seq, "0" * len(head)]), f"{number}.{job_id}.6.{head}"):
        with pytest.raises(ChangesLostError):
            store.changes_after(other, limit=1)


def test_writers_that_commit_in_any_order_hide_nothing_from_a_reader(
    backend: Backend, bench: Bench, store: Store, clock: SettableClock
) -> None:
    """Each holds its transactions open for a while that is drawn at random, and the reader reads all the time."""
    chance = random.Random(7)
    pauses = [[chance.random() / 100 for _ in range(JOBS)] for _ in range(WRITERS)]
    claims = [[bench.running() for _ in range(JOBS)] for _ in range(WRITERS)]
    reader = Reader(backend.open(clock))
    before = everything(store)

    def slow(seconds: float) -> Callable[[object], str]:
        def effect(_tx: object) -> str:
            time.sleep(seconds)
            return "{}"

        return effect

    def write(turn: int) -> None:
        own = Bench(backend.open(clock), clock)
        for claim, seconds in zip(claims[turn], pauses[turn], strict=True):
            own.apply(commit(claim, effect=slow(seconds)))
            own.submit()

    writers = [threading.Thread(target=write, args=(turn,)) for turn in range(WRITERS)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        reader.look()
    wanted = everything(store) - before
    eventually(lambda: bool(reader.look()) or len(reader.read) >= len(wanted))

    assert len(wanted) == WRITERS * JOBS * 2
    assert set(numbers(reader.read)) == wanted
    assert len(reader.read) == len(wanted)


@on_postgres
def test_a_change_waits_for_those_that_may_still_commit_before_it(
    backend: PostgresBackend, bench: Bench, store: Store, clock: SettableClock
) -> None:
    early, late = bench.running(), bench.running()
    reader = Reader(store)
    entered, go_on = threading.Event(), threading.Event()

    def slow(_tx: object) -> str:
        entered.set()
        assert go_on.wait(30)
        return "{}"

    writer = threading.Thread(target=lambda: Bench(backend.open(clock), clock).apply(commit(early, effect=slow)))
    writer.start()
    assert entered.wait(30)
    bench.apply(commit(late))
    bench.apply(finish(late))
    held_back = reader.look()
    go_on.set()
    writer.join(30)
    eventually(lambda: bool(reader.look()) or len(reader.read) == 3)

    assert held_back == []
    assert set(numbers(reader.read)) == {(early.job.job_id, 4), (late.job.job_id, 4), (late.job.job_id, 5)}


def test_what_is_kept_for_long_hides_nothing_that_is_to_be_forgotten(
    backend: Backend, bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "LEAST_LOOKED_AT", 10)
    for _ in range(KEPT):
        bench.submit(not_before=bench.clock() + 10**9)
    for _ in range(20):
        bench.succeeded()
        bench.succeeded()
        bench.clock.advance(3600)
        store.prune(before=bench.clock(), limit=2, actor=WORKER, dry_run=False)

    assert backend.query("SELECT count(*) FROM changes")[0][0] < KEPT + 100, "200 were to be forgotten"


def test_retention_forgets_the_places_of_what_it_removes(backend: Backend, bench: Bench, store: Store) -> None:
    bench.succeeded()
    kept = bench.running()
    last = bench.succeeded()
    bench.clock.advance(3600)
    eventually(lambda: len(store.changes_after(None, limit=99)) == 13)
    pruned = store.prune(before=bench.clock(), limit=100, actor=WORKER, dry_run=False)
    left = backend.query("SELECT count(*) FROM changes")
    bench.submit()
    eventually(lambda: len(store.changes_after(None, limit=99)) == 4)
    found = store.changes_after(None, limit=99)

    assert last in pruned
    assert left[0][0] in (3, 4), "what is there, and on SQLite the last number"
    assert {change.entry.job_id for change in found[:3]} == {kept.job.job_id}
    assert found[3].entry.job_from is None
