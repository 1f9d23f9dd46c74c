"""What breaks in a history, and how it heals: processes, clock and disk here, the server and the wire beside it."""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import time
from collections.abc import Callable

from tests.histories.clock import ShiftedClock, TrueClock
from tests.histories.events import EventLog, monotonic_us
from tests.histories.fleet import Fleet
from tests.histories.places import Place, PostgresPlace, SqlitePlace
from tests.histories.plan import Fault
from tests.histories.server_faults import ServerFaults

FILL_CHUNK = 1 << 18


class Faults:
    """Applies the faults of a plan when they are due, and what ends each of them when its time is up."""

    def __init__(
        self, faults: list[Fault], fleet: Fleet, place: Place, clock: ShiftedClock | TrueClock, events: EventLog
    ) -> None:
        self._fleet = fleet
        self._place = place
        self._clock = clock
        self._events = events
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._healing: list[tuple[float, int, Callable[[], None]]] = []
        self._began = time.monotonic()
        self._filled = 0
        for fault in faults:
            self._later(self._due, fault.at, lambda fault=fault: self._apply(fault))  # type: ignore[misc]
        self.server = ServerFaults(place, events) if isinstance(place, PostgresPlace) else None
        self.counts: dict[str, int] = {}

    def step(self) -> None:
        """Do what is due."""
        now = time.monotonic() - self._began
        for schedule in (self._healing, self._due):
            while schedule and schedule[0][0] <= now:
                heapq.heappop(schedule)[2]()
        if self._filled:
            self._fill()

    @property
    def over(self) -> bool:
        return not self._due

    def heal(self) -> None:
        """Everything that is still broken is mended, in the order in which it would have been."""
        self._due.clear()
        while self._healing:
            heapq.heappop(self._healing)[2]()
        if self.server is not None:
            self.server.heal()
        self._clock.settle()

    # --- inside ---

    def _later(self, schedule: list[tuple[float, int, Callable[[], None]]], at: float, do: Callable[[], None]) -> None:
        heapq.heappush(schedule, (at, next(self._order), do))

    def _disturb(self, fault: Fault, end: Callable[[], None]) -> None:
        """A disturbance with an end. Everybody's leases may run out in it."""
        since, began = self._clock.now_ms(), monotonic_us()

        def over() -> None:
            end()
            self._events.write("disturbance", kind=fault.kind, began=began, since=since, until=self._clock.now_ms())

        self._later(self._healing, time.monotonic() - self._began + fault.seconds, over)

    def _apply(self, fault: Fault) -> None:
        match fault.kind:
            case "kill" | "stop" | "two-signals" | "freeze":
                done = self._apply_to_worker(fault)
            case "kill-client" | "freeze-client":
                done = self._apply_to_client(fault)
            case "clock":
                done = self._jump(fault)
            case "fill":
                done = self._begin_to_fill(fault)
            case _:
                assert self.server is not None, fault.kind
                end = self.server.apply(fault)
                if end is not None:
                    self._disturb(fault, end)
                done = end is not None
        if done:
            self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1

    def _apply_to_worker(self, fault: Fault) -> bool:
        members = self._fleet.some("worker", "embedded")
        if not members:
            return False
        member = members[fault.target % len(members)]
        match fault.kind:
            case "freeze":
                self._fleet.freeze(member)
                self._disturb(fault, lambda: self._fleet.thaw(member))
            case "two-signals":
                self._fleet.end(member, "two-signals")
                time.sleep(0.05)
                self._fleet.end(member, "two-signals")
            case _:
                self._fleet.end(member, fault.kind)
        return True

    def _apply_to_client(self, fault: Fault) -> bool:
        members = self._fleet.some("client", "operator")
        if not members:
            return False
        member = members[fault.target % len(members)]
        if fault.kind == "kill-client" and member.role == "client":
            self._fleet.end(member, "kill")
        else:
            self._fleet.freeze(member)
            self._disturb(fault, lambda: self._fleet.thaw(member))
        return True

    def _jump(self, fault: Fault) -> bool:
        assert isinstance(self._clock, ShiftedClock)
        before = self._clock.now_ms()
        self._clock.shift = max(-7200.0, min(7200.0, self._clock.shift + fault.value))
        self._events.write("jump", seconds=fault.value, before=before, after=self._clock.now_ms())
        return True

    def _begin_to_fill(self, fault: Fault) -> bool:
        if not isinstance(self._place, SqlitePlace) or self._filled:
            return False
        path = self._place.directory / "ballast"
        self._filled = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

        def free() -> None:
            os.close(self._filled)
            self._filled = 0
            path.unlink()

        self._disturb(fault, free)
        return True

    def _fill(self) -> None:
        """Take all the room there is, in ever smaller pieces; what others free is taken the next time."""
        size = FILL_CHUNK
        while size >= 1:
            try:
                os.write(self._filled, bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 8
