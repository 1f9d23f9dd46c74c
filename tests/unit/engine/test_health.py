"""A worker is well while its threads do what they are for; what is wrong is said, all of it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.worker.telemetry import PATIENCE, Vitals, problems

WELL = Vitals(
    failure=None,
    is_ready=True,
    threads={"scheduler": True, "writer": True, "lease": True},
    since_round=1.0,
    since_contact=1.0,
    since_renewal=1.0,
    lease=30.0,
    recovery_interval=5.0,
    holds_jobs=True,
    writer_is_stuck=False,
    is_starved=False,
)


def test_a_worker_that_does_its_work_is_well() -> None:
    assert problems(WELL) == []


@pytest.mark.parametrize(
    "change, says",
    [
        ({"failure": ValueError("secret")}, "cannot go on: ValueError"),
        ({"is_ready": False}, "has not begun"),
        ({"threads": {"scheduler": True, "writer": False}}, "the writer thread is gone"),
        ({"since_round": PATIENCE + 1}, "the scheduler has been stuck for 31 s"),
        ({"since_contact": PATIENCE + 1}, "the store has not answered for 31 s"),
        ({"since_renewal": 31.0}, "leases have not been renewed for 31 s"),
        ({"writer_is_stuck": True}, "could not be recorded"),
        ({"is_starved": True}, "no thread"),
    ],
)
def test_each_thing_that_is_wrong_is_said(change: dict[str, Any], says: str) -> None:
    [problem] = problems(WELL._replace(**change))

    assert says in problem


def test_everything_that_is_wrong_is_said() -> None:
    assert len(problems(WELL._replace(is_ready=False, is_starved=True, writer_is_stuck=True))) == 3


def test_without_jobs_there_is_nothing_to_renew() -> None:
    assert problems(WELL._replace(since_renewal=1000.0, holds_jobs=False)) == []


def test_who_looks_seldom_is_waited_for_longer() -> None:
    assert problems(WELL._replace(since_contact=100.0, since_round=100.0, recovery_interval=60.0)) == []
