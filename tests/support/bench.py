"""A store on the workbench: its verbs with everything filled in that a test does not care about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.core.facts import Finding, Severity
from holdfast.core.flow import Definition
from holdfast.core.invariants import check_job
from holdfast.core.records import Ending, ExecutionRecord, JobRecord, JournalEntry
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import PATH_AFTER_FAILURE, PATH_GIVEN_BACK, EndCode
from holdfast.store.commands import (
    Begin,
    Claim,
    Commit,
    End,
    Finish,
    FinishStep,
    NewJob,
    PlanEnding,
    RecordTry,
    ReportProgress,
    RewindTo,
    StoreTransaction,
    Submitted,
    Write,
)
from holdfast.store.protocol import Store
from holdfast.store.rows import new_ulid

LEASE_MS = 30_000
FLOW = "demo"
STEPS = ("one", "two", "three")


def definition_of(version: str, flow: str = FLOW, steps: tuple[str, ...] = STEPS) -> dict[str, str]:
    """A fingerprint and its definition, as a job is pinned to them."""
    definition = Definition(flow, version, steps)
    return {"fingerprint": definition.fingerprint, "definition": msgspec.json.encode(definition).decode()}


FINGERPRINT, DEFINITION = definition_of("1").values()
FLOWS = {FLOW: FINGERPRINT}
OLD = definition_of("0")
NEW = definition_of("2")
WORKER = "host-a:11:1:boot:1:one"
OTHER = "host-a:12:1:boot:1:two"
OPERATOR = "operator:alice"

Effect = Callable[[StoreTransaction], str]


class SettableClock:
    """A clock that goes wherever it is sent, back too."""

    def __init__(self, now: int = 1_750_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


class Bench:
    """The store of a test, with verbs that fill in the rest."""

    def __init__(self, store: Store, clock: SettableClock) -> None:
        self.store = store
        self.clock = clock

    # --- jobs ---

    def new_job(self, **fields: Any) -> NewJob:
        plain = {
            "job_id": new_ulid(self.clock()),
            "flow": FLOW,
            **definition_of("1", fields.get("flow", FLOW)),
            "request": '{"n":1}',
        }
        return NewJob(**plain | fields)

    def submit(self, **fields: Any) -> str:
        """A new job; its id."""
        [submitted] = self.store.submit([self.new_job(**fields)], actor="client")
        return submitted.job_id

    def submit_one(self, **fields: Any) -> Submitted:
        [submitted] = self.store.submit([self.new_job(**fields)], actor="client")
        return submitted

    def claim(
        self,
        worker: str = WORKER,
        *,
        limit: int = 100,
        flows: Mapping[str, str] = FLOWS,
        lease_ms: int = LEASE_MS,
    ) -> list[Claim]:
        return self.store.claim(worker_id=worker, flows=flows, limit=limit, lease_ms=lease_ms)

    def take(self, worker: str = WORKER, **options: Any) -> Claim:
        """Claim one job; there must be one."""
        claims = self.claim(worker, limit=1, **options)
        assert len(claims) == 1, "there was nothing to claim"
        return claims[0]

    def running(self, worker: str = WORKER, **fields: Any) -> Claim:
        """A new job, claimed by a worker."""
        job_id = self.submit(**fields)
        claim = self.take(worker)
        assert claim.job.job_id == job_id, "another job was claimed first"
        return claim

    def committed(self, worker: str = WORKER, **fields: Any) -> Claim:
        """A new job whose execution is committed, but not done."""
        claim = self.running(worker, **fields)
        self.apply(commit(claim), worker=worker)
        return claim

    def succeeded(self, **fields: Any) -> str:
        claim = self.committed(**fields)
        self.apply(finish(claim))
        return claim.job.job_id

    def ended(self, disposition: Disposition = Disposition.FAILED, **fields: Any) -> str:
        """A new job that has failed, or is quarantined."""
        claim = self.running(**fields)
        self.apply(end(claim, PATH_AFTER_FAILURE[disposition]))
        return claim.job.job_id

    # --- writes ---

    def write(self, *batch: Write, worker: str = WORKER) -> list[Exception | None]:
        return self.store.write(batch, worker_id=worker, lease_ms=LEASE_MS)

    def apply(self, *batch: Write, worker: str = WORKER) -> None:
        """Write, and all of it must be taken."""
        answers = self.write(*batch, worker=worker)
        assert answers == [None] * len(batch), f"refused: {answers}"

    def expire(self) -> None:
        """Let every lease run out."""
        self.clock.advance(LEASE_MS / 1000 + 1)

    def recover(self, *dead: str, actor: str = OTHER) -> list[str]:
        """Recover; the outcomes."""
        return [one.outcome for one in self.store.recover(is_dead=lambda owner: owner in dead, actor=actor)]

    def crash(self) -> None:
        """The lease runs out and recovery takes over."""
        self.expire()
        self.recover()

    # --- looking ---

    def job(self, job_id: str) -> JobRecord:
        return self.store.job(job_id)

    def state(self, job_id: str) -> JobState:
        return self.store.job(job_id).state

    def latest(self, job_id: str) -> ExecutionRecord:
        return self.store.executions(job_id)[-1]

    def status(self, claim: Claim) -> ExecutionStatus:
        [one] = [e for e in self.store.executions(claim.job.job_id) if e.exec_id == claim.exec_id]
        return one.status

    def journal(self, job_id: str) -> list[JournalEntry]:
        return list(self.store.journal(job_id))

    def states(self, job_id: str) -> list[str]:
        """The states the journal says the job has gone through, without repeats."""
        states: list[str] = []
        for entry in self.journal(job_id):
            if not states or states[-1] != entry.job_to:
                states.append(entry.job_to)
        return states

    def findings(self) -> list[Finding]:
        """What the invariants say about every job; a lease that has run out is no fault."""
        found = []
        for facts in self.store.facts():
            found += [facts] if isinstance(facts, Finding) else check_job(facts, self.clock())
        return [finding for finding in found if finding.severity is Severity.ERROR]

    def assert_sound(self) -> None:
        """No invariant is broken, and the database has no fault of its own."""
        assert self.findings() == []
        assert list(self.store.integrity(deep=False)) == []


# --- the writes, for a claim -------------------------------------------------------------------------------


def begin(claim: Claim, fingerprint: str = NEW["fingerprint"], definition: str = NEW["definition"]) -> Begin:
    return Begin(claim.job.job_id, claim.exec_id, fingerprint, definition)


def finish_step(
    claim: Claim, position: int = 0, step: str = "one", *, tries: int = 1, response: str = "{}"
) -> FinishStep:
    return FinishStep(claim.job.job_id, claim.exec_id, position, step, tries, 0, response)


def record_try(claim: Claim, tries: int = 1, *, position: int = 0, retry_at: int = 0, error: str = "no") -> RecordTry:
    return RecordTry(claim.job.job_id, claim.exec_id, position, tries, error, retry_at)


def rewind_to(claim: Claim, position: int = 0, step: str = "one", reason: str = "again") -> RewindTo:
    return RewindTo(claim.job.job_id, claim.exec_id, position, step, reason)


def plan_ending(claim: Claim, error: str = "gave up", disposition: Disposition = Disposition.FAILED) -> PlanEnding:
    return PlanEnding(claim.job.job_id, claim.exec_id, Ending(disposition, EndCode.ABORT, error), "one")


def end(
    claim: Claim,
    path: tuple[Disposition, ...] = PATH_AFTER_FAILURE[Disposition.FAILED],
    code: EndCode = EndCode.ERROR,
    **fields: Any,
) -> End:
    return End(job_id=claim.job.job_id, exec_id=claim.exec_id, path=path, code=code, **fields)


def give_back(claim: Claim, code: EndCode = EndCode.RELEASED, **fields: Any) -> End:
    return end(claim, PATH_GIVEN_BACK, code, **fields)


def commit(
    claim: Claim, effect: Effect | None = None, *, response: str = '{"ok":true}', position: int | None = None
) -> Commit:
    at = claim.position if position is None else position
    return Commit(
        job_id=claim.job.job_id,
        exec_id=claim.exec_id,
        position=at,
        step=STEPS[min(at, len(STEPS) - 1)],
        tries=1,
        started_at=0,
        code=EndCode.COMPLETED,
        response=None if effect else response,
        effect=effect,
    )


def finish(claim: Claim) -> Finish:
    return Finish(claim.job.job_id, claim.exec_id)


def report_progress(claim: Claim, position: int = 0, progress: str = '{"done":1}') -> ReportProgress:
    return ReportProgress(claim.job.job_id, claim.exec_id, position, progress)


# --- effects -----------------------------------------------------------------------------------------------

EFFECTS_TABLE = "CREATE TABLE IF NOT EXISTS effects (job_id TEXT NOT NULL, exec_id TEXT NOT NULL)"


def effect_of(claim: Claim, response: str = '{"ok":true}') -> Effect:
    """An effect others can see: one row per commit, with nothing that would keep a second one out."""

    def effect(tx: StoreTransaction) -> str:
        tx.execute(EFFECTS_TABLE)
        tx.execute(f"INSERT INTO effects (job_id, exec_id) VALUES ('{claim.job.job_id}', '{claim.exec_id}')")
        return response

    return effect


def failing_effect(claim: Claim, error: Exception) -> Effect:
    """An effect that writes its row and then fails."""

    def effect(tx: StoreTransaction) -> str:
        effect_of(claim)(tx)
        raise error

    return effect
