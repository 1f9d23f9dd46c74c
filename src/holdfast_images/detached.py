"""What takes long, left to a worker: each method checks what is asked and answers with the id of its job."""

from __future__ import annotations

from holdfast_images.catalog.tables import Snapshot
from holdfast_images.errors import UnknownImage
from holdfast_images.flows.schemas import PROCESS, ActivateRequest, DeactivateRequest, RemoveRequest
from holdfast_images.host import LocalHost
from holdfast_images.jobs import UNFINISHED, ImageJobs
from holdfast_images.messages import (
    CreatedSnapshot,
    DeactivatedSnapshot,
    ImageReport,
    Processed,
    RemovedImage,
    StageProgress,
)
from holdfast_images.model import valid_snapshot_name


class DetachedJobs:
    """Jobs about the images of this host. An equal one that is not finished yet is the same job.

    Crash: once a method has returned, its job will run, as soon as a worker does.
    """

    def __init__(self, host: LocalHost, jobs: ImageJobs) -> None:
        self._host = host
        self._jobs = jobs

    def snapshot(self, image_id: str, name: str) -> str:
        """One more snapshot of an image. UnknownImage if it is not known, or not unpacked."""
        self._refuse_unknown(image_id)
        unpacked = self._host.catalog.get_unpacked_image_by_id(image_id)
        if unpacked is None:
            raise UnknownImage(f"image {image_id} is not unpacked", hint="process it first: holdfast process-image")
        return self._jobs.submit_activation(
            ActivateRequest(
                image_id=image_id,
                device_id=unpacked.device_id,
                device_name=unpacked.device_name,
                snapshot_name=valid_snapshot_name(name),
            )
        )

    def activate(self, name: str) -> str:
        """A snapshot brought back into use. UnknownImage if there is none of this name."""
        return self.reactivate(self._snapshot(name))

    def reactivate(self, row: Snapshot) -> str:
        """The same, of a snapshot that was looked up."""
        unpacked = self._host.catalog.get_unpacked_image_by_id(row.image_id)
        return self._jobs.submit_activation(
            ActivateRequest(
                image_id=row.image_id,
                device_id=row.origin_device_id,
                device_name=unpacked.device_name if unpacked else "",
                snapshot_name=row.snapshot_name,
            )
        )

    def deactivate(self, name: str, *, delete: bool = False) -> str:
        """A snapshot taken out of use; with `delete`, removed. UnknownImage if there is none of this name."""
        request = DeactivateRequest(snapshot_name=valid_snapshot_name(name), delete=delete)
        self._snapshot(name)
        return self._jobs.submit("deactivate-snapshot", request, key=f"{name}/{'delete' if delete else 'keep'}")

    def remove(self, image_id: str, *, force: bool = False) -> str:
        """An image removed, with `force` its snapshots as well. UnknownImage if there is none."""
        self._refuse_unknown(image_id)
        key = f"{image_id}/{'force' if force else 'careful'}"
        return self._jobs.submit("remove-image", RemoveRequest(image_id=image_id, force=force), key=key)

    # --- what came of them, when they have ended; what ended one badly is raised as it was in the job ---

    def processed(self, job_id: str) -> Processed:
        """Of an image that was submitted."""
        return self._jobs.run_image(job_id)

    def created(self, job_id: str) -> CreatedSnapshot:
        """Of `snapshot` and `activate`."""
        return self._jobs.run_activation(job_id, None, None)

    def deactivated(self, job_id: str) -> DeactivatedSnapshot:
        """Of `deactivate`."""
        return self._jobs.response(job_id, DeactivatedSnapshot)

    def removed(self, job_id: str) -> RemovedImage:
        """Of `remove`."""
        return self._jobs.response(job_id, RemovedImage)

    def has_ended(self, job_id: str) -> bool:
        """Will it not go on by itself?"""
        return self._jobs.state_of(job_id) not in UNFINISHED

    def stages(self, report: ImageReport) -> list[StageProgress]:
        """How far the stages of the last job are that processes an image; none if none did."""
        process = self._host.flow_name(PROCESS)
        last = next((job for job in report.jobs if job.flow == process), None)
        return self._jobs.progress(last.job_id) if last is not None else []

    def image_of(self, name: str) -> str:
        """Whose snapshot it is. UnknownImage if there is none of this name."""
        return self._snapshot(name).image_id

    def has_worker(self) -> bool:
        """Is a worker there that runs them?"""
        return self._jobs.has_worker()

    def _refuse_unknown(self, image_id: str) -> None:
        if self._host.catalog.get_image_by_id(image_id) is None:
            raise self._host.missing_image(image_id)

    def _snapshot(self, name: str) -> Snapshot:
        row = self._host.catalog.get_snapshot_by_name(name)
        if row is None:
            raise self._host.missing_snapshot(name)
        return row
