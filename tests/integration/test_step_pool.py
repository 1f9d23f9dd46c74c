"""The threads of plain steps: work that waits while every thread is blocked is seen by somebody."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from holdfast.worker.threads import StepPool

ROUNDS = 300


@pytest.fixture
def hasty_switching() -> Iterator[None]:
    """Threads are switched as often as can be, so that what can happen between two lines does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_switching")
def test_two_steps_that_wait_for_each_other_meet_however_they_were_put() -> None:
    """The second is put while the first thread has taken the first, but does not look busy yet."""
    met = sum(_meet() for _ in range(ROUNDS))

    assert met == ROUNDS


def _meet() -> bool:
    barrier = threading.Barrier(2)
    asked, ended = threading.Event(), threading.Event()
    results: list[bool] = []

    def perform(_run: Any) -> None:
        try:
            barrier.wait(5)
            results.append(True)
        except threading.BrokenBarrierError:
            results.append(False)

    pool = StepPool(2, cast(Any, perform), asked.set, lambda _run, _error: None)

    def schedule() -> None:
        while not ended.is_set():
            asked.wait(10)
            asked.clear()
            while pool.grow():
                ended.wait(0.001)

    scheduler = threading.Thread(target=schedule)
    scheduler.start()
    pool.put(cast(Any, object()))
    pool.put(cast(Any, object()))
    while len(results) < 2:
        ended.wait(0.001)
    ended.set()
    asked.set()
    pool.close()
    scheduler.join()
    return all(results)
