"""The flows of a history. Each job's request is its script: what its steps do, and how often they fail."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Abort, Flow, Handoff, Pipeline, Rewind, Run, Transaction, Unrecoverable, WaitFor, fixed
from tests.histories import planted
from tests.histories.events import DIRECTORY_VARIABLE, EventLog
from tests.histories.shapes import EFFECTS_TABLE, QUEUES

STORE_VARIABLE = "HISTORY_STORE"
PIECE = 0.01
ENDED = ("succeeded", "failed", "quarantined")


class Task(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The script of a job."""

    n: int
    ms: int = 0
    """How long each step takes."""
    first_ms: int = 0
    """How much longer the first step takes."""
    deaf: bool = False
    """Its steps do not look whether they should stop."""
    fail: int = 0
    """How many tries of the second step raise an error."""
    commit_fail: int = 0
    """How many tries of the commit step write, and then raise an error."""
    slow: int = 0
    """How many tries of the second step run into its timeout."""
    outcome: str = ""
    """What the second step raises: abort, unrecoverable or handoff."""
    rewinds: int = 0
    """How often the second step goes back to the first, in the first execution."""
    children: int = 0
    child_outcome: str = ""
    cleanup_fail: int = 0


class Trail(msgspec.Struct):
    """The response: the steps that were finished, each once however often it was tried."""

    trail: list[str] = []


TaskRun = Run[Task, Trail]

events = EventLog(Path(os.environ[DIRECTORY_VARIABLE]), "steps") if DIRECTORY_VARIABLE in os.environ else None
_rewound: Counter[str] = Counter()


@contextmanager
def visit(run: TaskRun) -> Iterator[None]:
    """Log the try of a step, from its first moment to its last."""
    assert events is not None
    about = {"job": run.job.job_id, "exec": run.exec_id, "step": run.step, "try": run.tries}
    events.write("begin", **about, flow=run.job.flow, attempt=run.job.attempt, claimed=run.job.updated_at)
    try:
        yield
    except BaseException as error:
        events.write("end", **about, how=type(error).__name__)
        raise
    events.write("end", **about, how="returned")


def milliseconds(run: TaskRun) -> int:
    return run.request.ms + (run.request.first_ms if run.step in ("enter", "fetch") else 0)


def spend(run: TaskRun) -> None:
    """Let the time of the step pass."""
    until = time.monotonic() + milliseconds(run) / 1000
    while (left := until - time.monotonic()) > 0:
        time.sleep(left if run.request.deaf else min(PIECE, left))
        if not run.request.deaf:
            run.check()


def follow_script(run: TaskRun, first: str) -> None:
    """What the second step of a script does."""
    script = run.request
    if run.tries <= script.fail:
        raise RuntimeError(f"planned failure {run.tries}")
    if _rewound[run.exec_id] < script.rewinds and run.job.attempt == 1:
        _rewound[run.exec_id] += 1
        raise Rewind(first, "planned")
    match script.outcome:
        case "abort":
            raise Abort("planned")
        case "unrecoverable":
            raise Unrecoverable("planned")
        case "handoff":
            raise Handoff(Trail([*run.response.trail, "handoff"]))


def passed(run: TaskRun) -> Trail:
    return Trail([*run.response.trail, run.step])


def enter(run: TaskRun) -> Trail:
    with visit(run):
        spend(run)
        return passed(run)


def work(run: TaskRun) -> Trail:
    with visit(run):
        while run.tries <= run.request.slow:
            run.check()  # until the time is up
            time.sleep(PIECE)
        spend(run)
        follow_script(run, "enter")
        return passed(run)


async def fetch(run: TaskRun) -> Trail:
    with visit(run):
        await asyncio.sleep(milliseconds(run) / 1000)
        return passed(run)


