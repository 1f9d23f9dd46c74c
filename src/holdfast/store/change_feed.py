"""All changes of all jobs, in an order that only grows: who has read up to a place has missed nothing before it.

On SQLite there is one writer at a time, and changes are numbered. On PostgreSQL transactions commit in any order: a
change is shown once no transaction is open that could still commit before it, so one that stays open, be it somebody
else's in the same cluster, holds back what came after it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.core.records import JournalEntry
from holdfast.errors import BadInput, ChangesLostError
from holdfast.store.rows import shown
from holdfast.store.session import Session

_NUMBER = re.compile(r"([0-9]{1,18})")
_PLACE = re.compile(r"([0-9]{1,18})\.[0-9A-Z]{0,26}\.[0-9]{1,18}")
FORGOTTEN_AT_ONCE = 10_000


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a journal, and its place among all of them."""

    number: str
    """Opaque; give it back to go on behind it."""
    entry: JournalEntry
    flow: str
    queue: str


def last(session: Session) -> str:
    """Where the order ends at the moment: what is committed from now on comes behind it."""
    end = session.first("last_change")
    return str(end) if session.dialect == "sqlite" else f"{end}..0"


def after(session: Session, place: str | None, limit: int) -> list[Change]:
    """So many of the changes behind a place, or from the beginning; ChangesLostError if it is of another store."""
    rows = session.run("changes_after", place=_checked(session, place), limit=limit)
    found = rows.fetchall()
    entries = shown(JournalEntry, rows, found)
    return [
        Change(number=_place_of(session, row[0], entry), entry=entry, flow=row[1], queue=row[2])
        for row, entry in zip(found, entries, strict=True)
    ]


def forget(session: Session) -> None:
    """Drop the places of changes whose journals retention has removed."""
    session.run("forget_changes", limit=FORGOTTEN_AT_ONCE)


def _checked(session: Session, place: str | None) -> int | str:
    """A place as the statement takes it."""
    sqlite = session.dialect == "sqlite"
    if not place:
        return 0 if sqlite else "0..0"
    found = (_NUMBER if sqlite else _PLACE).fullmatch(place)
    if found is None:
        raise BadInput("this is no place in the order of changes", hint="give back one that came with a change")
    if int(found[1]) > int(session.first("last_change")):
        raise ChangesLostError(place)
    return int(found[1]) if sqlite else place


def _place_of(session: Session, first: Any, entry: JournalEntry) -> str:
    return str(first) if session.dialect == "sqlite" else f"{first}.{entry.job_id}.{entry.seq}"
