"""The jobs about images: submitted, brought to their end by whoever is there to run them, and looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import msgspec

from holdfast import Engine, HoldfastError, JobState, PipelineResponse, Worker
from holdfast.errors import JobFailed, NotFound
from holdfast_images.catalog.tables import HostClaim, Snapshot
from holdfast_images.errors import CatalogUnavailable, ImageBusy, ImageError, Interrupted, NoThreads, error_from
from holdfast_images.flows.lookup import ExistingImage
from holdfast_images.flows.process import queue_limits
from holdfast_images.flows.schemas import PROCESS, ActivateRequest, ActivateResponse, ProcessRequest, key_of
from holdfast_images.host import LocalHost
from holdfast_images.messages import (
    ActivatedSnapshot,
    CreatedSnapshot,
    ImageEvent,
    ImageJob,
    JobStep,
    OnProgress,
    Processed,
    Stage,
    StageProgress,
    StopSource,
    processed_of,
)

Response = TypeVar("Response")

LOOK_EVERY = 0.25
"""Seconds between two looks at the progress. The end of a job is noticed at once."""
MOST_AT_ONCE = 5
"""A worker in this process runs as many jobs as were asked for here: what others have submitted is for their own
commands to run."""
UNFINISHED = (JobState.PENDING, JobState.RUNNING)
ENDED_BADLY = (JobState.FAILED, JobState.QUARANTINED)
STOP_GRACE = 10.0
RECORD_PATIENCE = 60.0
"""Seconds that the worker in this process may be unwell, because nothing can be recorded say, before waiting ends."""
SOON = 30.0
"""Seconds for the end of a job to be read that has ended."""
ALONE = "deactivate-snapshot"
"""This flow waits for no other, so its embedded worker runs nothing else, and no other embedded worker runs it."""
MOST_JOBS = 10
LOOKED_AT = 1000
"""Jobs of a flow, the newest, among which those of an image are looked for."""


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What a step says of its progress."""

    step: str = ""
    done: float = 0.0
    total: float | None = None
    note: str = ""


