"""Sets the row of a job right that somebody has written past the rules: what it must say is known from other rows."""

from __future__ import annotations

import msgspec

from holdfast.core.derivation import Columns, wrong_columns
from holdfast.core.evidence import Evidence, metadata_of
from holdfast.core.facts import Finding, JobFacts
from holdfast.core.records import JobRecord
from holdfast.core.repair_plan import told
from holdfast.core.states import JobState
from holdfast.errors import JobNotFoundError, StoreCorrupt
from holdfast.store.messages import Journaled
from holdfast.store.session import Session
from holdfast.store.verbs import facts

PERMIT = "repair"


def reproject(session: Session, job_id: str, *, actor: str, reason: str) -> JobState:
    """Make the job's row what its executions and its journal say; the journal notes what was there."""
    session.lock_jobs([job_id])
    stored = session.first("job_state", job_id=job_id)
    projected = session.first("projected_state", job_id=job_id)
    if stored is None or projected is None:
        raise JobNotFoundError(job_id)
    session.run("permit", job_id=job_id, act=PERMIT)
    if stored not in set(JobState):
        session.run("reproject_state", job_id=job_id, state=projected)
    read = facts.chosen(session, [job_id])
    found = [one for one in read if isinstance(one, JobFacts)]
    if not found:
        why = "; ".join(one.message for one in read if isinstance(one, Finding)) or "its row is gone"
        raise StoreCorrupt(f"job {job_id} cannot be read: {why}", hint="see what is wrong with it: holdfast check")
    wrong = wrong_columns(found[0], session.now)
    if wrong:
        _set_right(session, found[0].job, wrong)
    session.run("end_permit", job_id=job_id, act=PERMIT)
    if wrong or stored != projected:
        was = told(found[0].job, wrong) if stored in set(JobState) else f"state {stored} → {projected}"
        _journal(session, job_id, projected, actor=actor, reason=f"reprojected: {reason}", was=was)
        session.changed_work = True
    return JobState(projected)


def _set_right(session: Session, job: JobRecord, wrong: Columns) -> None:
    right = msgspec.structs.replace(job, **wrong)
    session.run("insert_queue", name=right.queue)
    session.run("reproject", **msgspec.structs.asdict(right))


def _journal(session: Session, job_id: str, state: str, *, actor: str, reason: str, was: str) -> None:
    session.journal(
        Journaled(
            job_id=job_id,
            actor=actor,
            exec_id=None,
            job_from=session.first("journaled_state", job_id=job_id),
            job_to=state,
            exec_from=None,
            exec_to=None,
            reason=reason,
            metadata=metadata_of(Evidence(repaired=was)),
        )
    )
