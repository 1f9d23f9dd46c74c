"""How long a job may go without progress is a setting of its flow; the default is ten minutes."""

from __future__ import annotations

import pytest

from holdfast.core.flow import Flow
from holdfast.core.progress import StallVerdict, stall_verdict
from holdfast.core.records import JobRecord
from tests.support.facts import START, a_job

MINUTE = 60_000


def test_the_default_is_ten_minutes_for_flows_and_jobs_alike() -> None:
    job: JobRecord = a_job()

    assert Flow("demo", request=dict, response=dict).stall_after == 600.0
    assert job.stall_ms == 600_000


@pytest.mark.parametrize(
    "stall_ms, verdict",
    [(5 * MINUTE, StallVerdict.STALLED), (10 * MINUTE, StallVerdict.SLOW), (30 * MINUTE, StallVerdict.MOVING)],
)
def test_the_same_silence_is_judged_by_the_flows_own_patience(stall_ms: int, verdict: StallVerdict) -> None:
    assert stall_verdict(progressed_at=START, now=START + 9 * MINUTE, stall_ms=stall_ms) is verdict