async def mix(run: TaskRun) -> Trail:
    with visit(run):
        if run.tries <= run.request.slow:
            await asyncio.sleep(60)
        await asyncio.sleep(run.request.ms / 1000)
        follow_script(run, "fetch")
        return passed(run)


def book(run: TaskRun, tx: Transaction) -> Trail:
    with visit(run):
        mark = "?" if os.environ[STORE_VARIABLE] == "sqlite" else "%s"
        sql = f"INSERT INTO {EFFECTS_TABLE} (job_id, exec_id, n) VALUES ({mark}, {mark}, {mark})"
        tx.execute(sql, (run.job.job_id, run.exec_id, run.request.n))
        if run.tries <= run.request.commit_fail:
            raise RuntimeError("planned failure after the effect was written")
        return passed(run)


def spawn(run: TaskRun) -> Trail:
    with visit(run):
        for child in range(run.request.children):
            flow = (ledger, relay)[child % 2]
            outcome = run.request.child_outcome if child == 0 else ""
            request = Task(n=run.request.n * 100 + child, ms=run.request.ms, outcome=outcome)
            run.submit_child(f"child-{child}", flow, request)
        return passed(run)


def gather(run: TaskRun) -> Trail:
    with visit(run):
        spend(run)
        seen = {}
        for child in run.children():
            state = run.child_result(child.job_id).state
            if state not in ENDED:
                raise WaitFor(child.job_id)
            seen[child.job_id] = state.value
        assert events is not None
        events.write("gathered", job=run.job.job_id, exec=run.exec_id, children=seen)
        follow_script(run, "spawn")
        return passed(run)


def last(run: TaskRun) -> Trail:
    with visit(run):
        spend(run)
        return passed(run)


def undo(run: TaskRun) -> None:
    with visit(run):
        if run.tries <= run.request.cleanup_fail:
            raise RuntimeError("planned failure of the cleanup")


_AGAIN = fixed(2, delay=0.05)
_SETTINGS: dict[str, Any] = {"cleanup": undo, "cleanup_retry": _AGAIN, "job_retry": fixed(1, delay=0.1)}

ledger: Flow[Task, Trail] = (
    Flow("ledger", request=Task, response=Trail, queue=QUEUES["ledger"], **_SETTINGS)
    .start("enter", enter)
    .to("work", work, retry=_AGAIN, timeout=2.0)
    .commit("book", book, retry=fixed(3, delay=0.02))
)
relay: Flow[Task, Trail] = (
    Flow("relay", request=Task, response=Trail, queue=QUEUES["relay"], **_SETTINGS)
    .start("fetch", fetch)
    .to("mix", mix, retry=_AGAIN, timeout=2.0)
    .commit("book", book, retry=fixed(3, delay=0.02))
)
plain: Flow[Task, Trail] = (
    Flow("plain", request=Task, response=Trail, queue=QUEUES["plain"], job_retry=fixed(1, delay=0.1))
    .start("enter", enter)
    .to("work", work, retry=_AGAIN, timeout=2.0)
    .to("last", last)
)
parent: Flow[Task, Trail] = (
    Flow("parent", request=Task, response=Trail, queue=QUEUES["parent"], **_SETTINGS)
    .start("spawn", spawn, retry=fixed(5, delay=0.2))
    .to("gather", gather, retry=fixed(5, delay=0.2))
    .commit("book", book, retry=fixed(3, delay=0.02))
)
line: Pipeline[Task] = (
    Pipeline("line", request=Task)
    .then(ledger, request=lambda view: view.request, name="first")
    .then(relay, request=lambda view: Task(n=view.request.n * 100 + 1, ms=view.request.ms), name="second")
)

patient: Flow[Task, Trail] = (
    Flow("patient", request=Task, response=Trail)
    .start("enter", enter)
    .commit("book", book, retry=fixed(3, delay=4.0))  # long enough to lose a lease in between
)

flows: list[Flow[Any, Any]] = [ledger, relay, plain, parent, line, patient]

planted.plant()
