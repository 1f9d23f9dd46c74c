"""Kill a worker in the middle of a job, start another, and look at what is left.

    make demo-engine

Works in a temporary directory, needs neither network nor root, takes a few seconds, and fails if a promise does. With a
directory (`python examples/quickstart.py DIRECTORY`) what it does stays there, and a second run finds it done.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import msgspec

from holdfast import Engine, Flow, JobState, Run, Transaction
from holdfast.guard import check

PROCESSES = multiprocessing.get_context("spawn")
JOBS = 200


# --- The flow: three steps that make files, and a commit step that writes into a table ---


class Report(msgspec.Struct):
    """The request: what to publish, and where to work."""

    title: str
    directory: str
    pause: float = 0.0


class Published(msgspec.Struct):
    """The response, which grows with each step and is saved with it."""

    files: list[str] = []


def make_file(run: Run[Report, Published]) -> None:
    """The name is the same on every try and appears only when the file is whole: doing it twice is doing it once."""
    tell(run, "entered again, after a crash" if run.interrupted else "entered")
    target = Path(run.request.directory) / f"{run.request.title}.{run.step}"
    partial = target.with_suffix(f".{run.step}-partial")
    partial.write_text("half ")
    time.sleep(run.request.pause)
    partial.write_text("half and half")
    partial.replace(target)
    run.response.files.append(target.name)
    tell(run, "finished")


def publish(run: Run[Report, Published], tx: Transaction) -> None:
    """This row and the commit of the job are one transaction: both are there, or neither."""
    tx.execute("CREATE TABLE IF NOT EXISTS published (title TEXT, files INTEGER)")
    tx.execute("INSERT INTO published VALUES (?, ?)", (run.request.title, len(run.response.files)))


flow = (
    # In the second part one job may be unlucky many times: the limit that stops crash loops must not bite.
    # A report is published once: whoever submits it again gets the job that did it.
    Flow("publish-report", request=Report, response=Published, unique="forever", crash_limit=1000)
    .start("collect", make_file)
    .to("render", make_file)
    .to("bundle", make_file)
    .commit("publish", publish)
)


# --- Workers: child processes that are killed ---


def work(state: str) -> None:
    """The life of a child process: run jobs until killed."""
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # who took over what is in the journal, too
    with Engine.open(state, flows=[flow]) as engine, engine.worker(concurrency=8):
        threading.Event().wait()


@contextmanager
def worker(state: Path) -> Iterator[int]:
    """A worker in a process of its own, killed with SIGKILL at the end of the block."""
    process = PROCESSES.Process(target=work, args=(str(state),))
    process.start()
    try:
        yield process.pid or 0
    finally:
        process.kill()
        process.join()


# --- One job, told step by step ---


def one_job(engine: Engine, directory: Path, state: Path) -> None:
    submitted = engine.submit_or_find(flow, Report("q1", str(directory), pause=0.4), key="q1")
    job_id = submitted.job_id
    if submitted.created:
        say(f"Job {job_id}: collect, render, bundle, publish. A worker takes it.")
        with worker(state) as pid:
            wait_for(directory / "q1.bundle-partial")
            say(f"    pid {pid}  SIGKILL, in the middle of bundle")
        say(f"\nexplain, before anybody has noticed: {engine.explain(job_id).sentence}\n\nAnother worker is started.")
    else:
        say(f"Job {job_id} has done it in an earlier run.")
    with worker(state):
        response = engine.result(flow, job_id, timeout=30)

    say(f"\nThe response:        {', '.join(response.files)}")
    say(f"Files:               {', '.join(sorted(path.name for path in directory.glob('q1.*')))}")
    mine = [title for title in rows(state) if title == "q1"]
    say(f"Rows in its table:   {mine}")
    say("\nThe journal, written with each change and chained by hash:")
    for entry in engine.store.journal(job_id):
        who = entry.actor if entry.actor == "client" else f"pid {entry.actor.split(':')[1]}"
        execution = f"{entry.exec_from or '-'} -> {entry.exec_to}" if entry.exec_to else ""
        job = f"{entry.job_from or '-':>7} -> {entry.job_to}"
        say(f"    {entry.seq}  {who:<9}  {job:<20}  {execution:<24}  {entry.reason}")
    say(f"\nexplain: {engine.explain(job_id).sentence}")
    require(mine == ["q1"], "one row for the job")
    require(response.files == ["q1.collect", "q1.render", "q1.bundle"], "each step counted once")


# --- Many jobs, and workers that do not live long ---


def many_jobs(engine: Engine, directory: Path, state: Path) -> None:
    say(f"\n{JOBS} more jobs. Every worker is killed as soon as it has finished a few.")
    requests = [Report(f"r{number}", str(directory), pause=0.005) for number in range(JOBS)]
    engine.submit_many([engine.prepare(flow, request, key=request.title) for request in requests])
    kills = 0
    while (left := unfinished(engine)) > 0:
        goal = max(0, left - JOBS // 6)
        with worker(state):
            while unfinished(engine) > goal:
                time.sleep(0.005)
        kills += 1
    found = rows(state)
    reasons = [entry.reason for entry in engine.store.journal()]
    say(f"    workers killed {kills}")
    say(f"    taken over before the commit: {sum('did not finish' in reason for reason in reasons)}")
    say(f"    taken over between commit and end: {sum(reason.startswith('finished for') for reason in reasons)}")
    say(f"    rows {len(found)}, lost {JOBS + 1 - len(set(found))}, doubled {len(found) - len(set(found))}")
    require(sorted(found) == sorted(["q1", *(request.title for request in requests)]), "one row for each job")
    findings = check(engine.store, deep=True)
    say(f"    findings of a full check: {len(findings)}")
    require(not findings, "every invariant holds")


def main() -> None:
    lasting = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else tempfile.TemporaryDirectory(prefix="holdfast-demo-")
    with lasting as name:
        directory, state = Path(name), Path(name) / "state"
        with Engine.open(state, flows=[flow]) as engine:
            one_job(engine, directory, state)
            many_jobs(engine, directory, state)
    say("\nNothing is missing, and nothing is there twice.")


# --- Telling ---


def say(text: str) -> None:
    print(text, flush=True)


def tell(run: Run[Report, Published], what: str) -> None:
    if run.request.title == "q1":
        say(f"    pid {os.getpid()}  {run.step:<8} {what}")


def rows(state: Path) -> list[str]:
    """The titles in the table, read past the engine."""
    with closing(sqlite3.connect(state / "holdfast.db")) as database:
        return [title for (title,) in database.execute("SELECT title FROM published ORDER BY title")]


def unfinished(engine: Engine) -> int:
    counts = engine.store.counts()
    return sum(counts.get((flow.name, state), 0) for state in (JobState.PENDING, JobState.RUNNING))


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def require(kept: bool, promise: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not kept:
        sys.exit(f"broken promise: {promise}")


if __name__ == "__main__":
    main()
