"""Forgetting: only what has ended, nothing that somebody unfinished refers to, and never the head of a chain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.core.states import Disposition, JobState
from holdfast.core.step import EndCode
from holdfast.errors import BadInput, JobNotFoundError, SettingsError
from holdfast.store.open import open_store
from tests.support.backends import on_sqlite
from tests.support.bench import OPERATOR, Bench, commit, end, finish, finish_step, give_back


def prune(bench: Bench, *, before: int | None = None, limit: int = 1000, dry_run: bool = False) -> list[str]:
    before = bench.clock() + 1 if before is None else before
    return bench.store.prune(before=before, limit=limit, actor=OPERATOR, dry_run=dry_run)


def test_ended_jobs_are_removed_whole(bench: Bench) -> None:
    jobs = [bench.succeeded(key="k"), bench.ended(Disposition.FAILED), bench.ended(Disposition.QUARANTINED)]

    assert prune(bench) == jobs
    assert bench.store.jobs() == []
    assert list(bench.store.journal()) == []
    for job_id in jobs:
        with pytest.raises(JobNotFoundError):
            bench.job(job_id)
        assert bench.store.executions(job_id) == []
        assert bench.store.steps(job_id) == []
    bench.assert_sound()


def test_the_head_of_every_removed_chain_stays_on_record(bench: Bench) -> None:
    job_id = bench.succeeded()
    head = bench.journal(job_id)[-1].hash

    prune(bench)

    assert bench.store.pruned_heads() == {job_id: head}


def test_unfinished_jobs_are_kept_however_old(bench: Bench) -> None:
    bench.running()
    bench.committed()
    bench.submit()
    bench.clock.advance(86_400 * 365)

    assert prune(bench) == []
    assert len(bench.store.jobs()) == 3


def test_only_what_ended_before_the_cutoff_is_removed(bench: Bench) -> None:
    old = bench.succeeded()
    bench.clock.advance(10)
    cutoff = bench.clock()
    young = bench.succeeded()

    assert prune(bench, before=cutoff) == [old]
    assert bench.state(young) is JobState.SUCCEEDED


def test_no_more_than_the_limit_is_removed_and_the_oldest_first(bench: Bench) -> None:
    jobs = [bench.succeeded() for _ in range(5)]

    assert prune(bench, limit=2) == jobs[:2]
    assert prune(bench, limit=9) == jobs[2:]


def test_a_dry_run_says_what_would_go_and_removes_nothing(bench: Bench) -> None:
    job_id = bench.succeeded()

    assert prune(bench, dry_run=True) == [job_id]
    assert bench.state(job_id) is JobState.SUCCEEDED
    assert bench.store.pruned_heads() == {}


def test_a_predecessor_is_kept_while_an_unfinished_job_runs_after_it(bench: Bench) -> None:
    first = bench.succeeded()
    second = bench.submit(run_after=first)
    while_pending = prune(bench)
    claim = bench.take()
    while_running = prune(bench)
    bench.apply(commit(claim))
    bench.apply(finish(claim))

    assert (while_pending, while_running) == ([], [])
    assert prune(bench) == [first, second]


def test_a_child_is_kept_while_its_parent_is_unfinished(bench: Bench) -> None:
    parent = bench.running()
    kid = bench.submit(parent=parent.job.job_id, child_name="one")
    claim = bench.take()
    bench.apply(commit(claim))
    bench.apply(finish(claim))
    while_parent_runs = prune(bench)
    bench.apply(give_back(parent, EndCode.RELEASED))
    while_parent_waits = prune(bench)
    bench.apply(end(bench.take()))

    assert (while_parent_runs, while_parent_waits) == ([], [])
    assert prune(bench) == [parent.job.job_id, kid]


def test_a_parent_is_kept_while_its_child_is_unfinished(bench: Bench) -> None:
    parent = bench.running()
    bench.submit(parent=parent.job.job_id, child_name="one")
    bench.apply(end(parent))

    assert prune(bench) == []
    assert len(bench.store.children(parent.job.job_id)) == 1


def test_a_key_and_an_id_that_were_forgotten_start_a_new_job_and_not_an_old_result(bench: Bench) -> None:
    old = bench.succeeded(key="k")
    prune(bench)

    new = bench.submit_one(key="k")

    assert new.created
    assert new.job_id != old
    assert bench.state(new.job_id) is JobState.PENDING


def test_the_id_of_a_forgotten_job_cannot_be_used_again(bench: Bench) -> None:
    """Its journal would begin a second time, under a head that is on record."""
    old = bench.succeeded()
    prune(bench)

    with pytest.raises(BadInput):
        bench.submit(job_id=old)

    assert bench.store.jobs() == []


def test_what_is_left_is_whole_after_pruning(bench: Bench) -> None:
    for _ in range(3):
        bench.succeeded()
    kept = bench.running()
    bench.apply(finish_step(kept))

    prune(bench)

    assert [job.job_id for job in bench.store.jobs()] == [kept.job.job_id]
    bench.assert_sound()


# --- backup ------------------------------------------------------------------------------------------------


@on_sqlite
def test_a_backup_is_a_whole_store(bench: Bench, tmp_path: Path) -> None:
    done = bench.succeeded()
    running = bench.running()
    target = tmp_path / "copy.db"

    bench.store.backup(target)
    bench.apply(finish_step(running))

    copy = open_store(target, clock=bench.clock)
    try:
        other = Bench(copy, bench.clock)
        other.assert_sound()
        assert other.state(done) is JobState.SUCCEEDED
        assert other.state(running.job.job_id) is JobState.RUNNING
        assert copy.steps(running.job.job_id) == []
        assert json.loads(copy.request(done)) == {"n": 1}
    finally:
        copy.close()


@on_sqlite
def test_a_backup_never_overwrites(bench: Bench, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")

    with pytest.raises(SettingsError):
        bench.store.backup(target)

    assert target.read_text() == "precious"


@on_sqlite
def test_a_backup_is_readable_by_its_owner_only(bench: Bench, tmp_path: Path) -> None:
    bench.submit()
    target = tmp_path / "copy.db"

    bench.store.backup(target)

    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("copy")) == ["copy.db"]


def test_a_backup_into_nowhere_leaves_nothing_and_says_so(bench: Bench, tmp_path: Path) -> None:
    from holdfast.errors import HoldfastError

    with pytest.raises(HoldfastError):
        bench.store.backup(tmp_path / "no" / "such" / "place.db")

    assert not (tmp_path / "no").exists()
