"""Server-sent events: every committed change, once and in one order, to whoever listens.

One thread reads the changes of the store into a ring of encoded events that all clients share. A client is a place in
it and a filter; what is from before the ring it is given from the database.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.core.states import JobState
from holdfast.errors import ChangesLostError, HoldfastError
from holdfast.store.protocol import Listener
from holdfast.web.change_ring import RING_EVENTS, ChangeEvent, Encoded, Ring, encoded, key_of_place
from holdfast.web.credentials import key_of
from holdfast.web.principal import Principal
from holdfast.web.problems import Refused
from holdfast.web.routes import Call, Reply, Route, Services

log = logging.getLogger("holdfast.web")

PAGE = 500
BATCH = 64
"""Events given to a connection at once, some 20 kB: with what its buffers hold, all that a slow reader costs."""
MOST_STREAMS = 2_000
STREAMS_PER_CLIENT = 100
KEEP_ALIVE = 15.0
LOOK_INTERVAL = 0.1
"""Not every change wakes those who listen to the store: a step's progress wakes nobody."""
LEAST_PAUSE = 0.02
PAUSE_PER_STREAM = 0.0002
CREDENTIALS_INTERVAL = 1.0
CREDENTIALS_SHARE = 10
"""Asking again who may listen takes at most one part in so many of the time."""
LINGER = 30.0
"""Seconds that the ring is kept up to date when nobody listens any more."""
LONGEST_RETRY = 5.0

