"""The journal as it grows: every committed entry once and none left out, in whatever order transactions commit."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from holdfast import Client
from holdfast.core.records import JournalEntry
from holdfast.errors import JobNotFoundError
from holdfast.store.journal import JournalFeed, JournalFilter
from holdfast.store.protocol import Store
from holdfast.store.rows import new_ulid
from tests.support.backends import Backend, PostgresBackend, on_postgres
from tests.support.bench import WORKER, Bench, SettableClock, commit, finish, rewind_to


def numbers(entries: list[JournalEntry]) -> list[tuple[str, int]]:
    return [(entry.job_id, entry.seq) for entry in entries]


def everything(store: Store) -> set[tuple[str, int]]:
    return {(entry.job_id, entry.seq) for entry in store.journal()}


def test_entries_are_chosen_by_job_time_actor_and_flow(bench: Bench, store: Store, clock: SettableClock) -> None:
    client = Client(store)
    old = bench.succeeded()
    clock.advance(3600)
    new = bench.running().job.job_id

    assert numbers(client.journal()) == [*((old, n) for n in range(1, 6)), *((new, n) for n in range(1, 4))]
    assert {entry.job_id for entry in client.journal(since=timedelta(minutes=30))} == {new}
    assert {entry.job_id for entry in client.journal(since=clock())} == {new}
    assert numbers(client.journal(new, actor="client")) == [(new, 1)]
    assert {entry.seq for entry in client.journal(actor=WORKER)} == {2, 3, 4, 5}
    assert client.journal(flow="nobody") == []
    assert len(client.journal(flow=store.job(old).flow)) == 8
    with pytest.raises(JobNotFoundError):
        client.journal("01HZZZZZZZZZZZZZZZZZZZZZZZ")


def test_a_clock_that_is_set_back_hides_no_entry(bench: Bench, store: Store, clock: SettableClock) -> None:
    known = bench.running()
    follower = Client(store).follow_journal(stop_when=lambda: True)
    clock.advance(-3600)
    bench.apply(rewind_to(known))
    younger = bench.submit()

    assert numbers(list(follower)) == [(younger, 1), (known.job.job_id, 4)]


def test_what_is_committed_while_somebody_follows_is_given_once(
    backend: Backend, bench: Bench, store: Store, clock: SettableClock
) -> None:
    """The follower is another process, as far as it can tell, and is not told when to look."""
    before = bench.succeeded()
    seen: list[JournalEntry] = []
    entries = Client(backend.open(clock)).follow_journal(stop_when=lambda: len(seen) >= 100)

    def follow() -> None:
        for entry in entries:
            seen.append(entry)  # noqa: PERF402 - one by one: it is asked how many there are

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for _ in range(20):
        bench.succeeded()
    wanted = {one for one in everything(store) if one[0] != before}
    thread.join(30)

    assert not thread.is_alive()
    assert len(seen) == len(wanted)
    assert set(numbers(seen)) == wanted


def test_what_a_quick_look_passes_over_a_look_everywhere_finds(
    bench: Bench, store: Store, clock: SettableClock
) -> None:
    older, done = new_ulid(clock() - 3600_000), bench.succeeded()
    running = bench.running()
    feed = JournalFeed(store, JournalFilter(), from_now=True)
    bench.apply(commit(running), finish(running))
    clock.advance(1)
    new = bench.succeeded()
    bench.submit(job_id=older)

    quick, whole, rest = feed.look(everywhere=False), feed.look(), [*feed.look(), *feed.look(everywhere=False)]

    assert numbers(quick) == [(running.job.job_id, 4), (running.job.job_id, 5), *((new, n) for n in range(1, 6))]
    assert numbers(whole) == [(older, 1)]
    assert (rest, len(store.journal(done))) == ([], 5)


@on_postgres
def test_a_transaction_that_commits_late_is_not_passed_over(
    backend: PostgresBackend, bench: Bench, store: Store, clock: SettableClock
) -> None:
    early, late = bench.running(), bench.running()
    stops = iter([False, True])
    entered, go_on = threading.Event(), threading.Event()
    told: list[JournalEntry] = []

    def slow(_tx: object) -> str:
        entered.set()
        assert go_on.wait(30)
        return "{}"

    writer = threading.Thread(target=lambda: Bench(backend.open(clock), clock).apply(commit(early, effect=slow)))
    entries = Client(store).follow_journal(stop_when=lambda: next(stops))
    writer.start()
    assert entered.wait(30)
    clock.advance(1)
    bench.apply(commit(late))
    bench.apply(finish(late))
    for entry in entries:
        told.append(entry)
        if len(told) == 2:  # the younger one has been given: now the older transaction ends
            go_on.set()
            writer.join(30)

    assert numbers(told) == [(late.job.job_id, 4), (late.job.job_id, 5), (early.job.job_id, 4)]
    assert told[2].at < told[0].at
