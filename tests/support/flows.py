"""Small flows for tests of the engine: a request, a response that notes which steps it went through, and gates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast import Flow, Run, Transaction
from tests.support.waiting import PATIENCE


class Ask(msgspec.Struct):
    """A request."""

    name: str = "a"
    number: int = 0


class Answer(msgspec.Struct):
    """A response that remembers where it has been."""

    trail: list[str] = []
    total: int = 0


AskRun = Run[Ask, Answer]
AskFlow = Flow[Ask, Answer]


class Gate:
    """A step waits here until the test lets it through; the test waits until a step has come."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()
        self.arrivals = 0

    def pass_through(self, run: AskRun | None = None) -> None:
        """For steps. With a run, the step is one that listens when it is asked to stop."""
        self.arrivals += 1
        self._arrived.release()
        while not self._open.wait(0.005):
            if run is not None:
                run.check()

    def wait_for_arrival(self) -> None:
        assert self._arrived.acquire(timeout=PATIENCE), "no step has come to the gate"

    def open(self) -> None:
        self._open.set()


def work_for(seconds: float, run: Run[Any, Any] | None = None) -> None:
    """Take some time over it, asking now and then whether to stop if there is a run to ask."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if run is not None:
            run.check()
        time.sleep(0.005)


class Tally:
    """Counts what steps have done, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[str] = []

    def add(self, event: str) -> int:
        with self._lock:
            self.events.append(event)
            return self.events.count(event)

    def note(self, event: str) -> None:
        """The same for a cleanup, which returns nothing."""
        self.add(event)

    def count(self, event: str) -> int:
        with self._lock:
            return self.events.count(event)


def note(name: str) -> Callable[[AskRun], Answer]:
    """A step that adds its name to the trail."""

    def step(run: AskRun) -> Answer:
        return Answer(trail=[*run.response.trail, name], total=run.response.total + 1)

    return step


def raises(*errors: BaseException | None) -> Callable[[AskRun], Answer]:
    """A step that raises these one after the other, None being a success; the last one for ever."""
    left = list(errors)

    def step(run: AskRun) -> Answer:
        error = left.pop(0) if len(left) > 1 else left[0]
        if error is not None:
            raise error
        return note(run.step)(run)

    return step


def fails_cleaning(error: BaseException) -> Callable[[AskRun], None]:
    """A cleanup that raises this each time."""

    def cleanup(run: AskRun) -> None:
        raise error

    return cleanup


EFFECTS = "CREATE TABLE IF NOT EXISTS effects (job_id TEXT NOT NULL, exec_id TEXT NOT NULL)"


def write_effect(run: Run[Any, Any], tx: Transaction) -> None:
    """A commit step whose effect can be counted; nothing but the engine keeps it from happening twice."""
    tx.execute(EFFECTS)
    # Without parameters, which each database spells its own way.
    tx.execute(f"INSERT INTO effects (job_id, exec_id) VALUES ('{run.job.job_id}', '{run.exec_id}')")


def flow_of(step: Callable[..., Any], name: str = "flow", **settings: Any) -> AskFlow:
    """A flow of one step and an effect."""
    options = {key: settings.pop(key) for key in ("retry", "timeout") if key in settings}
    flow: AskFlow = Flow(name, request=Ask, response=Answer, **settings)
    return flow.start("work", step, **options).commit("save", write_effect)
