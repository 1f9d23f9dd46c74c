"""Anything that may happen to a store, in any order, next to the model that says what should have come of it."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.core.facts import Finding, Severity
from holdfast.core.hash_chain import chain_faults
from holdfast.core.invariants import check_job
from holdfast.core.states import Disposition, JobState
from holdfast.core.step import EndCode
from holdfast.errors import (
    CycleError,
    InvalidStateTransitionError,
    JobNotFoundError,
    KeyInUseError,
    LeaseLost,
    ParentEndedError,
    StepCancelled,
)
from holdfast.store.commands import Claim, StoreTransaction, Write
from holdfast.store.open import open_store
from tests.stateful.model import ENDED, UNFINISHED, Execution, Job, Model
from tests.support import bench as b
from tests.support.bench import Bench, SettableClock

WORKERS = ("host-a:11:1:boot:1:one", "host-a:12:1:boot:1:two", "host-a:13:1:boot:1:three")
QUEUES = ("", "q")
PATHS = {
    "retry": ((Disposition.RETRY,), ["pending"]),
    "failed": ((Disposition.FAILED,), ["failed"]),
    "again": ((Disposition.FAILED, Disposition.RETRY), ["failed", "pending"]),
    "quarantined": ((Disposition.FAILED, Disposition.QUARANTINED), ["failed", "quarantined"]),
}

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""What is tested here is logic and not durability, so that the disk need not be waited for."""

workers = st.sampled_from(WORKERS)
queues = st.sampled_from(QUEUES)
limits = st.sampled_from([None, 0, 1, 2])
delays = st.sampled_from([0, 0, 5, 40])
lives = st.sampled_from([0, 0, 10_000, None])
"""How long a key lasts: while its job is unfinished, for ten seconds, for ever."""
choices = st.integers(0, 63)
"""Which of the claims or jobs there are: taken modulo their number, so that every number is one of them."""


MANY_STEPS = b.definition_of("1", steps=tuple(f"s{position}" for position in range(200)))
"""More than a history has rules to finish."""


class OutOfStockError(Exception):
    """The effect does not want to happen."""


