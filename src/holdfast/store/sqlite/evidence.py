"""Is a write durably there? Asked when its answer was lost, before it is tried again."""

from __future__ import annotations

import sqlite3
from typing import assert_never

from holdfast.store.messages import (
    Begin,
    Commit,
    End,
    Finish,
    FinishStep,
    PlanEnding,
    RecordTry,
    ReportProgress,
    RewindTo,
    Write,
)
from holdfast.store.sqlite.session import SQL


def is_durable(connection: sqlite3.Connection, one: Write) -> bool:
    """True if the database shows that this write was applied."""
    row = connection.execute(SQL["evidence"], {"exec_id": one.exec_id}).fetchone()
    if row is None:
        return False
    status, tries, position, ending = row
    match one:
        case FinishStep():
            return bool(_finished_by(connection, one.job_id, one.position, one.exec_id))
        case Commit():
            return status in ("committed", "done")
        case Finish():
            return bool(status == "done")
        case End():
            return bool(status == "aborted")
        case Begin():
            return status in ("in_progress", "committed", "done")
        case PlanEnding():
            return ending is not None
        case RecordTry():
            return bool(position == one.position and tries >= one.tries)
        case RewindTo():
            return not connection.execute(
                SQL["evidence_unwound"], {"job_id": one.job_id, "position": one.position}
            ).fetchone()[0]
        case ReportProgress():
            return True  # losing one report loses nothing
    assert_never(one)


def _finished_by(connection: sqlite3.Connection, job_id: str, position: int, exec_id: str) -> bool:
    parameters = {"job_id": job_id, "position": position, "exec_id": exec_id}
    return bool(connection.execute(SQL["evidence_step"], parameters).fetchone()[0])
