"""A job to its end: by the worker that is there, or by one in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from holdfast import Engine, JobState, Worker
from holdfast_images.app import Images
from holdfast_images.errors import ImageError, Interrupted

LOOK_EVERY = 0.25
"""Seconds between two looks at the progress. The end of a job is noticed at once."""
CONCURRENCY = 1
"""One job at a time: what others have submitted is for their own commands to run."""
STOP_GRACE = 10.0
ALONE = "deactivate-snapshot"
"""This flow waits for no other, so its embedded worker runs nothing else, and no other embedded worker runs it."""


def run_to_end(
    images: Images,
    job_id: str,
    *,
    look: Callable[[], None] = lambda: None,
    is_stopped: Callable[[], bool] = lambda: False,
    stop_descriptor: int | None = None,
) -> None:
    """Return when the job has ended, whatever way. Raises Interrupted when `is_stopped` says so.

    A worker that runs everything, that is `holdfast worker`, is left to its work; without one, or when it is gone,
    a worker in this process does it. `look` is called now and then.
    Crash: another call, or a worker, goes on where this one was.
    """
    store = images.engine.store
    listener = store.listen()
    if stop_descriptor is not None:
        listener.watch({stop_descriptor})
    try:
        with ExitStack() as embedded:
            worker: Worker | None = None
            while (job := store.job(job_id)).state in (JobState.PENDING, JobState.RUNNING):
                if is_stopped():
                    raise Interrupted(f"interrupted; job {job_id} is not finished", hint="the same command goes on")
                if worker is None and not has_daemon(images):
                    engine = _engine(images, job.flow)
                    worker = embedded.enter_context(engine.worker(concurrency=CONCURRENCY, stop_grace=STOP_GRACE))
                if worker is not None and worker.failure is not None:
                    raise ImageError(
                        f"the worker cannot go on: {worker.failure}",
                        hint=f"see what happened: holdfast job show {job_id}",
                    )
                look()
                listener.wait(LOOK_EVERY)
            look()
    finally:
        listener.close()


def has_daemon(images: Images) -> bool:
    """Is there a live worker that runs every flow? One that some command has embedded leaves some out."""
    return any(set(images.flows) <= set(worker.flows) for worker in images.engine.live_workers())


def _engine(images: Images, flow: str) -> Engine:
    images.set_queue_limits()
    alone = images.shop.flow_name(ALONE)
    flows = [each for name, each in images.flows.items() if (name == alone) is (flow == alone)]
    return Engine(images.engine.store, flows, actor=images.engine.actor)
