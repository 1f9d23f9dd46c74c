"""What has to be recorded is recorded, however long the database is away, and keeps nobody else back meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import JobState
from holdfast.errors import StoreBusy, StoreCorrupt, StoreError, StoreReadOnly, StoreUnavailable
from holdfast.store.commands import Write
from holdfast.worker.group_writer import GroupWriter, Written
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.telemetry import Telemetry
from tests.support.backends import Backend
from tests.support.bench import (
    LEASE_MS,
    WORKER,
    Bench,
    commit,
    effect_of,
    end,
    finish_step,
    give_back,
    plan_ending,
    record_try,
    rewind_to,
)
from tests.support.waiting import eventually


class Faulty:
    """The store, of which some calls fail before or after they have done what was asked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.fault: Callable[[Sequence[Write]], Exception | None] = lambda _batch: None
        self.after: Exception | None = None
        self.looking: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, batch: Sequence[Write], **options: Any) -> list[Exception | None]:
        if (error := self.fault(batch)) is not None:
            raise error
        answers: list[Exception | None] = self._store.write(batch, **options)
        if self.after is not None:
            error, self.after = self.after, None
            raise error
        return answers

    def evidence(self, batch: Sequence[Write]) -> list[bool | None]:
        if self.looking is not None:
            error, self.looking = self.looking, None
            raise error
        evidence: list[bool | None] = self._store.evidence(batch)
        return evidence


class Recorder:
    """A writer on its own, and what it has answered."""

    def __init__(self, store: Any, lease_ms: int = LEASE_MS) -> None:
        self.answers: list[Written] = []
        self.failures: list[BaseException] = []
        self.writer = GroupWriter(
            store,
            worker_id=WORKER,
            lease_ms=lease_ms,
            telemetry=Telemetry(),
            written=self.answers.extend,
            failed=self.failures.append,
        )

    def put(self, *writes: Write) -> None:
        for write in writes:
            self.writer.put(None, write)

    def wait_for(self, count: int) -> list[Exception | None]:
        eventually(lambda: len(self.answers) >= count or self.failures, "the writer does not answer", within=60)
        assert not self.failures
        return [answer for _, _, answer in self.answers]


