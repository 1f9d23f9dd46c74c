"""Routes of maintenance: archives inspected, images verified, leftovers collected, locks, the pool, hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.web import Call, Reply, Route, Scope
from holdfast.web.conditions import etag, expected_heads
from holdfast.web.problems import Refused
from holdfast_images.administration import PoolReport
from holdfast_images.devices.protocol import PoolStatus
from holdfast_images.errors import ImageBusy, TooLarge
from holdfast_images.fleet import ImageCounts, ImageHost
from holdfast_images.gc import Action
from holdfast_images.manager import ImageManager
from holdfast_images.messages import Inspection
from holdfast_images.source.location import location_of
from holdfast_images.web.access import ImageAccess, image_of, note_deed
from holdfast_images.web.answers import (
    CollectionDone,
    CollectionPlan,
    ExtendBody,
    FindingList,
    InspectBody,
    LockAnswer,
    LockList,
    ReleaseBody,
    VerifyBody,
    bytes_of,
    collection_done,
    lock_answer,
)

TAG = "image maintenance"
BODY_LIMIT = 64 << 10
INSPECT_BYTES = 1 << 30
INSPECT_SECONDS = 120.0
DEEP_BYTES = 4 << 30
"""Of file and device: more is read by a command on the host."""


class MaintenanceRoutes:
    """The handlers: each a method of the manager, for whoever asks."""

    def __init__(self, access: ImageAccess) -> None:
        self._access = access

    # --- archives and findings ---

    def inspect(self, call: Call) -> Reply:
        """Everything that is wrong with an archive."""
        images, body = self._access.images(call), call.body
        asked: InspectBody = body
        if asked.source is not None:
            # Always a URL here: what has no scheme would be a path of the server's.
            location = location_of(asked.source, settings=images.settings.source)
            self._access.refuse_source(call.principal, location)
        with self._access.long("inspection"):
            found = images.inspect(
                asked.source, key=asked.key, sha256=asked.sha256, most_bytes=INSPECT_BYTES, seconds=INSPECT_SECONDS
            )
        return Reply(body=found)

    def verify(self, call: Call) -> Reply:
        """What of an image is not as it is recorded."""
        images, image_id = self._access.images(call), image_of(call)
        wish: VerifyBody = call.body
        if wish.deep:
            refuse_large(images, image_id)
        with self._access.long("verification"):
            return Reply(body=FindingList(findings=images.verify(image_id, deep=wish.deep)))

    def verify_all(self, call: Call) -> Reply:
        """What of everything is not as it is recorded."""
        with self._access.long("verification"):
            return Reply(body=FindingList(findings=self._access.images(call).verify()))

    # --- leftovers ---

    def plan(self, call: Call) -> Reply:
        """What gc would remove."""
        with self._access.long("collection"):
            found = self.planned(self._access.images(call))
        return Reply(body=found, headers=etag(found.plan))

    @staticmethod
    def planned(images: ImageManager) -> CollectionPlan:
        """The plan, with its mark."""
        actions = images.collect(dry_run=True).actions
        return CollectionPlan(actions=actions, bytes=bytes_of(actions), plan=plan_mark(actions))

    def collect(self, call: Call) -> Reply:
        """Remove what was planned; the plan that was looked at is named by If-Match."""
        return Reply(body=self.carry_out(call, self._access.images(call), expected_heads(call.headers)))

    def carry_out(
        self, call: Call, images: ImageManager, expected: Sequence[str], *, reason: str = ""
    ) -> CollectionDone:
        """Collect, if the plan is still one of those, or whatever it is if none is given; and note it in the log."""
        with self._access.long("collection"):
            if expected and (now := self.planned(images)).plan not in expected:
                raise Refused(
                    412,
                    "plan-changed",
                    f"there are {len(now.actions)} other leftovers now than those that were looked at",
                    hint="look at the plan again",
                    facts={"plan": now.plan},
                    headers=etag(now.plan),
                )
            done = collection_done(images.collect())
        why = f": {reason}" if reason else ""
        note_deed(call, f"gc removed {len(done.removed)} leftovers, {done.bytes:,} bytes; {len(done.kept)} stay{why}")
        return done

    # --- locks, pool, hosts ---

    def locks(self, call: Call) -> Reply:
        """The locks of all hosts; of this one with the state of the job that holds each."""
        images = self._access.images(call)
        here = images.fleet.own_host
        own = {lock.image_id: lock for lock in images.locks.held()}
        found = [own.get(lock.image_id, lock) if lock.host == here else lock for lock in images.fleet.locks()]
        return Reply(body=LockList(locks=[lock_answer(lock) for lock in found]))

    def release(self, call: Call) -> Reply:
        """Release the lock of an image of this host."""
        images, image_id = self._access.images(call), image_of(call)
        wish: ReleaseBody = call.body
        released = next(iter(images.locks.release([image_id], force=wish.force)), None)
        if released is None:
            raise ImageBusy(f"the lock of image {image_id} has another holder now", hint="look at it again")
        note_deed(call, f"released the lock of image {image_id}, held by {released.locked_by}")
        return Reply(body=lock_answer(released))

    def room(self, call: Call) -> Reply:
        """How much room there is for devices on this host."""
        return Reply(body=self._access.images(call).room())

    def pool(self, call: Call) -> Reply:
        """How much room there is in the thin pool of this host."""
        return Reply(body=self._access.images(call).pool.status())

    def extend(self, call: Call) -> Reply:
        """Give the pool more room."""
        wish: ExtendBody = call.body
        report = self._access.images(call).pool.extend(wish.size)
        note_deed(call, f"extended the pool {report.name} to {report.capacity_bytes} bytes")
        return Reply(body=report)

    def hosts(self, call: Call) -> Reply:
        """Which hosts keep images here."""
        return Reply(body=self._access.images(call).fleet.hosts())

    def counts(self, call: Call) -> Reply:
        """How many images, devices, snapshots in use and refusals there are."""
        return Reply(body=self._access.images(call).fleet.counts())

    # --- the table ---

    def table(self) -> Sequence[Route]:
        """The routes."""
        return (*self._looking(), *self._doing(), *self._of_locks_and_pool())

    def _looking(self) -> Sequence[Route]:
        return (
            _route("GET", "/v1/image-counts", "countImages", "Count images and snapshots.", self.counts, ImageCounts),
            _route("GET", "/v1/image-hosts", "listImageHosts", "Which hosts keep images.", self.hosts, list[ImageHost]),
            _route("GET", "/v1/image-locks", "listImageLocks", "The locks of images.", self.locks, LockList),
            _route(
                "GET",
                "/v1/image-room",
                "getImageRoom",
                "How much room there is for devices on this host.",
                self.room,
                PoolStatus,
                problems=(409, 503),
            ),
            _route(
                "GET",
                "/v1/image-pool",
                "getImagePool",
                "How much room the thin pool of this host has.",
                self.pool,
                PoolReport,
                problems=(503,),
            ),
            _route(
                "GET",
                "/v1/image-gc",
                "planImageGc",
                "What gc would remove on this host; changes nothing.",
                self.plan,
                CollectionPlan,
                scope=Scope.OPERATE,
                gives=("ETag",),
                problems=(409, 503),
            ),
        )

    def _doing(self) -> Sequence[Route]:
        return (
            _route(
                "POST",
                "/v1/image-gc",
                "applyImageGc",
                "Remove what crashes have left on this host; If-Match names the plan.",
                self.collect,
                CollectionDone,
                scope=Scope.OPERATE,
                takes=("If-Match",),
                problems=(409, 412, 428, 503),
            ),
            _route(
                "POST",
                "/v1/image-inspections",
                "inspectImage",
                "Say everything that is wrong with an archive.",
                self.inspect,
                Inspection,
                scope=Scope.OPERATE,
                body=InspectBody,
                problems=(409, 502, 503, 507),
                description=f"Of {INSPECT_BYTES:,} bytes at most, for {INSPECT_SECONDS:.0f} seconds. Records nothing.",
            ),
            _route(
                "POST",
                "/v1/images/{image_id}/verify",
                "verifyImage",
                "Is the image of this host what is recorded?",
                self.verify,
                FindingList,
                scope=Scope.OPERATE,
                body=VerifyBody,
                problems=(409, 503),
                description=f"Deep up to {DEEP_BYTES:,} bytes of file and device together.",
            ),
            *self._for_all(),
        )

    def _for_all(self) -> Sequence[Route]:
        return (
            _route(
                "POST",
                "/v1/image-verification",
                "verifyImages",
                "Check jobs, catalog, files and devices of this host, without reading contents.",
                self.verify_all,
                FindingList,
                scope=Scope.OPERATE,
                problems=(409, 503),
            ),
        )

    def _of_locks_and_pool(self) -> Sequence[Route]:
        return (
            _route(
                "POST",
                "/v1/image-locks/{image_id}/release",
                "releaseImageLock",
                "Release a lock that nobody needs any more.",
                self.release,
                LockAnswer,
                scope=Scope.OPERATE,
                body=ReleaseBody,
                problems=(409,),
            ),
            _route(
                "POST",
                "/v1/image-pool/extend",
                "extendImagePool",
                "Give the thin pool of this host more room.",
                self.extend,
                PoolReport,
                scope=Scope.ADMIN,
                body=ExtendBody,
                problems=(503, 507),
            ),
        )


def refuse_large(images: ImageManager, image_id: str) -> None:
    """Raise TooLarge if there is more of an image than is read for a request."""
    report = images.status(image_id)
    size = (report.image.size_bytes if report.image else 0) + (report.device.size_bytes if report.device else 0)
    if size > DEEP_BYTES:
        raise TooLarge(
            f"image {image_id} has {size:,} bytes to be read, and {DEEP_BYTES:,} are read for a request",
            hint=f"on its host: holdfast image verify {image_id} --deep",
        )


def plan_mark(actions: Sequence[Action]) -> str:
    """What tells this plan from another: equal for equal actions, in whatever order and whatever their age."""
    told = sorted((each.kind, each.subject, each.image_id, each.uuid) for each in actions)
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]


def _route(
    method: str, path: str, name: str, summary: str, handler: Callable[[Call], Reply], answer: Any, **more: Any
) -> Route:
    more = {"body_limit": BODY_LIMIT, **more}
    return Route(method=method, path=path, name=name, summary=summary, tag=TAG, handler=handler, answer=answer, **more)
