"""The feed of events on either store, without a server: what a client is sent, and from where on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest

from holdfast import Engine
from holdfast.errors import BadInput
from holdfast.store.protocol import Store
from holdfast.web.change_ring import Encoded, Ring, encoded, key_of_place
from holdfast.web.events import EventFilter, Feed
from holdfast.web.principal import Principal, Scope
from holdfast.web.problems import Refused
from holdfast.web.routes import Call, Services
from tests.support.backends import Backend, on_sqlite
from tests.support.bench import Bench, commit, finish
from tests.support.waiting import PATIENCE

ME = Principal(actor="token:me", scope=Scope.READ, kind="token")
T = TypeVar("T")


class Feeding:
    """A feed, and clients of it in an event loop of their own."""

    def __init__(self, backend: Backend) -> None:
        self.engine = Engine.open(backend.place)
        self.services = Services(self.engine)
        self.principals: dict[str, Principal | None] = {}
        self.services.authenticate = lambda scope: self.principals.get(scope["who"], ME)
        self.feed = self.services.get(Feed)

    def call(self, wanted: EventFilter, last: str | None, who: str) -> Call:
        scope = {"type": "http", "headers": [(b"authorization", who.encode())], "client": None, "who": who}
        return Call(
            services=self.services,
            principal=self.principals.get(who, ME),
            path={},
            query=wanted,
            body=None,
            raw_body=b"",
            headers={"last-event-id": last} if last else {},
            method="GET",
            root_path="",
            url_path="/v1/events",
            query_string="",
            scope=scope,
        )

    async def open(self, last: str | None = None, who: str = "me", **wanted: Any) -> AsyncIterator[bytes]:
        """A stream, at its first chunk."""
        subscription = await self.feed.subscribed(self.call(EventFilter(**wanted), last, who))
        return self.feed.stream(subscription)

    async def read(self, stream: AsyncIterator[bytes], enough: Callable[[str], bool]) -> str:
        """What is sent, until it is enough."""
        text = ""
        async with asyncio.timeout(PATIENCE):
            while not enough(text):
                try:
                    text += (await anext(stream)).decode()
                except StopAsyncIteration:
                    return f"{text}(the end)"
        return text


@pytest.fixture
def feeding(backend: Backend, store: Store) -> Iterator[Feeding]:
    feeding = Feeding(backend)
    yield feeding
    feeding.services.close()
    feeding.engine.close()


def ids_in(text: str) -> list[str]:
    """Those of changes."""
    blocks = [block for block in text.split("\n\n") if "event: change" in block]
    return [block.partition("id: ")[2].partition("\n")[0] for block in blocks]


def data_in(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def after(count: int) -> Callable[[str], bool]:
    return lambda text: text.count("event: change") >= count


def of(store: Store) -> list[str]:
    return [one.number for one in store.changes_after(None, limit=1000)]


def test_a_client_is_sent_every_change_with_what_it_needs(feeding: Feeding, bench: Bench, store: Store) -> None:
    async def scenario() -> str:
        stream = await feeding.open()
        claim = await asyncio.to_thread(bench.running, queue="q")
        await asyncio.to_thread(bench.apply, commit(claim), finish(claim))
        return await feeding.read(stream, after(5))

    text = asyncio.run(scenario())
    sent = data_in(text)

    assert text.startswith("retry: 1000\nid: ")
    assert ids_in(text) == of(store)
    assert [(one["kind"], one.get("from"), one["to"], one.get("execution")) for one in sent] == [
        ("submitted", None, "pending", None),
        ("job", "pending", "running", "leased"),
        ("execution", "running", "running", "in_progress"),
        ("execution", "running", "running", "committed"),
        ("job", "running", "succeeded", "done"),
    ]
    assert {(one["flow"], one["queue"]) for one in sent} == {("demo", "q")}
    assert max(len(block) for block in text.split("\n\n")) < 400


def test_a_client_goes_on_behind_the_last_it_has_seen(feeding: Feeding, bench: Bench, store: Store) -> None:
    for _ in range(30):
        bench.submit()

    async def scenario() -> list[str]:
        texts = []
        for place in (of(store)[0], of(store)[27], of(store)[29]):
            stream = await feeding.open(place)
            await asyncio.to_thread(bench.submit)
            texts.append(await feeding.read(stream, after(len(of(store)) - of(store).index(place) - 1)))
        return texts

    texts = asyncio.run(scenario())

    assert [ids_in(text) for text in texts] == [of(store)[1:31], of(store)[28:32], of(store)[30:33]]


def test_the_header_goes_before_the_query(feeding: Feeding, bench: Bench, store: Store) -> None:
    for _ in range(4):
        bench.submit()

    async def scenario() -> str:
        stream = await feeding.open(of(store)[2], after=of(store)[0])
        return await feeding.read(stream, after(1))

    assert ids_in(asyncio.run(scenario())) == of(store)[3:]


SOME = [{"flow": "other"}, {"queue": "q"}, {"state": ["running"]}, {"state": ["running", "pending"], "queue": "q"}]


@pytest.mark.parametrize("wanted", SOME)
def test_a_client_is_sent_what_it_wants(feeding: Feeding, bench: Bench, store: Store, wanted: dict[str, Any]) -> None:
    start = store.last_change()
    bench.running()
    bench.submit(flow="other")
    bench.submit(queue="q")
    chosen = [encoded(one) for one in store.changes_after(None, limit=100)]
    expected = [one.place for one in chosen if EventFilter(**wanted).wants(one.event)]

    async def scenario() -> str:
        return await feeding.read(await feeding.open(start, **wanted), after(len(expected)))

    assert 0 < len(expected) < len(chosen)
    assert ids_in(asyncio.run(scenario())) == expected


def test_a_client_can_watch_one_job(feeding: Feeding, bench: Bench, store: Store) -> None:
    start = store.last_change()
    job_id = bench.running().job.job_id
    bench.submit()

    async def scenario() -> str:
        return await feeding.read(await feeding.open(start, job=job_id), after(3))

    assert {one["job"] for one in data_in(asyncio.run(scenario()))} == {job_id}


def test_a_filtered_client_is_told_how_far_it_has_come(feeding: Feeding, bench: Bench, store: Store) -> None:
    feeding.feed.keep_alive = 0.3

    async def scenario() -> str:
        stream = await feeding.open(flow="nothing")
        await feeding.read(stream, lambda text: "id: " in text)
        await asyncio.to_thread(bench.submit)
        return await feeding.read(stream, lambda text: f"id: {of(store)[-1]}\n\n" in text)

    assert "event:" not in asyncio.run(scenario())


def test_a_place_of_another_store_means_to_look_again(feeding: Feeding, bench: Bench, store: Store) -> None:
    bench.submit()
    [first, *rest] = store.last_change().split(".")
    lost = ".".join([str(int(first) + 1000), *rest])

    async def scenario() -> tuple[str, str]:
        text = await feeding.read(await feeding.open(lost), lambda text: "(the end)" in text or text.count("event") > 1)
        place = text.rpartition("id: ")[2].partition("\n")[0]
        stream = await feeding.open(place)
        await asyncio.to_thread(bench.submit)
        return text, await feeding.read(stream, after(1))

    told, then = asyncio.run(scenario())

    assert 'event: resync\ndata: {"reason": "lost"}' in told
    assert told.endswith("(the end)")
    assert ids_in(then)[-1] == of(store)[-1]


@pytest.mark.parametrize("place", ["x", "-1", "1;2", "9" * 40, "1.2"])
def test_what_is_no_place_is_refused(feeding: Feeding, place: str) -> None:
    with pytest.raises(BadInput):
        asyncio.run(feeding.open(place))


def test_who_may_not_listen_any_more_hears_no_more(feeding: Feeding, bench: Bench) -> None:
    feeding.principals["she"] = msgspec.structs.replace(ME, actor="token:she")

    async def scenario() -> tuple[str, str]:
        hers, mine = await feeding.open(who="she"), await feeding.open()
        await feeding.read(hers, lambda text: "id: " in text)
        await feeding.read(mine, lambda text: "id: " in text)
        feeding.principals["she"] = None
        ended = await feeding.read(hers, lambda text: "(the end)" in text)
        await asyncio.to_thread(bench.submit)
        return ended, await feeding.read(mine, after(1))

    ended, lasting = asyncio.run(scenario())

    assert ended == 'event: end\ndata: {"reason": "unauthenticated"}\n\n(the end)'
    assert len(ids_in(lasting)) == 1


def test_a_slow_client_is_told_to_look_again(feeding: Feeding, bench: Bench, store: Store) -> None:
    feeding.feed.ring_events = 20

    async def scenario() -> str:
        slow, quick = await feeding.open(), await feeding.open()
        await asyncio.to_thread(bench.submit)
        await feeding.read(slow, after(1))
        await feeding.read(quick, after(1))
        for _ in range(60):
            await asyncio.to_thread(bench.submit)
            await feeding.read(quick, after(1))
        return await feeding.read(slow, lambda text: "(the end)" in text)

    text = asyncio.run(scenario())

    assert 'event: resync\ndata: {"reason": "slow"}' in text
    assert text.rpartition("id: ")[2].startswith(of(store)[-1])


def test_a_feed_that_stops_ends_its_streams_and_takes_no_more(feeding: Feeding) -> None:
    async def scenario() -> str:
        stream = await feeding.open()
        await feeding.read(stream, lambda text: "id: " in text)
        feeding.feed.stop_streams()
        text = await feeding.read(stream, lambda text: "(the end)" in text)
        with pytest.raises(Refused):
            await feeding.open()
        return text

    assert asyncio.run(scenario()).endswith("(the end)")


def test_when_nobody_listens_nothing_is_read_and_the_next_client_is_served(
    feeding: Feeding, bench: Bench, store: Store
) -> None:
    feeding.feed.linger = 0.0

    async def scenario() -> tuple[str, bool]:
        stream = await feeding.open()
        await feeding.read(stream, lambda text: "id: " in text)
        await stream.aclose()  # type: ignore[attr-defined]
        thread = feeding.feed._thread
        if thread is not None:
            await asyncio.to_thread(thread.join, PATIENCE)
        ended = feeding.feed._thread is None
        await asyncio.to_thread(bench.submit)
        again = await feeding.open(of(store)[0])
        await asyncio.to_thread(bench.submit)
        return await feeding.read(again, after(1)), ended

    text, ended = asyncio.run(scenario())

    assert ended
    assert ids_in(text) == of(store)[1:]


# --- the ring ---


@on_sqlite
def test_the_ring_is_bounded_in_number_and_in_bytes(bench: Bench, store: Store) -> None:
    for _ in range(40):
        bench.submit()
    events: list[Encoded] = [encoded(one) for one in store.changes_after(None, limit=100)]
    few, small = Ring("0", most=16), Ring("0", most_bytes=2000)
    for one in events:
        few.add(one)
        small.add(one)

    assert few.end == small.end == 40
    assert few.end - few.first <= 16
    assert sum(len(one.text) for one in small.since(small.first, 100)) <= 2000
    assert few.index_after("0") is None
    assert few.since(few.index_after(events[38].place) or 0, 10) == events[39:]
    assert few.index_after(events[39].place) == 40
    assert few.since(40, 10) == []


def test_places_are_in_order(bench: Bench, store: Store) -> None:
    for _ in range(12):
        bench.running()
    keys = [key_of_place(place) for place in of(store)]

    assert keys == sorted(keys)