class StoreMachine(RuleBasedStateMachine):
    """Rules are what workers, clients, operators and time do; invariants are checked after each of them."""

    # --- the beginning and the end ---

    @initialize(first=st.integers(1, 4))
    def open(self, first: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-machine-", dir=MEMORY))
        self.clock = SettableClock()
        self.model = Model(self.clock())
        self.claims: list[Claim] = []
        self._open()
        self.shell = sqlite3.connect(self.directory / "holdfast.db", isolation_level=None)
        self.shell.execute(b.EFFECTS_TABLE)
        for _ in range(first):
            self._submit(self._new("q", None, 0, 0, (2, 2)))
        self._claim(WORKERS[0], first)

    def _open(self) -> None:
        self.store = open_store(self.directory, clock=self.clock, synchronous="NORMAL")
        self.bench = Bench(self.store, self.clock)

    def teardown(self) -> None:
        if hasattr(self, "shell"):
            self.shell.close()
            self.store.close()
            shutil.rmtree(self.directory)

    def _reopen(self) -> None:
        self.store.close()
        self._open()

    # --- clients ---

    @rule(
        queue=queues,
        key=st.sampled_from([None, None, "k1", "k2"]),
        lasts=lives,
        priority=st.integers(-1, 1),
        delay=delays,
        limits=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        after=st.none() | choices,
    )
    def submit(
        self,
        queue: str,
        key: str | None,
        lasts: int | None,
        priority: int,
        delay: int,
        limits: tuple[int, int],
        after: int | None,
    ) -> None:
        predecessor = self._job(after) if after is not None else None
        run_after = predecessor.job_id if predecessor else None
        self._submit(self._new(queue, key, priority, delay, limits, run_after=run_after, lasts=lasts))

    @rule(which=choices, name=st.sampled_from(["a", "b"]), key=st.sampled_from([None, "k1"]), lasts=lives)
    def submit_child(self, which: int, name: str, key: str | None, lasts: int | None) -> None:
        claim = self._any_claim(which)
        parent = claim.job.job_id if claim else ""
        if parent not in self.model.jobs:
            return
        job = self._new("", key, 0, 0, (2, 2), parent=parent, lasts=lasts)
        there = self.model.children.get((parent, name))
        if there is None and (self.model.jobs[parent].cancelled or self.model.jobs[parent].state not in UNFINISHED):
            with pytest.raises(ParentEndedError):
                self.store.submit([self._message(job, child_name=name)], actor="client")
            return
        if there is None:
            self.model.children[parent, name] = self._submit(job, child_name=name)
            return
        [answer] = self.store.submit([self._message(job, child_name=name)], actor="client")
        assert (answer.job_id, answer.created) == (there, False)

    def _new(
        self,
        queue: str,
        key: str | None,
        priority: int,
        delay: int,
        limits: tuple[int, int],
        *,
        run_after: str | None = None,
        parent: str | None = None,
        lasts: int | None = 0,
    ) -> Job:
        return Job(
            job_id=self.bench.new_job().job_id,
            flow="demo",
            queue=queue,
            key=key,
            key_lasts_ms=lasts,
            priority=priority,
            not_before=self.clock() + delay * 1000 if delay else 0,
            failure_limit=limits[0],
            crash_limit=limits[1],
            run_after=run_after,
            parent=parent,
        )

    def _message(self, job: Job, **fields: Any) -> Any:
        names = (
            "job_id",
            "queue",
            "key",
            "key_lasts_ms",
            "priority",
            "not_before",
            "failure_limit",
            "crash_limit",
            "run_after",
            "parent",
        )
        return self.bench.new_job(**{name: getattr(job, name) for name in names}, **MANY_STEPS, **fields)

    def _submit(self, job: Job, **fields: Any) -> str:
        found = self.model.found(job)
        [answer] = self.store.submit([self._message(job, **fields)], actor="client")
        assert answer.created is (found is None)
        if found is None:
            self.model.add(job)
        else:
            assert answer.job_id == found
        return answer.job_id

    # --- what there is to choose from ---

    def _job(self, which: int) -> Job | None:
        jobs = list(self.model.jobs.values())
        return jobs[which % len(jobs)] if jobs else None

    def _any_claim(self, which: int) -> Claim | None:
        """A claim: mostly one whose lease is good, now and then one whose lease has run out, or any of long ago."""
        live = [claim for claim in self.claims if self._is_live(claim)]
        expired = [claim for claim in self.claims if claim not in live and self._is_held(claim)]
        among = (live, live, expired, self.claims)[which % 4] or live or self.claims
        return among[which // 4 % len(among)] if among else None

    def _is_held(self, claim: Claim) -> bool:
        job = self.model.jobs.get(claim.job.job_id)
        return job is not None and job.live is not None and job.live.exec_id == claim.exec_id

    def _is_live(self, claim: Claim) -> bool:
        live = self.model.jobs[claim.job.job_id].live if self._is_held(claim) else None
        return live is not None and live.expires > self.clock()

    def _owner(self, claim: Claim) -> str:
        job = self.model.jobs.get(claim.job.job_id)
        owners = [e.owner for e in job.executions if e.exec_id == claim.exec_id] if job else []
        return owners[0] if owners else WORKERS[0]

    # --- workers ---

    @rule(worker=workers, limit=st.integers(1, 4))
    def claim(self, worker: str, limit: int) -> None:
        self._claim(worker, limit)

    def _claim(self, worker: str, limit: int) -> None:
        expected = self.model.claimable({"demo"}, limit)
        claims = self.bench.claim(worker, limit=limit, flows={b.FLOW: MANY_STEPS["fingerprint"]})
        assert [claim.job.job_id for claim in claims] == [job.job_id for job in expected]
        for claim, job in zip(claims, expected, strict=True):
            assert claim.attempt == len(job.executions) + 1
            assert claim.position == len(job.steps)
            assert claim.response == (job.steps[-1] if job.steps else None)
            assert (claim.job.cancel_reason is not None) is job.cancelled
            assert (claim.job.ending is not None) is job.ending
            job.executions.append(Execution(claim.exec_id, worker, self.clock() + b.LEASE_MS, "in_progress"))
            job.hold, job.waits_for = "none", None
        self.claims += claims

    @rule(which=choices, what=st.sampled_from(["step", "step", "step", "try", "progress", "rewind", "plan"]))
    def work(self, which: int, what: str) -> None:
        claim = self._any_claim(which)
        if claim is None:
            return
        job = self.model.jobs.get(claim.job.job_id)
        steps = list(job.steps) if job else []
        position = len(steps)
        match what:
            case "step":
                applied = self._write(
                    claim, b.finish_step(claim, position, f"s{position}", response=f'{{"n":{which}}}')
                )
                if applied:
                    applied.steps.append(f'{{"n":{which}}}')
            case "try":
                self._write(claim, b.record_try(claim, which % 3 + 1, position=position, error="bad\nluck"))
            case "progress":
                self._write(claim, b.report_progress(claim, position))
            case "rewind" if steps:
                applied = self._write(claim, b.rewind_to(claim, position - 1, "s", "again"))
                if applied:
                    applied.steps.pop()
            case "plan" if job and not job.ending:
                applied = self._write(claim, b.plan_ending(claim))
                if applied:
                    applied.ending = True

    def _write(self, claim: Claim, write: Write) -> Job | None:
        """Write for a claim that may long be lost; the job if the write had to count and did."""
        is_live = self._is_live(claim)
        evidence = self.store.evidence([write])
        [answer] = self.bench.write(write, worker=self._owner(claim))
        self._learn_leases(self._owner(claim))
        if not is_live:
            assert isinstance(answer, LeaseLost)
            assert self.store.evidence([write]) == evidence
            return None
        assert answer is None
        assert self.store.evidence([write]) == [True]
        return self.model.jobs[claim.job.job_id]

    def _learn_leases(self, worker: str) -> None:
        """A write may renew the leases of its own worker, those that had not run out, and no others."""
        stored = {e.exec_id: e.lease_expires_at for e in self.store.under_way()}
        for job in self.model.jobs.values():
            for execution in job.executions:
                found = stored.get(execution.exec_id, execution.expires)
                if found != execution.expires:
                    assert execution.owner == worker
                    assert execution.expires > self.clock()
                    assert found == self.clock() + b.LEASE_MS
                    execution.expires = found

    @rule(which=choices, path=st.sampled_from(sorted(PATHS)), delay=delays, forget=st.booleans())
    def end(self, which: int, path: str, delay: int, forget: bool) -> None:
        claim = self._any_claim(which)
        if claim is None:
            return
        dispositions, states = PATHS[path]
        code = EndCode.RELEASED if path == "retry" else EndCode.ERROR
        later = self.clock() + delay * 1000 if delay else 0
        message = b.end(claim, dispositions, code, error="no", not_before=later, forget_steps=forget)
        applied = self._write(claim, message)
        if applied:
            self.model.abort(applied, states, not_before=later)
            if forget:  # all is cleaned up: nothing is left to be done for an ending
                applied.steps.clear()
                applied.ending = False

    @rule(which=choices)
    def wait_for_a_child(self, which: int) -> None:
        parents = {parent for parent, _ in self.model.children}
        claims = [claim for claim in self.claims if claim.job.job_id in parents]
        if not claims:
            return
        claim = claims[which % len(claims)]
        kid = next(kid for (parent, _), kid in self.model.children.items() if parent == claim.job.job_id)
        child = self.model.jobs.get(kid)
        # A key may have made one its child that was pruned, or that is its own ancestor.
        if child is None or self._waits_on(child, claim.job.job_id) or child in self._ancestors(claim.job.job_id):
            self._is_refused(claim, b.give_back(claim, EndCode.WAITING, wait_for=kid))
            return
        applied = self._write(claim, b.give_back(claim, EndCode.WAITING, wait_for=child.job_id))
        if applied:
            self.model.abort(applied, ["pending"], waits_for=child)

    def _is_refused(self, claim: Claim, write: Write) -> None:
        is_live = self._is_live(claim)
        [answer] = self.bench.write(write, worker=self._owner(claim))
        self._learn_leases(self._owner(claim))
        assert isinstance(answer, CycleError | JobNotFoundError if is_live else LeaseLost)

    def _ancestors(self, job_id: str | None) -> list[Job]:
        found: list[Job] = []
        while job_id is not None and (job := self.model.jobs.get(job_id)) is not None:
            found.append(job)
            job_id = job.parent
        return found

    def _waits_on(self, job: Job, target: str) -> bool:
        while job.job_id != target and job.waits_for is not None:
            job = self.model.jobs[job.waits_for]
        return job.job_id == target

    @rule(
        which=choices, outcome=st.sampled_from(["fails", "commits", "commits", "finishes", "finishes", "only finishes"])
    )
    def commit(self, which: int, outcome: str) -> None:
        claim = self._any_claim(which)
        if outcome == "only finishes" and self.claims:
            self._finish(self.claims[which % len(self.claims)])
            return
        if claim is None:
            return
        job = self.model.jobs.get(claim.job.job_id)

        def effect(tx: StoreTransaction) -> str:
            b.effect_of(claim)(tx)
            if outcome == "fails":
                raise OutOfStockError
            return '{"ok":true}'

        position = len(job.steps) if job else 0
        message = msgspec.structs.replace(b.commit(claim, effect, position=position), step=f"s{position}")
        is_live = self._is_live(claim)
        is_cancelled = is_live and job is not None and job.cancelled
        if outcome == "fails" or is_cancelled:
            # One that was cancelled does not commit any more: its effect is not even tried.
            [answer] = self.bench.write(message, worker=self._owner(claim))
            self._learn_leases(self._owner(claim))
            assert isinstance(answer, StepCancelled if is_cancelled else OutOfStockError if is_live else LeaseLost)
            return
        applied = self._write(claim, message)
        if applied and applied.live:
            applied.live.status = "committed"
            applied.steps.append('{"ok":true}')
            self.model.effects[applied.job_id] = self.model.effects.get(applied.job_id, 0) + 1
            if outcome == "finishes":
                self._finish(claim)

    def _finish(self, claim: Claim) -> None:
        job = self.model.jobs.get(claim.job.job_id)
        committed = job.committed if job else None
        can = committed is not None and committed.exec_id == claim.exec_id and committed.status == "committed"
        [answer] = self.bench.write(b.finish(claim), worker=self._owner(claim))
        self._learn_leases(self._owner(claim))
        assert (answer is None) is can
        if can and job:
            self.model.succeed(job)

    def _extend_leases(self, worker: str) -> None:
        held = {one.exec_id for one in self.store.extend_leases(worker_id=worker, lease_ms=b.LEASE_MS)}
        expected = set()
        for job in self.model.jobs.values():
            for execution in job.executions:
                under_way = execution.status in ("leased", "in_progress", "committed")
                if under_way and execution.owner == worker and execution.expires > self.clock():
                    execution.expires = self.clock() + b.LEASE_MS
                    expected.add(execution.exec_id)
        assert held == expected

    # --- time, death and recovery ---

    @rule(seconds=st.sampled_from([1, 5, 20, 40, 40]), recover=st.booleans(), dead=st.sets(workers, max_size=1))
    def time_passes(self, seconds: int, recover: bool, dead: set[str]) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock()
        if recover:
            self._recover(dead)

    @rule(which=choices, what=st.sampled_from(["step", "try", "progress", "rewind", "plan", "end", "commit"]))
    def come_too_late(self, which: int, what: str) -> None:
        """A lease runs out while its worker is at work, and nobody has noticed when the worker comes to write."""
        live = [claim for claim in self.claims if self._is_live(claim)]
        if not live:
            return
        claim = live[which % len(live)]
        job = self.model.jobs[claim.job.job_id]
        assert job.live is not None
        self.clock.now = max(self.clock.now, job.live.expires)
        self.model.now = self.clock()
        position = len(job.steps)
        writes: dict[str, Write] = {
            "step": b.finish_step(claim, position),
            "try": b.record_try(claim, position=position),
            "progress": b.report_progress(claim, position),
            "rewind": b.rewind_to(claim, max(0, position - 1)),
            "plan": b.plan_ending(claim),
            "end": b.end(claim),
            "commit": b.commit(claim, b.effect_of(claim), position=position),
        }
        before = (self.store.executions(job.job_id), self.bench.journal(job.job_id))
        [answer] = self.bench.write(writes[what], worker=self._owner(claim))
        self._learn_leases(self._owner(claim))
        assert isinstance(answer, LeaseLost)
        assert (self.store.executions(job.job_id), self.bench.journal(job.job_id)) == before

    def _recover(self, dead: set[str]) -> None:
        recovered = self.store.recover(is_dead=dead.__contains__, actor=WORKERS[0])
        outcomes = {one.exec_id: one.outcome for one in recovered}
        expected = {}
        for job in list(self.model.jobs.values()):
            execution = job.live or job.committed
            if execution is None or execution.status == "done":
                continue
            if execution.expires > self.clock() and execution.owner not in dead:
                continue
            if execution.status == "committed":
                expected[execution.exec_id] = "finished"
                self.model.succeed(job)
            else:
                path = self.model.path_after_crash(job)
                expected[execution.exec_id] = "given back" if path == ["pending"] else "quarantined"
                self.model.abort(job, path, crashed=True)
        assert outcomes == expected

    @rule(what=st.sampled_from(["renew", "renew", "renew", "reopen", "prune"]), worker=workers, most=st.integers(1, 3))
    def look_after(self, what: str, worker: str, most: int) -> None:
        match what:
            case "renew":
                self._extend_leases(worker)
            case "reopen":
                self._reopen()
            case "prune":
                self._prune(most)

    # --- operators ---

    @rule(which=choices, verb=st.sampled_from(["cancel", "retry", "release", "retry", "release", "fail", "quarantine"]))
    def operate(self, which: int, verb: str) -> None:
        match verb:
            case "cancel":
                self._cancel(which)
            case "retry" | "release":
                self._retry(which, "failed" if verb == "retry" else "quarantined")
            case _:
                self._force(which, quarantine=verb == "quarantine")

    def _cancel(self, which: int) -> None:
        job = self._job(which)
        if job is None or (job.committed and job.state == "running"):
            return
        if job.state == "quarantined" and self.model.holder(job.flow, job.key):
            return
        try:
            self.store.cancel(job.job_id, actor="operator", reason="no")
        except InvalidStateTransitionError:
            assert job.state == "succeeded"
            return
        assert job.state != "succeeded"
        if job.cancelled:
            self.model.cancel_children(job, None)
            return
        if job.state == "quarantined":
            self._forgive(job)
        self.model.cancel(job)

    def _retry(self, which: int, from_state: str) -> None:
        ended = [job for job in self.model.jobs.values() if job.state in ENDED] or list(self.model.jobs.values())
        job = ended[which % len(ended)] if ended else None
        if job is None or (job.run_after in self.model.jobs and self.model.jobs[job.run_after].state != "succeeded"):
            return
        holder = self.model.holder(job.flow, job.key)
        try:
            self.store.retry(job.job_id, actor="operator", reason="fixed", from_state=JobState(from_state))
        except InvalidStateTransitionError:
            assert job.state != from_state
            assert job.state != "pending" or job.cancelled
        except KeyInUseError:
            assert holder is not None
            assert job.state == from_state
        else:
            if job.state == "pending":
                assert not job.cancelled
                return
            assert job.state == from_state
            assert holder is None
            self._forgive(job)

    def _forgive(self, job: Job) -> None:
        job.executions[-1].meaning = "pending"
        job.forgiven_failures, job.forgiven_crashes = job.failures, job.crashes
        job.hold, job.waits_for, job.not_before = "none", None, 0
        # What a cleanup that did not end has left of the finished steps is for the contract tests to say.
        job.steps = [step.response for step in self.store.steps(job.job_id)]

    def _force(self, which: int, *, quarantine: bool) -> None:
        job = self._job(which)
        if job is None:
            return
        wanted = "quarantined" if quarantine else "failed"
        legal = not job.committed and (job.state != "quarantined" or quarantine)
        try:
            self.store.fail(job.job_id, actor="operator", reason="stop", quarantine=quarantine)
        except InvalidStateTransitionError:
            assert not legal
            return
        assert legal
        if job.state == "pending":
            self.model.take_out(job, wanted)
        elif job.live:
            self.model.abort(job, ["failed", wanted] if quarantine else ["failed"])
        elif job.state != wanted:
            job.executions[-1].meaning = wanted
            self.model.settle(job)

    @rule(
        queue=queues,
        what=st.sampled_from(["pause", "resume", "resume", "limit", "limit", "default limit"]),
        limit=limits,
    )
    def steer(self, queue: str, what: str, limit: int | None) -> None:
        known = self.model.queues.get(queue)
        if known is None:
            return
        match what:
            case "pause":
                self.store.pause_queue(queue, actor="operator", reason="lunch")
                known.paused = True
            case "resume":
                self.store.resume_queue(queue)
                known.paused = False
            case "limit":
                self.store.set_queue(queue, max_running=limit, actor="operator")
                known.limit, known.by_operator = limit, True
            case "default limit":
                self.store.set_queue(queue, max_running=limit, actor=None)
                known.limit = known.limit if known.by_operator else limit

    def _prune(self, most: int) -> None:
        cutoff = self.clock() + 1
        planned = self.store.prune(before=cutoff, limit=most, actor="operator", dry_run=True)
        removed = self.store.prune(before=cutoff, limit=most, actor="operator", dry_run=False)
        assert removed == planned
        assert all(self.model.may_be_pruned(self.model.jobs[job_id]) for job_id in removed)
        for job_id in removed:
            self.model.forget(job_id)
        self.model.forget_queues()

    # --- what must always be true ---

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        stored = {job.job_id: job for job in self.store.jobs(limit=1000)}
        assert set(stored) == set(self.model.jobs)
        for job_id, job in self.model.jobs.items():
            found = stored[job_id]
            assert found.state == job.state, job_id
            assert (found.hold, found.waits_for) == (job.hold, job.waits_for), job_id
            assert (found.attempt, found.failures, found.crashes) == (len(job.executions), job.failures, job.crashes)
            assert [step.response for step in self.store.steps(job_id)] == job.steps
        live = {
            e.exec_id for job in self.model.jobs.values() for e in job.executions if e.status not in ("aborted", "done")
        }
        assert {e.exec_id for e in self.store.under_way()} == live

    @invariant()
    def no_invariant_is_broken(self) -> None:
        for facts in self.store.facts():
            assert not isinstance(facts, Finding)
            assert [f for f in check_job(facts, self.clock()) if f.severity is Severity.ERROR] == []
            assert facts.journal is not None
            assert list(chain_faults(facts.journal)) == []
            counted = [e.status.value for e in facts.executions if e.status.value in ("committed", "done")]
            assert len(counted) <= 1

    @invariant()
    def every_committed_job_has_one_effect(self) -> None:
        rows = dict(self.shell.execute("SELECT job_id, count(*) FROM effects GROUP BY job_id").fetchall())
        assert rows == self.model.effects
        assert set(rows.values()) <= {1}
        for job_id, job in self.model.jobs.items():
            assert (job_id in rows) is (job.committed is not None)

    @invariant()
    def queues_hold_what_they_should(self) -> None:
        stored = {queue.name: queue for queue in self.store.queues()}
        assert set(stored) == set(self.model.queues)
        for name, queue in self.model.queues.items():
            assert stored[name].running == self.model.running_in(name)
            assert (stored[name].max_running, stored[name].paused_at is not None) == (queue.limit, queue.paused)

    @invariant()
    def one_unfinished_job_holds_each_key(self) -> None:
        keys = [(job.flow, job.key) for job in self.store.jobs(limit=1000) if job.key and job.state in UNFINISHED]
        assert len(keys) == len(set(keys))