class ImageJobs:
    """The engine of one place, as far as images are concerned. Its flows are registered."""

    def __init__(self, engine: Engine, host: LocalHost) -> None:
        self.engine = engine
        self._host = host

    def submit(self, flow: str, request: msgspec.Struct, *, key: str) -> str:
        """Add a job of a flow, by its plain name; an equal one that is not finished yet is the same job.

        Crash: once this has returned, the job will run.
        """
        return self.engine.submit(self._host.flow_name(flow), request, key=key)

    def submit_image(self, request: ProcessRequest) -> str:
        """Have an image processed."""
        return self.submit(PROCESS, request, key=key_of(request))

    def has_worker(self) -> bool:
        """Is there a live worker that runs every flow? One that some call has embedded leaves some out."""
        return any(set(self.engine.flows) <= set(worker.flows) for worker in self.engine.live_workers())

    def refuse_live_worker(self) -> None:
        """Raise ImageBusy if, on a store that hosts share, a worker of this host is live."""
        host = self._host.host
        flows = {name for worker in self.engine.live_workers() for name in worker.flows}
        if host and any(name.endswith(f".{host}") for name in flows):
            raise ImageBusy(
                f"a worker of host {host} is live, or was within the last 90 seconds",
                hint="stop it, and wait until it is known to be gone: holdfast stats",
            )

    # --- to their end ---

    def finish(
        self,
        *job_ids: str,
        look: Callable[[], None] = lambda: None,
        stop: StopSource | None = None,
    ) -> None:
        """Return when the jobs, of one flow, have ended, whatever way. Raises Interrupted when `stop` says so.

        A worker that runs everything, that is `holdfast worker`, is left to its work; without one, or when it is gone,
        a worker in this process does it. `look` is called now and then.
        CatalogUnavailable if nothing can be recorded, on a full disk say: nothing waits for ever.
        Crash: another call, or a worker, goes on where this one was.
        """
        store = self.engine.store
        well_at = time.monotonic()
        listener = store.listen()
        if stop is not None:
            listener.watch({stop.descriptor})
        try:
            with ExitStack() as embedded:
                worker: Worker | None = None
                while left := [job for job in map(store.job, job_ids) if job.state in UNFINISHED]:
                    job_id = left[0].job_id
                    if stop is not None and stop.received is not None:
                        raise Interrupted(f"interrupted; job {job_id} is not finished", hint="the same command goes on")
                    if worker is None and not self.has_worker():
                        concurrency = min(len(job_ids), MOST_AT_ONCE)
                        worker = embedded.enter_context(_started(self._runner(left[0].flow), concurrency))
                    if worker is not None and worker.failure is not None:
                        raise ImageError(
                            f"the worker cannot go on: {worker.failure}",
                            hint=f"see what happened: holdfast job show {job_id}",
                        )
                    if worker is None or not (problems := worker.problems()):
                        well_at = time.monotonic()
                    elif time.monotonic() - well_at > RECORD_PATIENCE:
                        raise self._unrecordable(problems)
                    look()
                    listener.wait(LOOK_EVERY)
                look()
        finally:
            listener.close()

    def run(
        self,
        job_id: str,
        kind: type[Response],
        *,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        stop: StopSource | None = None,
    ) -> Response:
        """The response of the job when it has ended; raises what ended it otherwise.

        `name`: what to call a job that has no stages.
        """

        def look() -> None:
            if on_progress is not None:
                on_progress(self.progress(job_id, name))

        self.finish(job_id, look=look, stop=stop)
        return self.response(job_id, kind)

    def response(self, job_id: str, kind: type[Response]) -> Response:
        """The response of a job that has ended; raises what ended it otherwise."""
        result = self.engine.wait(job_id, timeout=SOON)
        if result.state is not JobState.SUCCEEDED:
            raise self.error_of(job_id)
        return msgspec.json.decode(result.response or "null", type=kind)

    def submit_activation(self, request: ActivateRequest) -> str:
        """Have a snapshot made, or found."""
        return self.submit("activate-image", request, key=f"{request.image_id}/{request.snapshot_name}")

    def run_activation(self, job_id: str, on_progress: OnProgress | None, stop: StopSource | None) -> CreatedSnapshot:
        """The snapshot that such a job has made or found, when it has ended."""
        asked = msgspec.json.decode(self.engine.store.request(job_id), type=ActivateRequest)
        name = f"snapshot {asked.snapshot_name}"
        made = self.run(job_id, ActivateResponse, name=name, on_progress=on_progress, stop=stop)
        return CreatedSnapshot(
            image_id=asked.image_id,
            snapshot_id=made.snapshot_id,
            snapshot_name=made.snapshot_name,
            snapshot_path=made.device_path,
            created=made.activated,
        )

    def reactivated(
        self,
        row: Snapshot,
        submit: Callable[[Snapshot], str],
        on_progress: OnProgress | None,
        stop: StopSource | None,
    ) -> ActivatedSnapshot:
        """A snapshot that is in use again, or why it is not: one that is not stops none of the others."""
        answer = ActivatedSnapshot(image_id=row.image_id, snapshot_name=row.snapshot_name)
        try:
            made = self.run_activation(submit(row), on_progress, stop)
        except Interrupted:
            raise
        except HoldfastError as error:
            return msgspec.structs.replace(answer, error=error)
        return msgspec.structs.replace(answer, snapshot_path=made.snapshot_path)

    def run_image(
        self, job_id: str, *, on_progress: OnProgress | None = None, stop: StopSource | None = None
    ) -> Processed:
        """What the three stages of a job have answered when it has ended; raises what ended it otherwise."""
        response = self.run(job_id, PipelineResponse, on_progress=on_progress, stop=stop)
        answers = {name: stage.response for name, stage in response.stages.items()}
        stages = {
            name: Stage(job_id=one.job_id, state=one.state, outcome=one.outcome, seconds=one.seconds)
            for name, one in response.stages.items()
        }
        request = msgspec.json.decode(self.engine.store.request(job_id), type=ProcessRequest)
        return processed_of(request, msgspec.convert(answers, ExistingImage), stages)

    def error_of(self, job_id: str) -> HoldfastError:
        """The error that ended a job, or the stage of it that failed, as it was raised."""
        children = self.engine.store.children(job_id)
        # Only what has ended tells how: a stage that others have asked for, too, may go on for them.
        failed = next((child.job_id for child in children if child.state in ENDED_BADLY), job_id)
        result = self.engine.wait(failed, timeout=SOON)
        error = error_from(result.error, failed) if result.error is not None else None
        return error or JobFailed(failed, result.state, result.reason, result.error)

    def _runner(self, flow: str) -> Engine:
        """The engine with the flows that a worker embedded for a job of this flow runs, and the queues limited."""
        store = self.engine.store
        known = {queue.name for queue in store.queues() if queue.max_running is not None or queue.limit_by}
        for name, limit in queue_limits(self._host).items():
            if name not in known:
                self.engine.queue(name, limit=limit)
        alone = self._host.flow_name(ALONE)
        flows = [each for name, each in self.engine.flows.items() if (name == alone) is (flow == alone)]
        return Engine(store, flows, actor=self.engine.actor)

    def _unrecordable(self, problems: Sequence[str]) -> CatalogUnavailable:
        """Why the worker is not well, in the words of the database if it has any."""
        hint = "see to the disk, or to the server; then the same command goes on"
        try:
            if not self._host.host:
                # In a file that one host has, nobody reads this row: can it be written?
                self._host.catalog.adopt_host(HostClaim(host="", machine="", data_id="", directory=""))
        except CatalogUnavailable as error:
            return CatalogUnavailable(f"nothing can be recorded: {error}", hint=hint)
        return CatalogUnavailable(f"nothing can be recorded: {'; '.join(problems)}", hint=hint)

    # --- looked at ---

    def progress(self, job_id: str, name: str | None = None) -> list[StageProgress]:
        """The stages of a job that have begun, in order; a job with a name has no stages and is its own."""
        children = self.engine.store.children(job_id) if name is None else ()
        stages = [(name, job_id)] if name is not None else [(child.name, child.job_id) for child in children]
        return [self._progress(stage, each) for stage, each in stages]

    def _progress(self, name: str, job_id: str) -> StageProgress:
        store = self.engine.store
        state = store.job(job_id).state
        executions = store.executions(job_id)
        if not executions:
            return StageProgress(stage=name, state=state, job_id=job_id, has_begun=False)
        latest = executions[-1]
        said = msgspec.json.decode(latest.progress, type=Reported) if latest.progress else Reported()
        return StageProgress(
            stage=name,
            state=state,
            job_id=job_id,
            outcome=latest.code,
            seconds=max(0, (latest.finished_at or 0) - executions[0].started_at) / 1000,
            step=said.step,
            done=said.done,
            total=said.total,
            note=said.note,
            setback=latest.error or "" if latest.retry_at is not None else "",
            pause=max(0, (latest.retry_at or 0) - store.now()) / 1000,
        )

    def of_image(self, image_id: str) -> list[ImageJob]:
        """The last jobs of an image, the newest first, and the current step of those that run."""
        store = self.engine.store
        jobs = [job for name in self.engine.flows for job in store.jobs(flow=name, limit=LOOKED_AT)]
        own = [job for job in jobs if (job.key or "").startswith(f"{image_id}/")]
        own.sort(key=lambda job: job.created_at, reverse=True)
        shown = own[:MOST_JOBS]
        current = {one.job_id: one for one in store.running([job.job_id for job in shown])}
        return [
            ImageJob(
                job_id=job.job_id,
                flow=job.flow,
                state=job.state,
                created_at=job.created_at,
                current=msgspec.convert(current[job.job_id], JobStep, from_attributes=True)
                if job.job_id in current
                else None,
            )
            for job in shown
        ]

    def image_of_key(self, s3_key: str) -> str | None:
        """The image that an unfinished job makes of this object; None if there is no such job."""
        store = self.engine.store
        for job in store.jobs(flow=self._host.flow_name(PROCESS), states=UNFINISHED, limit=LOOKED_AT):
            request = msgspec.json.decode(store.request(job.job_id))
            if request.get("s3_key") == s3_key:
                return str(request["image_id"])
        return None

    def state_of(self, job_id: str) -> JobState | None:
        """None of a job that is not known any more."""
        try:
            return self.engine.store.job(job_id).state
        except NotFound:
            return None

    def events(self, image_id: str | None, entries: Iterator[Any]) -> Iterator[ImageEvent]:
        """Those of these entries of the journal that are about an image, or about any."""
        subjects: dict[str, tuple[str, str] | None] = {}
        for entry in entries:
            if entry.job_id not in subjects:
                subjects[entry.job_id] = self._subject(entry.job_id)
            subject = subjects[entry.job_id]
            if subject is None or image_id not in (None, subject[1]):
                continue
            fields = {name: getattr(entry, name) for name in ImageEvent.__struct_fields__ if hasattr(entry, name)}
            yield ImageEvent(**{**fields, "flow": subject[0], "image_id": subject[1]})

    def _subject(self, job_id: str) -> tuple[str, str] | None:
        """The flow and the image of a job; None if it is not about images, or not known any more."""
        try:
            flow = self.engine.store.job(job_id).flow
            if flow not in self.engine.flows:
                return None
            return flow, str(msgspec.json.decode(self.engine.store.request(job_id)).get("image_id", ""))
        except NotFound:
            return None


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
