"""Who works on which image, and locks that nobody holds any more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast_images.catalog.locks import STALE_SECONDS
from holdfast_images.catalog.rows import ImageLock
from holdfast_images.errors import ImageBusy, UnknownImage
from holdfast_images.host import LocalHost
from holdfast_images.jobs import UNFINISHED, ImageJobs

STALE_AFTER = STALE_SECONDS
"""Seconds that a lock has to be held to count as stale."""
GONE = "gone"
"""The state of a job that is not known any more."""


class HeldLock(ImageLock, frozen=True, kw_only=True):
    """A lock, and the state of the job that holds it: None if no job holds it."""

    state: str | None

    @property
    def is_live(self) -> bool:
        """Is the job that holds it not finished, so that it goes on with what is locked?"""
        return self.state in UNFINISHED

    @property
    def is_jobs(self) -> bool:
        """Is it held by a job?"""
        return self.state is not None


class ImageLocks:
    """The locks of the images of one host."""

    def __init__(self, host: LocalHost, jobs: ImageJobs) -> None:
        self._host = host
        self._jobs = jobs

    def held(self) -> list[HeldLock]:
        """All of them, newest first. A job holds its lock for as long as it is unfinished."""
        return [self._with_state(lock) for lock in self._host.catalog.list_image_locks()]

    def stale(self, *, older_than: int = STALE_AFTER) -> list[HeldLock]:
        """Those that were held for longer than so many seconds, or whose job has ended. Changes nothing."""
        return [lock for lock in self.held() if lock.age > older_than or (lock.is_jobs and not lock.is_live)]

    def release(self, image_ids: Sequence[str], *, force: bool = False) -> list[HeldLock]:
        """Release the locks of these images; which were. UnknownImage if one is not locked.

        ImageBusy if an unfinished job holds one, unless it is forced: two jobs may then work on one image, which the
        database and the devices survive, but one of them fails.
        Crash: some are released.
        """
        return self._release([self._of(image_id) for image_id in image_ids], force=force)

    def release_stale(self, *, older_than: int = STALE_AFTER) -> list[HeldLock]:
        """Release the locks of jobs that have ended, and those of nobody that are older. Crash: as in release."""
        left = [lock for lock in self.held() if not lock.is_live and (lock.is_jobs or lock.age > older_than)]
        return self._release(left, force=False)

    def _release(self, locks: Sequence[HeldLock], *, force: bool) -> list[HeldLock]:
        for lock in locks:
            if lock.is_live and not force:
                raise ImageBusy(
                    f"image {lock.image_id} is locked by {lock.locked_by}, which is not finished",
                    hint=f"cancel it: holdfast job cancel {lock.locked_by.partition(':')[2]}; or --force",
                )
        # By its holder: whoever has taken it over meanwhile keeps it.
        return [lock for lock in locks if self._host.catalog.release_image_lock(lock.image_id, lock.locked_by)]

    def _of(self, image_id: str) -> HeldLock:
        lock = self._host.catalog.get_image_lock(image_id)
        if lock is None:
            raise UnknownImage(f"image {image_id!r} is not locked", hint="see which are: holdfast locks list")
        return self._with_state(lock)

    def _with_state(self, lock: ImageLock) -> HeldLock:
        kind, _, job_id = lock.locked_by.partition(":")
        state = (self._jobs.state_of(job_id) or GONE) if kind == "job" else None
        return HeldLock(**msgspec.structs.asdict(lock), state=state)
