"""Tells whoever asked of every change of state that became durable through this store.

Taken from the journal entries of each transaction, after its COMMIT: what changes a state is journaled, and what is
journaled is told, so that no verb can be forgotten.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.core.states import JobState
from holdfast.store.messages import Journaled

log = logging.getLogger("holdfast.changes")

MOST_REMEMBERED = 20_000


class Change(NamedTuple):
    """One journal entry, and the flow of its job; empty if that could not be found out."""

    flow: str
    entry: Journaled


Observer: TypeAlias = Callable[[Sequence[Change]], None]


class Changes:
    """The observers of one store. Costs nothing while there are none."""

    def __init__(self, flows_of: Callable[[Sequence[str]], Mapping[str, str]]) -> None:
        self._flows_of = flows_of
        self._observers: Counter[Observer] = Counter()
        self._lock = threading.Lock()
        self._flows: dict[str, str] = {}
        self._doubtful: dict[int, Sequence[Journaled]] = {}

    def observe(self, observer: Observer) -> None:
        """Tell this one from now on, in the thread that has made the change. One that asks twice is told once."""
        with self._lock:
            self._observers[observer] += 1

    def forget(self, observer: Observer) -> None:
        """Take one `observe` back."""
        with self._lock:
            self._observers[observer] -= 1
            self._observers = +self._observers

    def tell(self, entries: Sequence[Journaled]) -> None:
        """These entries are durable."""
        observers = list(self._observers)
        if not observers or not entries:
            return
        changes = self._with_flows(entries)
        for observer in observers:
            try:
                observer(changes)
            except Exception:  # whoever only looks must not disturb who works
                log.exception("an observer of changes failed")

    def doubt(self, entries: Sequence[Journaled]) -> None:
        """The answer to this thread's COMMIT of these was lost."""
        self._doubtful[threading.get_ident()] = entries

    def resolve(self, answers: Sequence[bool | None]) -> None:
        """Evidence for what this thread doubted: a transaction of which anything is there is there whole."""
        if None in answers and True not in answers:
            return  # it is not known yet
        entries = self._doubtful.pop(threading.get_ident(), ())
        if True in answers:
            self.tell(entries)

    def _with_flows(self, entries: Sequence[Journaled]) -> list[Change]:
        known = self._flows
        if len(known) > MOST_REMEMBERED:
            known.clear()
        known.update((entry.job_id, entry.flow) for entry in entries if entry.flow)
        unknown = {entry.job_id for entry in entries if entry.job_id not in known}
        found = self._looked_up(sorted(unknown)) if unknown else {}
        changes = [Change(known.get(e.job_id) or found.get(e.job_id, ""), e) for e in entries]
        for entry in entries:
            if entry.job_to != JobState.RUNNING:
                known.pop(entry.job_id, None)
        return changes

    def _looked_up(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        try:
            return self._flows_of(job_ids)
        except Exception as error:
            log.warning("cannot find out the flows of %d job(s): %s", len(job_ids), error)
            return {}
