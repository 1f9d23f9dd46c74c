"""submit: all or none, one unfinished job per key, a predecessor looked after from the start."""

from __future__ import annotations

import pytest

from holdfast.core.states import Disposition, JobState
from holdfast.errors import BadInput, JobNotFoundError
from holdfast.store.rows import new_ulid
from tests.support.bench import DEFINITION, FINGERPRINT, NEW, Bench, commit, finish, give_back


def test_a_submitted_job_is_pending_and_holds_what_it_was_given(bench: Bench) -> None:
    job_id = bench.submit(
        request='{"n":7}', queue="q", key="k", priority=3, failure_limit=4, crash_limit=6, stall_ms=1234
    )

    job = bench.job(job_id)
    assert job.state is JobState.PENDING
    assert (job.flow, job.fingerprint, job.queue, job.key, job.priority) == ("demo", FINGERPRINT, "q", "k", 3)
    assert (job.failure_limit, job.crash_limit, job.stall_ms) == (4, 6, 1234)
    assert (job.attempt, job.failures, job.crashes) == (0, 0, 0)
    assert job.created_at == job.updated_at == bench.clock()
    assert bench.store.request(job_id) == '{"n":7}'
    assert bench.store.executions(job_id) == []
    bench.assert_sound()


def test_a_submission_is_journaled_with_its_actor(bench: Bench) -> None:
    job_id = bench.submit()

    [entry] = bench.journal(job_id)
    assert (entry.seq, entry.actor, entry.job_from, entry.job_to) == (1, "client", None, "pending")
    assert (entry.exec_id, entry.exec_from, entry.exec_to) == (None, None, None)
    assert entry.at == bench.clock()


def test_the_definition_of_a_job_is_kept(bench: Bench) -> None:
    bench.submit()
    bench.submit(**NEW)

    assert bench.store.definitions() == {FINGERPRINT: DEFINITION, NEW["fingerprint"]: NEW["definition"]}


def test_a_queue_exists_as_soon_as_a_job_names_it(bench: Bench) -> None:
    bench.submit(queue="downloads")

    assert [(q.name, q.max_running, q.pending, q.running) for q in bench.store.queues()] == [("downloads", None, 1, 0)]


def test_a_batch_is_submitted_in_order(bench: Bench) -> None:
    jobs = [bench.new_job() for _ in range(5)]

    answers = bench.store.submit(jobs, actor="client")

    assert [(one.job_id, one.created) for one in answers] == [(job.job_id, True) for job in jobs]
    assert bench.store.counts() == {("demo", "pending"): 5}


def test_an_empty_batch_changes_nothing(bench: Bench) -> None:
    assert bench.store.submit([], actor="client") == []
    assert bench.store.counts() == {}


def test_an_id_that_exists_is_refused_and_nothing_of_the_batch_is_kept(bench: Bench) -> None:
    there = bench.submit()
    before = bench.store.counts()
    fresh = bench.new_job(queue="new-queue")

    with pytest.raises(BadInput):
        bench.store.submit([fresh, bench.new_job(job_id=there)], actor="client")

    assert bench.store.counts() == before
    assert bench.store.queues()[0].name == ""
    with pytest.raises(JobNotFoundError):
        bench.job(fresh.job_id)


def test_an_id_twice_in_one_batch_is_refused(bench: Bench) -> None:
    job = bench.new_job()

    with pytest.raises(BadInput):
        bench.store.submit([job, job], actor="client")

    assert bench.store.counts() == {}


def test_an_unknown_predecessor_is_refused_and_nothing_of_the_batch_is_kept(bench: Bench) -> None:
    with pytest.raises(JobNotFoundError):
        bench.store.submit([bench.new_job(), bench.new_job(run_after=new_ulid(1))], actor="client")

    assert bench.store.counts() == {}


