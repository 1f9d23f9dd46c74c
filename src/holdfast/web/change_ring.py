"""The newest changes as encoded events, once for all who listen: bounded in number and in bytes."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.views import Change

RING_EVENTS = 8_192
RING_BYTES = 4 << 20

Key: TypeAlias = tuple[Any, ...]


class ChangeEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"from_": "from"}):
    """A change as it is sent: what to look at again, and enough to know whether to."""

    job: str
    seq: int
    """The number of the entry in the job's journal."""
    flow: str
    queue: str
    kind: str
    """submitted; job, if its state has changed; execution, if only that of its execution has; note for all others."""
    from_: str | None = None
    """The job's state before."""
    to: str
    """The job's state now."""
    execution: str | None = None
    """The state of its execution now."""
    step: str | None = None
    at: int


class Encoded(NamedTuple):
    """An event, once for all clients."""

    key: Key
    place: str
    event: ChangeEvent
    text: bytes


def key_of_place(place: str) -> Key:
    """A place in the order of changes, to be compared with others of the same store."""
    first, *rest = place.split(".")
    return (int(first), rest[0], int(rest[1])) if rest else (int(first),)


def encoded(change: Change) -> Encoded:
    """A change as bytes to be sent."""
    entry = change.entry
    if entry.job_from is None:
        kind = "submitted"
    elif entry.job_from != entry.job_to:
        kind = "job"
    else:
        kind = "note" if entry.exec_from == entry.exec_to else "execution"
    event = ChangeEvent(
        job=entry.job_id,
        seq=entry.seq,
        flow=change.flow,
        queue=change.queue,
        kind=kind,
        from_=entry.job_from,
        to=entry.job_to,
        execution=entry.exec_to,
        step=entry.step,
        at=entry.at,
    )
    text = f"id: {change.number}\nevent: change\ndata: {msgspec.json.encode(event).decode()}\n\n".encode()
    return Encoded(key_of_place(change.number), change.number, event, text)


class Ring:
    """The newest events, numbered by how many came before: bounded in number and in bytes. Not safe for threads."""

    def __init__(self, place: str, *, most: int = RING_EVENTS, most_bytes: int = RING_BYTES) -> None:
        self._events: list[Encoded] = []
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._before = key_of_place(place)
        self.place = place
        """Of the last event there was."""
        self.first = 0

    @property
    def end(self) -> int:
        """The number that the next event will have."""
        return self.first + len(self._events)

    def add(self, event: Encoded) -> None:
        """Take it in; the oldest go, an eighth of all at a time."""
        self._events.append(event)
        self._bytes += len(event.text)
        self.place = event.place
        if len(self._events) > self._most or self._bytes > self._most_bytes:
            count = max(1, len(self._events) // 8)
            self._before = self._events[count - 1].key
            self._bytes -= sum(len(one.text) for one in self._events[:count])
            del self._events[:count]
            self.first += count

    def index_after(self, place: str) -> int | None:
        """Where to go on behind a place; None if the ring does not reach back so far."""
        key = key_of_place(place)
        if key < self._before:
            return None
        return self.first + bisect_right(self._events, key, key=lambda event: event.key)

    def since(self, index: int, most: int) -> list[Encoded]:
        """So many of the events from there on."""
        start = index - self.first
        return self._events[start : start + most]
