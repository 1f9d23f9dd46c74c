"""Routes of images and snapshots: looked at, processed, snapshot, taken out of use, removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.web import Call, Reply, Route, Scope
from holdfast.web.conditions import LONGEST_WAIT, link_headers, wait_preferred
from holdfast.web.job_waits import JobWaits
from holdfast_images.errors import UnknownImage
from holdfast_images.fleet import ImagePage, SnapshotPage
from holdfast_images.manager import ImageManager
from holdfast_images.web.access import ImageAccess, image_of, snapshot_of
from holdfast_images.web.answers import (
    Begun,
    DeactivationBegun,
    ImageDetail,
    ImageQuery,
    ProcessBegun,
    ProcessBody,
    RemovalBegun,
    RemoveQuery,
    SnapshotBegun,
    SnapshotBody,
    SnapshotQuery,
    image_detail,
)

TAG = "images"
Handler = Callable[[Call], Any]
LEFT_TO_A_WORKER = (
    "A worker does it: the answer names the job, and Location leads to it. An equal request that is not finished yet is"
    f" the same job. With Prefer: wait=30 the answer is 200 once it is done, for {LONGEST_WAIT:.0f} seconds at most;"
    " what ended it badly is the problem."
)


class ImageRoutes:
    """The handlers: each a method of the manager, for whoever asks."""

    def __init__(self, access: ImageAccess) -> None:
        self._access = access

    # --- looking ---

    def list(self, call: Call) -> Reply:
        """Images of all hosts."""
        query: ImageQuery = call.query
        page = self._access.images(call).fleet.images(
            host=query.host, status=query.status, text=query.text, cursor=query.after, limit=query.limit
        )
        return Reply(body=page, headers=link_headers(call, next=page.next))

    def list_snapshots(self, call: Call) -> Reply:
        """Snapshots of all hosts."""
        query: SnapshotQuery = call.query
        page = self._access.images(call).fleet.snapshots(
            host=query.host, image_id=query.image_id, active=query.active, cursor=query.after, limit=query.limit
        )
        return Reply(body=page, headers=link_headers(call, next=page.next))

    def one(self, call: Call) -> Reply:
        """All of one image."""
        return Reply(body=self.detail(self._access.images(call), image_of(call)))

    @staticmethod
    def detail(images: ImageManager, image_id: str) -> ImageDetail:
        """What this host knows of it, and where else it is; UnknownImage if nobody has it."""
        hosts = images.fleet.image(image_id)
        try:
            report = images.status(image_id)
        except UnknownImage:
            if not hosts:
                raise
            return ImageDetail(image_id=image_id, hosts=hosts)
        return image_detail(report, images.detached.stages(report), hosts)

    # --- left to a worker ---

    async def process(self, call: Call) -> Reply:
        """An image to be fetched, checked, unpacked and snapshot; one that is there is found."""
        return await self._begin(call, lambda: self._process(call), lambda jobs: jobs.processed)

    def _process(self, call: Call) -> Begun:
        images, body = self._access.images(call), call.body
        request = images.request(
            body.source,
            key=body.key,
            image_id=body.image_id,
            snapshot_name=body.snapshot_name,
            sha256=body.sha256,
            verify=body.verify,
            refresh=body.refresh,
        )
        self._access.refuse_source(call.principal, request.location)
        found = images.find(request)
        if found is not None:
            return ProcessBegun(job_id=None, image_id=request.image_id, done=found)
        submission = images.submit(request)
        [job] = submission.jobs
        return ProcessBegun(job_id=job.job_id, image_id=job.image_id, has_worker=submission.has_worker)

    async def snapshot(self, call: Call) -> Reply:
        """One more snapshot of an image."""

        def begin() -> Begun:
            images, image_id = self._access.images(call), image_of(call)
            images.prepare()
            jobs = images.detached
            job_id = jobs.snapshot(image_id, call.body.name)
            return SnapshotBegun(job_id=job_id, image_id=image_id, has_worker=jobs.has_worker())

        return await self._begin(call, begin, lambda jobs: jobs.created)

    async def activate(self, call: Call) -> Reply:
        """A snapshot brought back into use."""
        return await self._of_snapshot(call, SnapshotBegun, "activate", "created")

    async def deactivate(self, call: Call) -> Reply:
        """A snapshot taken out of use; what was written to it stays."""
        return await self._of_snapshot(call, DeactivationBegun, "deactivate", "deactivated")

    async def delete_snapshot(self, call: Call) -> Reply:
        """A snapshot removed, with what was written to it."""
        return await self._of_snapshot(call, DeactivationBegun, "deactivate", "deactivated", delete=True)

    async def _of_snapshot(self, call: Call, kind: type[Begun], begin_by: str, ended_by: str, **options: bool) -> Reply:
        def begin() -> Begun:
            images, name = self._access.images(call), snapshot_of(call)
            images.prepare()
            jobs = images.detached
            job_id = getattr(jobs, begin_by)(name, **options)
            return kind(job_id=job_id, image_id=jobs.image_of(name), has_worker=jobs.has_worker())

        return await self._begin(call, begin, lambda jobs: getattr(jobs, ended_by))

    async def remove(self, call: Call) -> Reply:
        """An image removed."""

        def begin() -> Begun:
            images, image_id = self._access.images(call), image_of(call)
            images.prepare()
            jobs = images.detached
            job_id = jobs.remove(image_id, force=call.query.force)
            return RemovalBegun(job_id=job_id, image_id=image_id, has_worker=jobs.has_worker())

        return await self._begin(call, begin, lambda jobs: jobs.removed)

    async def _begin(
        self,
        call: Call,
        begin: Callable[[], Begun],
        ended: Callable[[Any], Callable[[str], Any]],
    ) -> Reply:
        """The job is submitted, and waited for if that is preferred; only what has ended is asked how."""
        begun = await call.in_thread(begin)
        if begun.job_id is None:
            return Reply(status=200, body=begun)
        headers = {"Location": call.link(f"/v1/jobs/{begun.job_id}")}
        seconds = wait_preferred(call.headers)
        job_id = begun.job_id
        if seconds and await call.service(JobWaits).until_ended(job_id, seconds):
            headers["Preference-Applied"] = f"wait={seconds:.0f}"
            done = await call.in_thread(lambda: self._done(call, job_id, ended))
            if done is not None:
                return Reply(status=200, body=msgspec.structs.replace(begun, done=done), headers=headers)
        return Reply(body=begun, headers={**headers, "Retry-After": "1"})

    def _done(self, call: Call, job_id: str, ended: Callable[[Any], Callable[[str], Any]]) -> Any:
        jobs = self._access.images(call).detached
        return ended(jobs)(job_id) if jobs.has_ended(job_id) else None

    # --- the table ---

    def table(self) -> Sequence[Route]:
        """The routes."""
        return (*self._looking(), *self._of_images(), *self._of_snapshots())

    def _looking(self) -> Sequence[Route]:
        return (
            _look(
                "/v1/images",
                "listImages",
                "A page of the images of all hosts, newest first, with how far each is.",
                self.list,
                ImagePage,
                query=ImageQuery,
                gives=("Link",),
            ),
            _look(
                "/v1/images/{image_id}",
                "getImage",
                "All of one image: file, device, snapshots, stages with step and bytes, hosts.",
                self.one,
                ImageDetail,
            ),
            _look(
                "/v1/snapshots",
                "listSnapshots",
                "A page of the snapshots of all hosts, newest first.",
                self.list_snapshots,
                SnapshotPage,
                query=SnapshotQuery,
                gives=("Link",),
            ),
        )

    def _of_images(self) -> Sequence[Route]:
        return (
            _begun(
                "POST",
                "/v1/images",
                "processImage",
                "Fetch, check, unpack and snapshot an image.",
                self.process,
                ProcessBegun,
                Scope.SUBMIT,
                body=ProcessBody,
            ),
            _begun(
                "DELETE",
                "/v1/images/{image_id}",
                "removeImage",
                "Remove an image of this host: its device and its file.",
                self.remove,
                RemovalBegun,
                query=RemoveQuery,
            ),
            _begun(
                "POST",
                "/v1/images/{image_id}/snapshots",
                "createSnapshot",
                "Make one more snapshot of an image of this host.",
                self.snapshot,
                SnapshotBegun,
                Scope.SUBMIT,
                body=SnapshotBody,
            ),
        )

    def _of_snapshots(self) -> Sequence[Route]:
        return (
            _begun(
                "POST",
                "/v1/snapshots/{snapshot}/activate",
                "activateSnapshot",
                "Bring a snapshot of this host back into use.",
                self.activate,
                SnapshotBegun,
            ),
            _begun(
                "POST",
                "/v1/snapshots/{snapshot}/deactivate",
                "deactivateSnapshot",
                "Take a snapshot of this host out of use; what was written to it stays.",
                self.deactivate,
                DeactivationBegun,
            ),
            _begun(
                "DELETE",
                "/v1/snapshots/{snapshot}",
                "deleteSnapshot",
                "Remove a snapshot of this host, and what was written to it.",
                self.delete_snapshot,
                DeactivationBegun,
            ),
        )


def _look(path: str, name: str, summary: str, handler: Handler, answer: Any, **more: Any) -> Route:
    return Route(method="GET", path=path, name=name, summary=summary, tag=TAG, handler=handler, answer=answer, **more)


def _begun(
    method: str,
    path: str,
    name: str,
    summary: str,
    handler: Callable[[Call], Awaitable[Reply]],
    answer: type[Begun],
    scope: Scope = Scope.OPERATE,
    **more: Any,
) -> Route:
    also: Mapping[int, str] = {200: "It is done."}
    return Route(
        method=method,
        path=path,
        name=name,
        summary=summary,
        tag=TAG,
        handler=handler,
        answer=answer,
        scope=scope,
        status=202,
        also=also,
        takes=("Prefer",),
        gives=("Location", "Retry-After", "Preference-Applied"),
        problems=(409, 502, 507),
        description=LEFT_TO_A_WORKER,
        body_limit=64 << 10,
        **more,
    )