_LOST, _SLOW = "lost", "slow"


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes are wanted, and from where on."""

    flow: str | None = None
    queue: str | None = None
    job: str | None = None
    state: list[JobState] = []
    """Of the job, after the change. More than one may be given."""
    after: str | None = None
    """The id of the last event that was seen; the header Last-Event-ID goes before it."""

    def wants(self, event: ChangeEvent) -> bool:
        """Is it one of those?"""
        return (
            (self.flow is None or self.flow == event.flow)
            and (self.queue is None or self.queue == event.queue)
            and (self.job is None or self.job == event.job)
            and (not self.state or event.to in self.state)
        )


class Bell:
    """Wakes all clients of one event loop at once, with one call into it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: asyncio.Future[None] = loop.create_future()

    def ring(self) -> None:
        """Wake them; from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._ring)
        except RuntimeError:
            pass  # the loop is closed, and its clients are gone

    def _ring(self) -> None:
        rung, self.waiting = self.waiting, self.loop.create_future()
        rung.set_result(None)


class Subscription:
    """One client: where it is, and what it wants."""

    def __init__(self, call: Call, wanted: EventFilter, place: str, bell: Bell) -> None:
        assert call.principal is not None
        self.scope = call.scope
        self.principal: Principal = call.principal
        self.client = client_of(self.principal)
        self.wanted = wanted
        self.place = place
        self.index: int | None = None
        """Where it is in the ring; None while it reads from the database."""
        self.ring: Ring | None = None
        self.bell = bell
        self.ended: str | None = None


def client_of(principal: Principal) -> str:
    """Whose streams are counted together: not by process, or each would have as many as it likes."""
    return principal.actor.partition(",pid=")[0]


class Feed:
    """The one reader of changes of an application, and those who listen to it."""

    def __init__(self, services: Services) -> None:
        self._store = services.engine.store
        self._services = services
        self.most_streams = MOST_STREAMS
        self.streams_per_client = STREAMS_PER_CLIENT
        self.keep_alive = KEEP_ALIVE
        self.ring_events = RING_EVENTS
        self.linger = LINGER
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription] = set()
        self._clients: Counter[str] = Counter()
        self._bells: dict[asyncio.AbstractEventLoop, Bell] = {}
        self._ring: Ring | None = None
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None
        self._asked_at = 0.0
        self._asking_takes = 0.0
        self._closing = threading.Event()
        self._catching_up = ThreadPoolExecutor(2, thread_name_prefix="holdfast-events")

    @property
    def streams(self) -> int:
        """How many listen."""
        return len(self._subscriptions)

    # --- clients ---

    def subscribe(
        self, call: Call, wanted: EventFilter, place: str | None, loop: asyncio.AbstractEventLoop
    ) -> Subscription:
        """A new client, behind a place or at the end. Asks the store: not for an event loop's thread."""
        assert call.principal is not None
        client = client_of(call.principal)
        self._refuse_more(client)
        ended, here = None, self._place_now()
        if place:
            try:
                self._store.changes_after(place, limit=1)
            except ChangesLostError:
                ended = _LOST
            else:
                here = place
        with self._lock:
            bell = self._bells.get(loop)
            if bell is None:
                self._bells = {known: bell for known, bell in self._bells.items() if not known.is_closed()}
                bell = self._bells[loop] = Bell(loop)
            subscription = Subscription(call, wanted, here, bell)
            subscription.ended = ended
            return subscription

    def _place_now(self) -> str:
        """Where the order ends, the ring begun there if there is none."""
        with self._lock:
            if self._ring is not None and self._thread is not None:
                return self._ring.place
        place = self._store.last_change()
        with self._lock:
            if self._thread is None:
                self._ring = Ring(place, most=self.ring_events)
                self._start()
            return place

    def _start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._read, name="holdfast-events", daemon=True)
            self._thread.start()

    def _refuse_more(self, client: str) -> None:
        if self._closing.is_set():
            raise Refused(503, "stopping", "the server is about to stop", headers={"Retry-After": "1"})
        with self._lock:
            is_full = len(self._subscriptions) >= self.most_streams
            has_most = self._clients[client] >= self.streams_per_client
        if is_full or has_most:
            whose = f"{client} listens" if has_most else "clients listen"
            most = self.streams_per_client if has_most else self.most_streams
            hint = "close some of them; one stream has all changes"
            raise Refused(429, "too-many-streams", f"{whose} to {most} streams already", hint=hint)

    async def subscribed(self, call: Call) -> Subscription:
        """The same from an event loop, with what the call wants; waits its turn when many come at once."""
        loop, wanted = asyncio.get_running_loop(), call.query
        place = call.headers.get("last-event-id") or wanted.after
        found = self._catching_up.submit(self.subscribe, call, wanted, place, loop)
        return await asyncio.wrap_future(found)

    async def stream(self, subscription: Subscription) -> AsyncIterator[bytes]:
        """What the client is sent until it leaves, is too slow, may not listen any more, or the server stops."""
        with self._lock:
            self._subscriptions.add(subscription)
            self._clients[subscription.client] += 1
            self._start()  # it may have ended for want of clients since the place was looked up
        try:
            # The place at once, so that a connection that breaks before the first event can be taken up again.
            yield f"retry: 1000\nid: {subscription.place}\n\n".encode() if subscription.ended is None else b": \n\n"
            sent_at, told = time.monotonic(), subscription.place
            while True:
                waiting = subscription.bell.waiting  # before looking: what comes meanwhile rings this one
                if subscription.ended is not None or self._closing.is_set():
                    yield self._farewell(subscription)
                    return
                batch = await self._next(subscription)
                if batch:
                    subscription.place = batch[-1].place
                    if chunk := b"".join(one.text for one in batch if subscription.wanted.wants(one.event)):
                        yield chunk
                        sent_at, told = time.monotonic(), subscription.place
                    continue
                if subscription.ended is not None:
                    continue
                left = self.keep_alive - (time.monotonic() - sent_at)
                if left <= 0:
                    # A filtered client is told how far it has come: it need not begin so far back the next time.
                    yield b": \n\n" if told == subscription.place else f"id: {subscription.place}\n\n".encode()
                    sent_at, told = time.monotonic(), subscription.place
                    continue
                await asyncio.wait([waiting], timeout=left)
        finally:
            with self._lock:
                self._subscriptions.discard(subscription)
                self._clients[subscription.client] -= 1
                self._clients = +self._clients

    def _farewell(self, subscription: Subscription) -> bytes:
        match subscription.ended:
            case None:
                return b"retry: 500\n: the server stops\n\n"
            case "lost" | "slow" as reason:
                # With the place from which to go on once everything was looked at again.
                place = self._ring.place if self._ring is not None else subscription.place
                return f'id: {place}\nevent: resync\ndata: {{"reason": "{reason}"}}\n\n'.encode()
            case reason:
                return f'event: end\ndata: {{"reason": "{reason}"}}\n\n'.encode()

    async def _next(self, subscription: Subscription) -> list[Encoded]:
        """Some of what comes next, from the ring or from the database; nothing if there is nothing yet."""
        with self._lock:
            ring = self._ring
            if ring is None:
                return []
            if subscription.ring is not ring:
                subscription.ring, subscription.index = ring, ring.index_after(subscription.place)
            elif subscription.index is None:
                subscription.index = ring.index_after(subscription.place)
            if subscription.index is not None:
                if subscription.index < ring.first:
                    subscription.ended = _SLOW
                    return []
                here = key_of_place(subscription.place)
                while batch := ring.since(subscription.index, BATCH):
                    subscription.index += len(batch)
                    # The database may have been ahead of the ring.
                    if new := [one for one in batch if one.key > here]:
                        return new
                return []
        return await self._from_database(subscription)

    async def _from_database(self, subscription: Subscription) -> list[Encoded]:
        def read() -> list[Encoded]:
            return [encoded(one) for one in self._store.changes_after(subscription.place, limit=BATCH)]

        try:
            return await asyncio.wrap_future(self._catching_up.submit(read))
        except ChangesLostError:
            subscription.ended = _LOST
        except HoldfastError as error:
            log.warning("a stream of events cannot catch up, and will try again: %s", error)
            await asyncio.sleep(LONGEST_RETRY)
        return []

    # --- the one reader ---

    def _read(self) -> None:
        pause, idle_since = LEAST_PAUSE, time.monotonic()
        while not self._closing.is_set():
            try:
                if self._listener is None:
                    self._listener = self._store.listen()
                self._take_in()
                self._ask_again()
                pause = LEAST_PAUSE
            except ChangesLostError:
                self._begin_anew()
            except HoldfastError as error:
                pause = min(LONGEST_RETRY, pause * 2)
                log.warning("changes cannot be read, next try in %.1f s: %s", pause, error)
                self._close_listener()
            except Exception:
                pause = LONGEST_RETRY
                log.exception("reading changes failed; it will be tried again")
                self._close_listener()
            if self._subscriptions:
                idle_since = time.monotonic()
            elif self._ends_idle(idle_since):
                return
            self._closing.wait(max(pause, len(self._subscriptions) * PAUSE_PER_STREAM))
            if self._listener is not None and not self._closing.is_set():
                self._listener.wait(LOOK_INTERVAL)
        self._close_listener()

    def _take_in(self) -> None:
        ring = self._ring
        assert ring is not None
        while not self._closing.is_set():
            page = [encoded(one) for one in self._store.changes_after(ring.place, limit=PAGE)]
            with self._lock:
                for one in page:
                    ring.add(one)
            if page:
                self._wake()
            if len(page) < PAGE:
                return

    def _begin_anew(self) -> None:
        """The store is another one than it was: everybody has to look at everything again."""
        place = self._store.last_change()
        with self._lock:
            self._ring = Ring(place, most=self.ring_events)
            for one in self._subscriptions:
                one.ended = one.ended or _LOST
        self._wake()

    def _ask_again(self) -> None:
        """End the streams of those who may not listen any more: a token that was revoked, a session that has ended."""
        now = time.monotonic()
        if now - self._asked_at < max(CREDENTIALS_INTERVAL, self._asking_takes * CREDENTIALS_SHARE):
            return
        answers: dict[object, Principal | None] = {}
        ended = False
        for one in list(self._subscriptions):
            key = key_of(one.scope)
            if key not in answers:
                answers[key] = self._services.authenticate(one.scope)
            if answers[key] != one.principal:
                one.ended, ended = "unauthenticated", True
        self._asked_at = time.monotonic()
        self._asking_takes = self._asked_at - now
        if ended:
            self._wake()

    def _ends_idle(self, since: float) -> bool:
        if time.monotonic() - since < self.linger:
            return False
        with self._lock:
            if self._subscriptions:
                return False
            self._thread = None
        self._close_listener()
        return True

    def _wake(self) -> None:
        for bell in list(self._bells.values()):
            bell.ring()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def stop_streams(self) -> None:
        """End every stream now; nobody may listen any more."""
        self._closing.set()
        listener = self._listener
        if listener is not None:
            listener.wake()
        self._wake()

    def close(self) -> None:
        """End every stream, and the reader."""
        self.stop_streams()
        thread = self._thread
        if thread is not None:
            thread.join(5)
        self._catching_up.shutdown(wait=False, cancel_futures=True)


async def _events(call: Call) -> Reply:
    feed = call.service(Feed)
    return Reply(body=feed.stream(await feed.subscribed(call)), headers=dict(_HEADERS))


_HEADERS: Mapping[str, str] = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

ROUTES: Sequence[Route] = (
    Route(
        method="GET",
        path="/v1/events",
        name="events",
        summary="Every committed change, as server-sent events.",
        tag="events",
        handler=_events,
        query=EventFilter,
        answer=ChangeEvent,
        media_type="text/event-stream",
        problems=(400, 429),
        description=(
            "Events named `change` have the id that is given back in Last-Event-ID, or as `after`, to lose nothing."
            " An event `resync` says that the client was too slow, or that the store is another one: look at everything"
            " again, and go on from its id. An event `end` says that the credentials have ended."
        ),
    ),
)
