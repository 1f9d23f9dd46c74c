"""Flows to be killed: each with effects outside the database, so that a lost or doubled one can be seen."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from holdfast import (
    Abort,
    Engine,
    Flow,
    Handoff,
    JobState,
    Pipeline,
    Rewind,
    Run,
    Transaction,
    Unrecoverable,
    fixed,
)
from holdfast.testing import Scenario


class Request(msgspec.Struct):
    number: int = 7


class Response(msgspec.Struct):
    files: list[str] = []
    tries: int = 0


Step = Callable[[Run[Request, Response]], Any]


def file_step(directory: Path, name: str) -> Step:
    """Writes one file under a name of its own: safe to repeat."""

    def step(run: Run[Request, Response]) -> None:
        with run.effect(name):
            (directory / f"{name}-{run.request.number}").write_text(name)
        run.response.files.append(name)

    return step


def record(run: Run[Request, Response], tx: Transaction) -> None:
    """One row per job, in the job's own transaction; deliberately without a unique key that would hide a second."""
    tx.execute("CREATE TABLE IF NOT EXISTS effects (job_id TEXT, files TEXT)")
    # Without parameters, which each database spells its own way.
    tx.execute(f"INSERT INTO effects VALUES ('{run.job.job_id}', '{json.dumps(run.response.files)}')")


def rows_of(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.store.reading() as session:  # type: ignore[attr-defined]
        try:
            return sorted(files for (files,) in session.connection.execute("SELECT files FROM effects").fetchall())
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            return []


def observe(engine: Engine, directory: Path) -> object:
    """States and responses of all jobs, rows of effects, files: ids and times left out."""
    jobs = sorted((job.flow, job.state.value) for job in engine.store.jobs(limit=100))
    responses = [
        engine.wait(job.job_id).response
        for job in engine.store.jobs(limit=100)
        if job.state is JobState.SUCCEEDED and not job.flow.startswith("pipe")
    ]
    files = sorted((path.name, path.read_text()) for path in directory.iterdir() if path.is_file())
    return jobs, sorted(map(str, responses)), rows_of(engine), files


def six_steps(directory: Path) -> Sequence[Flow[Any, Any]]:
    flow = Flow("six", request=Request, response=Response)
    flow.start("one", file_step(directory, "one"))
    for name in ("two", "three", "four", "five"):
        flow.to(name, file_step(directory, name))
    return [flow.commit("record", record)]


def retrying(directory: Path) -> Sequence[Flow[Any, Any]]:
    def flaky(run: Run[Request, Response]) -> None:
        file_step(directory, "flaky")(run)
        if run.tries < 3:
            raise OSError("not yet")

    flow = Flow("retrying", request=Request, response=Response)
    return [flow.start("flaky", flaky, retry=fixed(9)).commit("record", record)]


def aborting(directory: Path, outcome: Exception | None = None) -> Sequence[Flow[Any, Any]]:
    """Makes two files, gives up, and must leave none of them behind."""

    def give_up(run: Run[Request, Response]) -> None:
        raise outcome or Abort("no good")

    def clean(run: Run[Request, Response]) -> None:
        for name in ("one", "two"):
            with run.effect(f"remove-{name}"):
                (directory / f"{name}-{run.request.number}").unlink(missing_ok=True)

    flow = Flow("aborting", request=Request, response=Response, cleanup=clean)
    flow.start("one", file_step(directory, "one")).to("two", file_step(directory, "two")).to("give-up", give_up)
    return [flow.commit("record", record)]


def quarantining(directory: Path) -> Sequence[Flow[Any, Any]]:
    return aborting(directory, Unrecoverable("never"))


def rewinding(directory: Path) -> Sequence[Flow[Any, Any]]:
    """A step that cannot be resumed goes back to the one before it, as unpacking an archive has to."""

    def create(run: Run[Request, Response]) -> None:
        with run.effect("create"):
            (directory / "device").write_text("")
            (directory / "layers").unlink(missing_ok=True)

    def extract(run: Run[Request, Response]) -> Rewind | None:
        if (directory / "layers").exists():
            return Rewind("create", "half extracted")
        with run.effect("extract-half"):
            (directory / "layers").write_text("half")
        with run.effect("extract-whole"):
            (directory / "layers").write_text("whole")
        return None

    flow = Flow("rewinding", request=Request, response=Response, crash_limit=50)
    return [flow.start("create", create).to("extract", extract).commit("record", record)]


def handing_off(directory: Path) -> Sequence[Flow[Any, Any]]:
    def check(run: Run[Request, Response]) -> Handoff:
        return Handoff(Response(files=["was there"]))

    flow = Flow("handing-off", request=Request, response=Response)
    return [flow.start("check", check).to("never", file_step(directory, "never")).commit("record", record)]


def pipeline(directory: Path) -> Sequence[Flow[Any, Any]]:
    fetch = Flow("fetch", request=Request, response=Response)
    fetch.start("fetch", file_step(directory, "fetched")).commit("record", record)
    unpack = Flow("unpack", request=Request, response=Response)
    unpack.start("unpack", file_step(directory, "unpacked")).commit("record", record)
    both = Pipeline("pipe", request=Request)
    both.then(fetch, request=lambda view: view.request, key=lambda view: str(view.request.number))
    both.then(unpack, request=lambda view: Request(number=len(view.previous.files)))
    return [both]


def failing_pipeline(directory: Path) -> Sequence[Flow[Any, Any]]:
    (bad,) = aborting(directory)
    both = Pipeline("pipe-bad", request=Request)
    both.then(bad, request=lambda view: view.request)
    return [both]


def submit_three(engine: Engine) -> None:
    """Three jobs: two in a row, one with a key and a delay, all or none."""
    first = engine.prepare("six", Request(1))
    second = engine.prepare("six", Request(2), run_after=first.job_id)
    third = engine.prepare("six", Request(3), key="k", not_before=engine.store.now() + 5000)
    engine.submit_many([first, second, third])


def scenario(flows: Callable[[Path], Sequence[Flow[Any, Any]]], name: str) -> Scenario:
    return Scenario(flows=flows, submit=lambda engine: engine.submit(name, Request()), observe=observe)


SCENARIOS = {
    "six steps": scenario(six_steps, "six"),
    "retries": scenario(retrying, "retrying"),
    "abort with cleanup": scenario(aborting, "aborting"),
    "quarantine with cleanup": scenario(quarantining, "aborting"),
    "rewind": scenario(rewinding, "rewinding"),
    "handoff": scenario(handing_off, "handing-off"),
    "pipeline": scenario(pipeline, "pipe"),
    "pipeline with a failing stage": scenario(failing_pipeline, "pipe-bad"),
}