@pytest.mark.parametrize(
    "text",
    ["plain", "naïve — ünïcødé 🚀", "quotes \" and \\ and ' too", "a\nb\tc", "x" * 200_000, "\\u0000", "nul \x00 nul"],
)
def test_any_text_in_a_request_comes_back_as_it_was(bench: Bench, text: str) -> None:
    import json

    request = json.dumps({"text": text}, ensure_ascii=False).replace("\x00", "\\u0000")

    job_id = bench.submit(request=request)

    assert bench.store.request(job_id) == request


# --- keys --------------------------------------------------------------------------------------------------


def test_a_second_submit_with_a_key_in_use_gives_the_first_job(bench: Bench) -> None:
    first = bench.submit_one(key="image-1")
    second = bench.submit_one(key="image-1", request='{"other":true}')

    assert (first.created, second.created) == (True, False)
    assert second.job_id == first.job_id
    assert bench.store.request(first.job_id) == '{"n":1}'
    assert bench.store.counts() == {("demo", "pending"): 1}


def test_a_key_is_held_while_the_job_runs_commits_and_waits_for_its_next_attempt(bench: Bench) -> None:
    claim = bench.running(key="k")
    while_running = bench.submit_one(key="k")
    bench.apply(give_back(claim))
    while_waiting = bench.submit_one(key="k")
    claim = bench.take()
    bench.apply(commit(claim))
    while_committed = bench.submit_one(key="k")

    assert {one.job_id for one in (while_running, while_waiting, while_committed)} == {claim.job.job_id}
    assert not any(one.created for one in (while_running, while_waiting, while_committed))


@pytest.mark.parametrize("disposition", [None, Disposition.FAILED, Disposition.QUARANTINED])
def test_a_key_is_free_again_once_its_job_has_ended(bench: Bench, disposition: Disposition | None) -> None:
    first = bench.succeeded(key="k") if disposition is None else bench.ended(disposition, key="k")

    second = bench.submit_one(key="k")

    assert second.created
    assert second.job_id != first


def test_a_key_belongs_to_its_flow(bench: Bench) -> None:
    first = bench.submit_one(key="k")
    second = bench.submit_one(key="k", flow="another")

    assert first.created
    assert second.created


def test_a_key_twice_in_one_batch_makes_one_job(bench: Bench) -> None:
    one, two = bench.store.submit([bench.new_job(key="k"), bench.new_job(key="k")], actor="client")

    assert (one.created, two.created) == (True, False)
    assert one.job_id == two.job_id


def test_jobs_without_a_key_are_all_new(bench: Bench) -> None:
    assert bench.submit_one().created
    assert bench.submit_one().created


def test_keys_are_compared_exactly(bench: Bench) -> None:
    keys = ["k", "K", "k ", "ｋ", "null", "0"]

    answers = [bench.submit_one(key=key) for key in keys]

    assert all(one.created for one in answers)
    assert [bench.job(one.job_id).key for one in answers] == keys


# --- predecessors in the same batch ------------------------------------------------------------------------


def test_a_job_may_run_after_another_of_the_same_batch(bench: Bench) -> None:
    first = bench.new_job()
    second = bench.new_job(run_after=first.job_id)

    bench.store.submit([first, second], actor="client")

    assert bench.job(second.job_id).waits_for == first.job_id
    assert [claim.job.job_id for claim in bench.claim()] == [first.job_id]


def test_a_batch_may_name_the_predecessor_after_its_dependent(bench: Bench) -> None:
    first = bench.new_job()
    second = bench.new_job(run_after=first.job_id)

    bench.store.submit([second, first], actor="client")

    assert [claim.job.job_id for claim in bench.claim()] == [first.job_id]


def test_a_dependent_of_a_deduplicated_job_waits_for_the_job_that_is_there(bench: Bench) -> None:
    there = bench.submit(key="k")
    first = bench.new_job(key="k")
    second = bench.new_job(run_after=first.job_id)

    answers = bench.store.submit([first, second], actor="client")
    claim = bench.take()
    bench.apply(commit(claim))
    bench.apply(finish(claim))

    assert answers[0].job_id == there
    assert bench.state(there) is JobState.SUCCEEDED
    assert [claim.job.job_id for claim in bench.claim()] == [second.job_id], "it waits for a job that never existed"
