"""Which jobs a list shows, as a condition of the database: pages by id, newest first, and counts that stop early."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from holdfast.core.states import JobState
from holdfast.core.values import ulid_from
from holdfast.store.session import ResultRows, Session, storable_texts, to_json

FIRST_ID, LAST_ID = "", "~"
"""Before and behind every id."""

_STEP = {
    "sqlite": "json_extract(d.definition, '$.steps[' || ({next}) || ']')",
    "postgres": "d.definition::jsonb -> 'steps' ->> ({next})::integer",
}
_ONE_OF = {
    "sqlite": "IN (SELECT value FROM json_each(:job_ids))",
    "postgres": "= ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:job_ids AS jsonb))))",
}
_NEXT = "coalesce((SELECT max(s.position) FROM steps AS s WHERE s.job_id = j.job_id), -1) + 1"


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs of which all that is given here is true."""

    states: tuple[JobState, ...] = ()
    flow: str | None = None
    queue: str | None = None
    key_prefix: str | None = None
    error_text: str | None = None
    """In the last error, in either case; a job that has succeeded has none."""
    older_than: int | None = None
    """Submitted before this time, by the time that its id begins with."""
    newer_than: int | None = None
    """Submitted at this time or later."""
    step: str | None = None
    """The step that it is in, or will go on with; a job that has succeeded is in none."""
    job_ids: tuple[str, ...] = ()
    """One of these; none given are all."""


class Condition(NamedTuple):
    """A condition about `jobs AS j`, with its parameters."""

    sql: str
    parameters: dict[str, Any]


def condition_of(wanted: JobFilter, dialect: str) -> Condition:
    """The filter as SQL; every value is a parameter."""
    conditions = []
    if wanted.states:
        conditions.append(f"j.state IN ({', '.join(repr(JobState(state).value) for state in wanted.states)})")
    unsettled = wanted.states and JobState.SUCCEEDED not in wanted.states
    if unsettled or wanted.error_text or wanted.step:
        conditions.append("j.state <> 'succeeded'")  # lets the index of unsettled jobs be used
    if wanted.flow is not None:
        conditions.append("j.flow = :flow")
    if wanted.queue is not None:
        conditions.append("j.queue = :queue")
    if wanted.key_prefix:
        conditions.append("substr(j.key, 1, length(CAST(:key_prefix AS TEXT))) = :key_prefix")
    if wanted.error_text:
        conditions.append(
            "EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = j.job_id AND e.attempt = j.attempt"
            " AND lower(e.error) LIKE lower(CAST(:pattern AS TEXT)) ESCAPE '!')"
        )
    if wanted.step:
        step = _STEP[dialect].format(next=_NEXT)
        conditions.append(f"(SELECT {step} FROM definitions AS d WHERE d.fingerprint = j.fingerprint) = :step")  # noqa: S608
    if wanted.job_ids:
        conditions.append(f"j.job_id {_ONE_OF[dialect]}")
    if wanted.older_than is not None:
        conditions.append("j.job_id < :older_than")
    if wanted.newer_than is not None:
        conditions.append("j.job_id >= :newer_than")
    values = {
        "flow": wanted.flow,
        "queue": wanted.queue,
        "key_prefix": wanted.key_prefix or None,
        "pattern": f"%{_escaped(wanted.error_text)}%" if wanted.error_text else None,
        "step": wanted.step or None,
        "job_ids": to_json(wanted.job_ids) if wanted.job_ids else None,
        "older_than": _first_id_at(wanted.older_than),
        "newer_than": _first_id_at(wanted.newer_than),
    }
    given = {name: value for name, value in values.items() if value is not None}
    return Condition(" AND ".join(conditions) or "true", storable_texts(given))


def select(session: Session, wanted: JobFilter, *, beyond: str | None, limit: int, newest_first: bool) -> ResultRows:
    """So many of the jobs whose ids come next behind that one, in this order."""
    condition = condition_of(wanted, session.dialect)
    compared, direction, end = ("<", "DESC", LAST_ID) if newest_first else (">", "ASC", FIRST_ID)
    sql = (
        f"SELECT j.* FROM jobs AS j WHERE j.job_id {compared} :beyond AND {condition.sql}"  # noqa: S608
        f" ORDER BY j.job_id {direction} LIMIT :limit"
    )
    parameters = {**condition.parameters, "beyond": end if beyond is None else beyond, "limit": limit}
    return session.connection.execute(session.in_dialect(sql), parameters)


def count(session: Session, wanted: JobFilter, *, most: int) -> int:
    """How many jobs that is, counted up to `most`."""
    condition = condition_of(wanted, session.dialect)
    sql = f"SELECT count(*) FROM (SELECT 1 FROM jobs AS j WHERE {condition.sql} LIMIT :most) AS found"  # noqa: S608
    rows = session.connection.execute(session.in_dialect(sql), {**condition.parameters, "most": most}).fetchall()
    return int(rows[0][0])


def _first_id_at(time: int | None) -> str | None:
    return None if time is None else ulid_from(max(time, 0), 0)


def _escaped(text: str) -> str:
    return "".join(f"!{character}" if character in "!%_" else character for character in text)
