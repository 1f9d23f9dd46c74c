"""Is a write durably there? Asked when its answer was lost, before it is tried again."""

from __future__ import annotations

from typing import assert_never

from holdfast.core.text import storable
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
from holdfast.store.session import Session


def is_durable(session: Session, one: Write) -> bool:
    """True if the database shows that this write was applied."""
    row = session.run("evidence", exec_id=one.exec_id).fetchone()
    if row is None:
        return False
    status, tries, position, ending = row
    match one:
        case FinishStep():
            return bool(session.first("evidence_step", job_id=one.job_id, position=one.position, exec_id=one.exec_id))
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
            # One to the very step that asks for it leaves no trace among the steps.
            if session.first("evidence_unwound", job_id=one.job_id, position=one.position):
                return False
            said = {"step": one.step, "reason": storable(f"rewind: {one.reason}")}
            return bool(session.first("evidence_rewound", job_id=one.job_id, exec_id=one.exec_id, **said))
        case ReportProgress():
            return True  # losing one report loses nothing
    assert_never(one)
