"""All changes of all jobs, in an order that only grows: who has read up to a place has missed nothing before it.

On SQLite there is one writer at a time, and changes are numbered. On PostgreSQL transactions commit in any order: a
change is shown once no transaction is open that could still commit before it, so one that stays open, be it somebody
else's in the same cluster, holds back what came after it.

A place names its change by what the journal says of it. In a store that was restored, or that a lagging replica has
become, another change is at that number, or none: ChangesLostError, and never a silent gap.
"""

from __future__ import annotations

import random
import re
from typing import Any, NamedTuple

import msgspec

from holdfast.core.records import JournalEntry
from holdfast.errors import BadInput, ChangesLostError
from holdfast.store.rows import shown
from holdfast.store.session import Session

_BEGINNING = "0"
_PLACE = re.compile(r"([0-9]{1,18})\.([0-9A-Za-z]{1,26})\.([0-9]{1,18})\.([0-9a-f]{0,64})")
_HASH_SHOWN = 16
LEAST_LOOKED_AT = 1000
LOOKED_AT_FOR_EACH = 20
"""Changes that are looked at for each job that was removed, four times as many as it had: few dead ones are left."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a journal, and its place among all of them."""

    number: str
    """Opaque; give it back to go on behind it."""
    entry: JournalEntry
    flow: str
    queue: str


class _Place(NamedTuple):
    number: int
    job_id: str
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}.{self.job_id}.{self.seq}.{self.hash[:_HASH_SHOWN]}"


def last(session: Session) -> str:
    """Where the order ends at the moment: what is committed from now on comes behind it."""
    end = session.run("last_change").fetchone()
    return _BEGINNING if end is None else str(_Place(*end))


def after(session: Session, place: str | None, limit: int) -> list[Change]:
    """So many of the changes behind a place, or from the beginning; ChangesLostError if it is of another store."""
    behind = _checked(session, place)
    rows = session.run("changes_after", **_at(session, behind), limit=limit)
    found = rows.fetchall()
    entries = shown(JournalEntry, rows, found)
    return [
        Change(number=str(_Place(row[0], entry.job_id, entry.seq, entry.hash)), entry=entry, flow=row[1], queue=row[2])
        for row, entry in zip(found, entries, strict=True)
    ]


def forget(session: Session, removed: int) -> None:
    """Drop the places of changes whose journals retention has removed: among the oldest, and anywhere.

    What is old may be there for long, if its jobs are not to be removed, and much that is to be forgotten behind it.
    """
    first, end = (int(found or 0) for found in session.run("change_ends").fetchall()[0])
    limit = max(LEAST_LOOKED_AT, LOOKED_AT_FOR_EACH * removed)
    for beginning in (first, random.randint(first, end)):
        session.run("forget_changes", beginning=_number(session, beginning), limit=limit)


def _checked(session: Session, place: str | None) -> _Place:
    if place is None or place in ("", _BEGINNING):
        return _Place(0, "", 0, "")
    found = _PLACE.fullmatch(place)
    if found is None:
        raise BadInput("this is no place in the order of changes", hint="give back one that came with a change")
    given = _Place(int(found[1]), found[2], int(found[3]), found[4])
    entries, head = given.seq, session.first("change_at", **_at(session, given))
    if head is None:
        # Of a journal that retention has removed, the end is on record.
        entries, head = session.run("pruned_head", job_id=given.job_id).fetchone() or (0, "")
    if entries < given.seq or (entries == given.seq and not head.startswith(given.hash)):
        raise ChangesLostError(place)
    return given


def _at(session: Session, place: _Place) -> dict[str, Any]:
    return {"place": _number(session, place.number), "job_id": place.job_id, "seq": place.seq}


def _number(session: Session, number: int) -> int | str:
    """As it is on SQLite; on PostgreSQL that of a transaction, of which there are more than whole numbers."""
    return number if session.dialect == "sqlite" else str(number)
