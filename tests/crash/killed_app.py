"""The flows of the worker processes that are killed; effects go to a table and to files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from holdfast import Flow, Run, Transaction, fixed


class Request(msgspec.Struct):
    number: int


class Response(msgspec.Struct):
    steps: list[str] = []


def work(run: Run[Request, Response]) -> None:
    """A file per job and step, and a little time in which to be killed."""
    directory = Path(os.environ["KILLED_APP_FILES"])
    (directory / f"{run.request.number}-{run.step}").write_text(run.exec_id)
    time.sleep(0.002)
    run.response.steps.append(run.step)


def record(run: Run[Request, Response], tx: Transaction) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS effects (job_id TEXT, number INTEGER, steps TEXT)")
    tx.execute(
        "INSERT INTO effects VALUES (?, ?, ?)", (run.job.job_id, run.request.number, ",".join(run.response.steps))
    )


flow = (
    # Killed over and over on purpose, so that the limit that stops crash loops must not bite.
    Flow("killed", request=Request, response=Response, queue="narrow", crash_limit=1000)
    .start("a", work, retry=fixed(2))
    .to("b", work)
    .to("c", work)
    .commit("record", record)
)
