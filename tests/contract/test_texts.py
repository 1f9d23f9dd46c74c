"""Texts from outside (errors, reasons, names of operators and hosts): whatever is in them, they are stored."""

from __future__ import annotations

import pytest

from holdfast.core.states import Disposition, JobState
from holdfast.core.step import PATH_AFTER_FAILURE
from tests.support.bench import LEASE_MS, OPERATOR, Bench, end, plan_ending, record_try, report_progress, rewind_to

TEXTS = {
    "half a character": "before \udcff after",
    "NUL": "before \0 after",
    "both": "\0\udcff\ud800",
    "an escape that stands for itself": "\\u0000 \\udcff",
    "more than plain": "日本 ␀ 🜚",
    "very long": "long " * 300_000,
}
HOSTS = {kind: text for kind, text in TEXTS.items() if "\0" not in text}
of_every_kind = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


@of_every_kind
def test_an_error_is_stored_whatever_is_in_it(bench: Bench, text: str) -> None:
    claim = bench.running()

    bench.apply(record_try(claim, error=text), report_progress(claim, progress="{}"), rewind_to(claim, reason=text))
    bench.apply(plan_ending(claim, error=text))
    bench.apply(end(claim, PATH_AFTER_FAILURE[Disposition.FAILED], error=text))

    assert bench.state(claim.job.job_id) is JobState.FAILED
    assert bench.latest(claim.job.job_id).error
    bench.assert_sound()


@of_every_kind
def test_the_words_of_an_operator_are_stored_whatever_is_in_them(bench: Bench, text: str) -> None:
    waiting, running = bench.submit(queue="q"), bench.running(priority=1).job.job_id
    store = bench.store

    store.cancel(waiting, actor=text, reason=text)
    store.cancel(running, actor=text, reason=text)
    store.retry(waiting, actor=text, reason=text, from_state=JobState.FAILED)
    store.fail(running, actor=text, reason=text, quarantine=True)
    store.pause_queue("q", actor=text, reason=text)
    store.set_queue("q", max_running=3, actor=text)

    assert bench.state(running) is JobState.QUARANTINED
    assert [queue.paused_reason is not None for queue in store.queues() if queue.name == "q"] == [True]
    bench.assert_sound()


@pytest.mark.parametrize("text", HOSTS.values(), ids=HOSTS)
def test_the_name_of_a_host_is_stored_whatever_is_in_it(bench: Bench, text: str) -> None:
    worker = f"{text[:100]}:11:1:boot:1:one"
    bench.submit()
    store = bench.store

    store.announce(worker_id=worker, flows=["demo"])
    claims = bench.claim(worker)
    held = store.extend_leases(worker_id=worker, lease_ms=LEASE_MS)
    bench.expire()
    recovered = bench.recover(actor=worker)
    store.retire(worker_id=worker)

    assert [one.exec_id for one in held] == [claim.exec_id for claim in claims]
    assert recovered == ["given back"]
    assert store.workers() == []
    bench.assert_sound()


@of_every_kind
def test_who_submits_is_stored_whatever_is_in_the_name(bench: Bench, text: str) -> None:
    [submitted] = bench.store.submit([bench.new_job()], actor=text)

    assert bench.journal(submitted.job_id)[0].actor
    bench.store.fail(submitted.job_id, actor=OPERATOR, reason="x", quarantine=False)
    bench.assert_sound()