PASSING = [
    StoreUnavailable("away"),
    StoreBusy("busy"),
    StoreReadOnly("read-only"),
    StoreCorrupt("malformed"),
    OSError(24, "Too many open files"),
    MemoryError(),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_whatever_passes_is_waited_for_and_blamed_on_no_job(bench: Bench, error: Exception) -> None:
    faulty = Faulty(bench.store)
    until = time.monotonic() + 0.5
    faulty.fault = lambda _batch: error if time.monotonic() < until else None
    faulty.looking = error
    recorder = Recorder(faulty)
    claims = [bench.running() for _ in range(3)]

    recorder.put(*(finish_step(claim) for claim in claims))
    recorder.writer.start()

    assert recorder.wait_for(3) == [None] * 3
    assert all(len(bench.store.steps(claim.job.job_id)) == 1 for claim in claims)
    recorder.writer.stop(10)


KINDS: list[Callable[[Any], Write]] = [finish_step, record_try, plan_ending, end, give_back, commit]


@pytest.mark.sampled("kind", "backend")
@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_of_any_kind_whose_answer_was_lost_is_made_once(
    bench: Bench, error: Exception, kind: Callable[[Any], Write]
) -> None:
    faulty = Faulty(bench.store)
    faulty.after = error
    faulty.looking = StoreReadOnly("unable to open database file")
    recorder = Recorder(faulty)
    claim = bench.running()

    recorder.put(kind(claim))
    recorder.writer.start()

    if not isinstance(error, StoreBusy):  # which is said before anything was changed
        assert recorder.wait_for(1) == [None]
        before = len(bench.journal(claim.job.job_id))
        recorder.writer.stop(10)
        assert len(bench.journal(claim.job.job_id)) == before
        bench.assert_sound()
    recorder.writer.stop(10)


def test_one_write_that_cannot_be_made_keeps_no_other_back(bench: Bench) -> None:
    faulty = Faulty(bench.store)
    claims = [bench.running() for _ in range(5)]
    bad = claims[2].exec_id
    damaged = [True]
    faulty.fault = lambda batch: (
        StoreCorrupt("malformed") if damaged and any(one.exec_id == bad for one in batch) else None
    )
    recorder = Recorder(faulty)
    recorder.put(*(finish_step(claim) for claim in claims))
    recorder.writer.start()
    recorder.wait_for(4)
    later = bench.running()
    recorder.put(finish_step(later))
    answered = recorder.wait_for(5)
    late = [write.exec_id for _, write, _ in recorder.answers]
    damaged.clear()

    assert answered == [None] * 5
    assert bad not in late
    assert recorder.wait_for(6) == [None] * 6
    recorder.writer.stop(10)


def test_writes_of_one_execution_are_made_in_their_order(bench: Bench) -> None:
    """A cleanup that is planned must not be forgotten because the end behind it came first."""
    faulty = Faulty(bench.store)
    claim = bench.running()
    failing = [True]
    faulty.fault = lambda batch: StoreBusy("busy") if failing and any(o == plan_ending(claim) for o in batch) else None
    recorder = Recorder(faulty)
    recorder.put(plan_ending(claim))
    recorder.writer.start()
    time.sleep(0.2)
    recorder.put(give_back(claim))
    time.sleep(0.3)
    failing.clear()

    assert recorder.wait_for(2) == [None, None]
    assert bench.job(claim.job.job_id).ending is not None
    assert bench.state(claim.job.job_id) is JobState.PENDING
    recorder.writer.stop(10)


def test_a_write_that_is_refused_fails_alone(bench: Bench) -> None:
    faulty = Faulty(bench.store)
    bad, good = bench.running(), bench.running()
    faulty.fault = lambda batch: (
        StoreError("string or blob too big") if any(o.exec_id == bad.exec_id for o in batch) else None
    )
    recorder = Recorder(faulty)
    recorder.put(finish_step(bad), finish_step(good))
    recorder.writer.start()

    answers = {
        write.exec_id: answer for (_, write, _), answer in zip(recorder.answers, recorder.wait_for(2), strict=False)
    }
    answers = {write.exec_id: answer for _, write, answer in recorder.answers}
    assert isinstance(answers[bad.exec_id], StoreError)
    assert answers[good.exec_id] is None
    recorder.writer.stop(10)


def test_a_lease_under_which_nothing_can_be_recorded_is_not_renewed(bench: Bench) -> None:
    faulty = Faulty(bench.store)
    stuck, working = bench.running(), bench.running()
    faulty.fault = lambda batch: StoreBusy("held") if any(o.exec_id == stuck.exec_id for o in batch) else None
    recorder = Recorder(faulty, lease_ms=500)
    recorder.put(finish_step(stuck))
    recorder.writer.start()

    eventually(lambda: recorder.writer.unrecorded() == {stuck.exec_id}, within=60)
    eventually(recorder.writer.is_stuck, within=60)
    recorder.put(finish_step(working))
    eventually(lambda: not recorder.writer.is_stuck(), within=60)
    assert recorder.writer.unrecorded() == {stuck.exec_id}
    faulty.fault = lambda _batch: None
    eventually(lambda: not recorder.writer.unrecorded(), within=60)
    recorder.writer.stop(10)


def test_a_commit_step_may_take_longer_than_a_lease(bench: Bench, backend: Backend) -> None:
    claim, behind = bench.running(), bench.running()
    seen: list[set[str]] = []
    recorder = Recorder(bench.store, lease_ms=200)

    def slow(tx: Any) -> str:
        time.sleep(0.5)
        recorder.put(finish_step(behind))
        time.sleep(0.5)
        seen.append(recorder.writer.unrecorded())
        return effect_of(claim)(tx)

    recorder.put(commit(claim, slow))
    recorder.writer.start()

    assert recorder.wait_for(2) == [None, None]
    assert seen == [set()]
    recorder.writer.stop(10)


def test_an_error_that_nobody_expected_ends_the_lease_keeper_and_is_told(bench: Bench) -> None:
    failures: list[BaseException] = []
    calls = [OSError(24, "Too many open files"), StoreCorrupt("malformed"), ZeroDivisionError()]

    def runs() -> list[Any]:
        raise calls.pop(0)

    keeper = LeaseKeeper(
        bench.store,
        worker_id=WORKER,
        lease_ms=60,
        runs=runs,
        lost=lambda _run: None,
        stopping=lambda _run: None,
        failed=failures.append,
        unrecorded=set,
    )
    keeper.start()

    eventually(lambda: failures, "nobody was told", within=60)
    assert isinstance(failures[0], ZeroDivisionError)
    assert calls == []
    keeper.stop()


def test_evidence_tells_a_rewind_that_was_made_from_one_that_was_not(bench: Bench) -> None:
    """Also one to the very step that asks for it, which leaves no trace among the finished steps."""
    claim = bench.running()
    before = bench.store.evidence([rewind_to(claim)])
    bench.apply(rewind_to(claim))

    assert (before, bench.store.evidence([rewind_to(claim)])) == ([False], [True])
