"""A job to its end: by the worker that is there, or by one in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from holdfast import Engine, JobState, Worker
from holdfast_images.app import Images
from holdfast_images.catalog.rows import HostClaim
from holdfast_images.errors import CatalogUnavailable, ImageError, Interrupted, NoThreads

LOOK_EVERY = 0.25
"""Seconds between two looks at the progress. The end of a job is noticed at once."""
MOST_AT_ONCE = 5
"""A worker in this process runs as many jobs as were asked for here: what others have submitted is for their own
commands to run."""
UNFINISHED = (JobState.PENDING, JobState.RUNNING)
STOP_GRACE = 10.0
RECORD_PATIENCE = 60.0
"""Seconds that the worker in this process may be unwell, because nothing can be recorded say, before waiting ends."""
ALONE = "deactivate-snapshot"
"""This flow waits for no other, so its embedded worker runs nothing else, and no other embedded worker runs it."""


def run_to_end(
    images: Images,
    *job_ids: str,
    look: Callable[[], None] = lambda: None,
    is_stopped: Callable[[], bool] = lambda: False,
    stop_descriptor: int | None = None,
) -> None:
    """Return when the jobs, of one flow, have ended, whatever way. Raises Interrupted when `is_stopped` says so.

    A worker that runs everything, that is `holdfast worker`, is left to its work; without one, or when it is gone,
    a worker in this process does it. `look` is called now and then.
    CatalogUnavailable if nothing can be recorded, on a full disk say: nothing waits for ever.
    Crash: another call, or a worker, goes on where this one was.
    """
    store = images.engine.store
    well_at = time.monotonic()
    listener = store.listen()
    if stop_descriptor is not None:
        listener.watch({stop_descriptor})
    try:
        with ExitStack() as embedded:
            worker: Worker | None = None
            while left := [job for job in map(store.job, job_ids) if job.state in UNFINISHED]:
                job_id = left[0].job_id
                if is_stopped():
                    raise Interrupted(f"interrupted; job {job_id} is not finished", hint="the same command goes on")
                if worker is None and not has_daemon(images):
                    concurrency = min(len(job_ids), MOST_AT_ONCE)
                    worker = embedded.enter_context(_started(_engine(images, left[0].flow), concurrency))
                if worker is not None and worker.failure is not None:
                    raise ImageError(
                        f"the worker cannot go on: {worker.failure}",
                        hint=f"see what happened: holdfast job show {job_id}",
                    )
                if worker is None or not (problems := worker.problems()):
                    well_at = time.monotonic()
                elif time.monotonic() - well_at > RECORD_PATIENCE:
                    raise _unrecordable(images, problems)
                look()
                listener.wait(LOOK_EVERY)
            look()
    finally:
        listener.close()


@contextmanager
def _started(engine: Engine, concurrency: int) -> Iterator[Worker]:
    """A worker in this process, stopped at the end."""
    with ExitStack() as stack:
        try:
            worker = stack.enter_context(engine.worker(concurrency=concurrency, stop_grace=STOP_GRACE))
        except RuntimeError as error:
            if "thread" not in str(error):
                raise
            raise NoThreads(
                "the threads of a worker cannot start: a limit of processes is reached"
                " (ulimit -u, TasksMax of systemd, pids.max)",
                hint="raise the limit, or let less run at once; the same command goes on",
            ) from error
        yield worker


def _unrecordable(images: Images, problems: Sequence[str]) -> CatalogUnavailable:
    """Why the worker is not well, in the words of the database if it has any."""
    hint = "see to the disk, or to the server; then the same command goes on"
    try:
        if not images.shop.host:
            # In a file that one host has, nobody reads this row: can it be written?
            images.catalog.adopt_host(HostClaim(host="", machine="", data_id="", directory=""))
    except CatalogUnavailable as error:
        return CatalogUnavailable(f"nothing can be recorded: {error}", hint=hint)
    return CatalogUnavailable(f"nothing can be recorded: {'; '.join(problems)}", hint=hint)


def has_daemon(images: Images) -> bool:
    """Is there a live worker that runs every flow? One that some command has embedded leaves some out."""
    return any(set(images.flows) <= set(worker.flows) for worker in images.engine.live_workers())


def _engine(images: Images, flow: str) -> Engine:
    images.set_queue_limits()
    alone = images.shop.flow_name(ALONE)
    flows = [each for name, each in images.flows.items() if (name == alone) is (flow == alone)]
    return Engine(images.engine.store, flows, actor=images.engine.actor)
