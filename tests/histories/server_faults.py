"""What breaks around a PostgreSQL server: the wire, its processes, and shells that forget what they have locked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg

from tests.histories.events import EventLog
from tests.histories.places import SCHEMA, PostgresPlace
from tests.histories.plan import Fault

ROWS = {
    "jobs": "SELECT 1 FROM jobs WHERE state IN ('pending', 'running') ORDER BY job_id LIMIT 3 FOR UPDATE",
    "queues": "SELECT 1 FROM queues FOR UPDATE",
    "executions": "SELECT 1 FROM executions WHERE status IN ('leased', 'in_progress') LIMIT 2 FOR UPDATE",
}
"""What a person at a prompt has locked and gone away."""
NEED_ANSWER = ("terminate", "kill-backend", "freeze-server", "hold-rows")
"""Faults for which the server has to be asked something first."""
NOTHING: Callable[[], None] = lambda: None  # noqa: E731


class ServerFaults:
    """`apply` breaks something, and returns what ends it; None if there was nothing to break."""

    def __init__(self, place: PostgresPlace, events: EventLog) -> None:
        self._place = place
        self._events = events
        self._frozen: list[int] = []
        self._holders: list[psycopg.Connection[tuple[object, ...]]] = []

    def apply(self, fault: Fault) -> Callable[[], None] | None:
        if self._frozen and fault.kind in NEED_ANSWER:
            return None
        try:
            return self._apply(fault)
        except psycopg.Error:
            return None  # the server is away already

    def heal(self) -> None:
        self._thaw()
        while self._holders:
            self._holders.pop().close()
        self._place.network.heal()

    def _apply(self, fault: Fault) -> Callable[[], None] | None:
        server, network = self._place.server, self._place.network
        match fault.kind:
            case "cut":
                network.cut(0.5)
            case "cut-commits":
                network.commit_cuts = fault.value
                return lambda: setattr(network, "commit_cuts", 0.0)
            case "hang":
                return network.hang(fault.value)
            case "delay":
                network.delay = 0.05
                return lambda: setattr(network, "delay", 0.0)
            case "refuse":
                network.refusing = True
                network.cut(0.3)
                return lambda: setattr(network, "refusing", False)
            case "terminate":
                server.kill_backends("random() < 0.5")
            case "kill-backend":
                return self._kill_backend(fault)
            case "restart":
                self._thaw()
                server.restart()
            case "crash-server":
                self._thaw()
                server.kill()
                server.start()
            case "freeze-server":
                return self._freeze()
            case "hold-rows":
                return self._hold(fault)
            case _:
                raise AssertionError(fault.kind)
        return NOTHING

    def _kill_backend(self, fault: Fault) -> Callable[[], None] | None:
        """SIGKILL a process of the server: the others restart, and everybody's connection is gone."""
        rows = self._place.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' ORDER BY pid")
        if not rows:
            return None
        os.kill(rows[fault.target % len(rows)]["pid"], signal.SIGKILL)
        return NOTHING

    def _freeze(self) -> Callable[[], None] | None:
        first = self._place.server.pid
        self._frozen = [first, *children_of(first)]
        for pid in self._frozen:
            _signal(pid, signal.SIGSTOP)
        return self._thaw

    def _thaw(self) -> None:
        for pid in reversed(self._frozen):
            _signal(pid, signal.SIGCONT)
        self._frozen = []

    def _hold(self, fault: Fault) -> Callable[[], None] | None:
        holder = psycopg.connect(self._place.server.url, connect_timeout=5)
        holder.execute(f"SET search_path TO {SCHEMA}; SET lock_timeout = '1s'".encode())
        self._holders.append(holder)
        holder.execute(list(ROWS.values())[fault.target % len(ROWS)].encode())

        def go_away() -> None:
            holder.close()
            if holder in self._holders:
                self._holders.remove(holder)

        return go_away


def children_of(pid: int) -> list[int]:
    """The processes that this one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # ended meanwhile
