"""The image manager: every use case of images as a method. A command, an HTTP route and a test are fronts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.errors import HoldfastError
from holdfast_images.errors import ImageError, InvalidName, UnknownImage
from holdfast_images.flows.lookup import find_finished
from holdfast_images.flows.schemas import ProcessRequest
from holdfast_images.host import SEE_IMAGES, Adoption, HostReport, LocalHost
from holdfast_images.messages import (
    ActivatedSnapshot,
    CreatedSnapshot,
    DeactivatedSnapshot,
    ImageEvent,
    ImageFailure,
    ImageReport,
    Inspection,
    ListedImage,
    OnProgress,
    Processed,
    RemovedImage,
    Since,
    StopSource,
    Submission,
    SubmittedImage,
    processed_of,
    request_of,
    source_of,
    warnings_of,
)
from holdfast_images.settings import Settings

if TYPE_CHECKING:
    from holdfast import Engine, Finding, Flow
    from holdfast_images.administration import ImageLocks, ImagePool
    from holdfast_images.catalog.catalog import Catalog
    from holdfast_images.catalog.tables import Image, Snapshot
    from holdfast_images.detached import DetachedJobs
    from holdfast_images.devices.protocol import PoolStatus
    from holdfast_images.facts import MendedRow
    from holdfast_images.fleet import ImageFleet
    from holdfast_images.gc import Collection
    from holdfast_images.jobs import ImageJobs

NO_SETTINGS = Settings()


class ImageManager:
    """The images of one place: a state directory, or the URL of a store.

    Nothing is opened before a method needs it: a finished image is found without the engine, a list needs neither a
    pool nor root. Only `process` and `submit` make a database that is not there. A manager is for one thread; any
    number of them, in any number of processes, may work at one place at once.
    """

    def __init__(self, place: str | Path, settings: Settings = NO_SETTINGS, *, actor: str = "client") -> None:
        self.settings = settings
        self._host = LocalHost(place, settings)
        self.actor = actor

    @classmethod
    def open(cls, place: str | Path, settings: Settings = NO_SETTINGS, *, actor: str = "client") -> Self:
        """The manager at a place, under settings that are resolved; `actor` is who is named in the journal."""
        return cls(place, settings, actor=actor)

    def close(self) -> None:
        """Close what was opened."""
        self._host.close()
        if "engine" in vars(self):
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- its parts ---

    def acting_as(self, actor: str, engine: Engine) -> ImageManager:
        """A light manager for one request of another thread, over what this one and the engine have open."""
        self._host.catalog  # noqa: B018 - a server makes the tables, as its engine has made the database
        from holdfast import Engine  # noqa: PLC0415 - as below

        other = ImageManager(self._host.place, self.settings, actor=actor)
        vars(other).update(_host=self._host, engine=Engine(engine.store, self.flows, actor=actor))
        return other

    @cached_property
    def engine(self) -> Engine:
        """The engine with the image flows, for whatever is about jobs and not about images. Makes the database."""
        from holdfast import Engine  # noqa: PLC0415 - a finished image is found without it

        return Engine.open(self._host.place, flows=self.flows, actor=self.actor)

    @cached_property
    def flows(self) -> Sequence[Flow[Any, Any]]:
        """What a worker of images runs. Nothing is opened for it."""
        from holdfast_images.flows.process import all_flows  # noqa: PLC0415 - as above

        return all_flows(self._host)

    def queue_limits(self) -> Mapping[str, int]:
        """How many jobs of a queue may run at once, unless an operator has said otherwise."""
        from holdfast_images.flows.process import queue_limits  # noqa: PLC0415 - as above

        return queue_limits(self._host)

    @property
    def has_images(self) -> bool:
        """Was an image ever processed here? Makes nothing."""
        return self._host.has_catalog

    @property
    def is_shared(self) -> bool:
        """Is the store on a server, which hosts share?"""
        return self._host.database is None

    def prepare(self) -> None:
        """Open what steps work with, and mark the data directory as this host's; ForeignData if it is another's.

        Every method that changes something does it first, and so does a worker.
        """
        self._host.claim()
        self._host.devices  # noqa: B018 - what is going to be changed must be there

    @cached_property
    def _jobs(self) -> ImageJobs:
        from holdfast_images.jobs import ImageJobs  # noqa: PLC0415 - as above

        return ImageJobs(self.engine, self._host)

    @property
    def _known_jobs(self) -> ImageJobs:
        """The jobs of a database that is there."""
        self._host.refuse_missing()
        return self._jobs

    @property
    def _catalog(self) -> Catalog:
        """The catalog of a database that is there."""
        self._host.refuse_missing()
        return self._host.catalog

    # --- processing ---

    def request(
        self,
        source: str | None = None,
        *,
        key: str | None = None,
        image_id: str | None = None,
        snapshot_name: str | None = None,
        sha256: str | None = None,
        verify: bool = False,
        refresh: bool = False,
    ) -> ProcessRequest:
        """What `process` is asked, for an object by its URL or by its key in the bucket of the settings.

        `sha256` is the only content that is taken; `refresh` asks the source whether the object has changed, `verify`
        reads everything again as well. InvalidName for what cannot be meant. Touches nothing.
        """
        return request_of(
            self.settings,
            source_of(self.settings, key=key, url=source),
            image_id=image_id,
            snapshot_name=snapshot_name,
            sha256=sha256,
            verify=verify,
            refresh=refresh,
        )

    def find(self, request: ProcessRequest | str) -> Processed | None:
        """What is asked for, if all of it is there and as it should be; None if there is anything to do or to tell.

        Opens nothing of the engine, and makes nothing.
        """
        asked = self._asked(request)
        if not self._host.has_database:
            return None
        try:
            self._host.check_owner()
            finished = find_finished(self._host, asked)
        except ImageError:
            return None  # a job, or whoever opens the parts for it, tells what is wrong
        return processed_of(asked, finished) if finished is not None else None

    def process(
        self, request: ProcessRequest | str, *, on_progress: OnProgress | None = None, stop: StopSource | None = None
    ) -> Processed:
        """Fetch, check, unpack and snapshot an image, named by a URL or by what `request` has made; wait for its end.

        What is done already is found and not done again. A worker that runs does the work; without one this process
        does. `on_progress` is told now and then how far the stages are; `stop` ends the waiting with Interrupted.
        Raises what ended the job, as it was raised in it: ImageRefused, ObjectNotFound, NoSpace, …
        Crash: the same call, or a worker, goes on.
        """
        asked = self._asked(request)
        found = self.find(asked)
        return found if found is not None else self.wait(self._submitted(asked), on_progress=on_progress, stop=stop)

    def process_all(
        self, requests: Sequence[ProcessRequest | str], *, stop: StopSource | None = None
    ) -> list[Processed | ImageFailure]:
        """Process several images at once, and say of each what came of it. Crash: as in process."""
        asked = [self._asked(request) for request in requests]
        found = [self.find(request) for request in asked]
        jobs = [self._submitted(one) if each is None else "" for one, each in zip(asked, found, strict=True)]
        if any(jobs):
            self._jobs.finish(*filter(None, jobs), stop=stop)
        return [
            each if each is not None else self._outcome(one, job)
            for one, each, job in zip(asked, found, jobs, strict=True)
        ]

    def submit(self, *requests: ProcessRequest | str) -> Submission:
        """Leave images to a worker. Crash: once this has returned, they will be processed."""
        asked = [self._asked(request) for request in requests]
        jobs = tuple(SubmittedImage(job_id=self._submitted(each), image_id=each.image_id) for each in asked)
        return Submission(jobs=jobs, has_worker=self._jobs.has_worker())

    def wait(self, job_id: str, *, on_progress: OnProgress | None = None, stop: StopSource | None = None) -> Processed:
        """What came of an image that was submitted, when its job has ended; as `process` otherwise."""
        return self._known_jobs.run_image(job_id, on_progress=on_progress, stop=stop)

    def _asked(self, request: ProcessRequest | str) -> ProcessRequest:
        return self.request(request) if isinstance(request, str) else request

    def _submitted(self, request: ProcessRequest) -> str:
        jobs = self._jobs
        self.prepare()
        return jobs.submit_image(request)

    def _outcome(self, request: ProcessRequest, job_id: str) -> Processed | ImageFailure:
        try:
            return self.wait(job_id)
        except HoldfastError as error:
            return ImageFailure(image_id=request.image_id, s3_key=request.s3_key, error=error)

    # --- looking ---

    def images(self, status: str = "") -> list[ListedImage]:
        """Every image, or those whose download has this status, with the paths that they have here."""
        catalog = self._catalog
        devices = {row.image_id: row.device_name for row in catalog.list_unpacked_images()}
        taken = catalog.list_snapshots()
        return [
            ListedImage(
                image=self._host.image_here(row),
                device_name=devices.get(row.image_id),
                snapshots=tuple(each.snapshot_name for each in taken if each.image_id == row.image_id),
            )
            for row in catalog.list_images(status)
        ]

    def snapshots(self, *, active: bool = False) -> list[Snapshot]:
        """Every snapshot, or those in use, with the paths that they have here."""
        rows = self._catalog.list_active_snapshots() if active else self._catalog.list_snapshots()
        return [self._host.snapshot_here(row) for row in rows]

    def status(self, image_id: str | None = None, *, s3_key: str | None = None) -> ImageReport:
        """Everything about one image, by its id or its key: file, device, snapshots, lock, and its last jobs.

        Of one that is on its way its jobs, with their current steps and how many bytes are done. UnknownImage if
        there is neither an image nor an unfinished job.
        """
        if (image_id is None) == (s3_key is None):
            raise InvalidName("give the id of an image, or its key", hint=SEE_IMAGES)
        if image_id is None:
            image_id = self._image_of_key(s3_key or "")
        jobs, catalog = self._known_jobs.of_image(image_id), self._catalog
        image = catalog.get_image_by_id(image_id)
        if image is None and not any(job.is_unfinished for job in jobs):
            if not jobs:
                raise self._host.missing_image(image_id)
            raise UnknownImage(
                f"there is no image {image_id!r}; its last job, {jobs[0].flow}, is {jobs[0].state}",
                hint=f"see why: holdfast job show {jobs[0].job_id}",
            )
        device, known = catalog.get_unpacked_image_by_id(image_id), catalog.get_verification(image_id)
        return ImageReport(
            image_id=image_id,
            image=self._host.image_here(image) if image is not None else None,
            verification=known,
            warnings=warnings_of(known),
            device=self._host.device_here(device) if device is not None else None,
            snapshots=tuple(map(self._host.snapshot_here, catalog.get_snapshots_by_image_id(image_id))),
            lock=catalog.get_image_lock(image_id),
            jobs=tuple(jobs),
        )

    def events(self, image_id: str | None = None, *, since: Since = None) -> list[ImageEvent]:
        """The journal of the jobs about an image, or about all: since a time, or for so long."""
        jobs = self._known_jobs
        return list(jobs.events(image_id, iter(jobs.engine.journal(since=since))))

    def follow(
        self, image_id: str | None = None, *, since: Since = None, stop_when: Callable[[], bool] = lambda: False
    ) -> Iterator[ImageEvent]:
        """The same events, and then each new one as it is committed; without `since`, the new ones only."""
        jobs = self._known_jobs
        return jobs.events(image_id, jobs.engine.follow_journal(since=since, stop_when=stop_when))

    def _image_of_key(self, s3_key: str) -> str:
        known = self._catalog.get_image_status(s3_key)
        found = known[0].image_id if known else self._known_jobs.image_of_key(s3_key)
        if found is None:
            raise UnknownImage(f"there is no image of the key {s3_key!r}", hint=SEE_IMAGES)
        return found

    def _found(self, image_id: str) -> Image:
        row = self._catalog.get_image_by_id(image_id)
        if row is None:
            raise self._host.missing_image(image_id)
        return row

    # --- snapshots and removal ---

    def snapshot(
        self, image_id: str, name: str, *, on_progress: OnProgress | None = None, stop: StopSource | None = None
    ) -> CreatedSnapshot:
        """Make one more snapshot of an image; one of this name that is in use is found. Crash: as in process."""
        self._begin()
        return self._jobs.run_activation(self.detached.snapshot(image_id, name), on_progress, stop)

    def activate(
        self, *names: str, on_progress: OnProgress | None = None, stop: StopSource | None = None
    ) -> list[ActivatedSnapshot]:
        """Bring snapshots back into use: those of these names, or without any every one that was in use.

        Thin devices are gone after a reboot; what was written to them is not. One that cannot be brought back stops
        none of the others. UnknownImage if a name is not known. Crash: as in process.
        """
        self._begin()
        rows = {row.snapshot_name: row for row in self._catalog.list_snapshots()}
        unknown = [name for name in names if name not in rows]
        if unknown:
            raise self._host.missing_snapshot(unknown[0])
        wanted = [rows[name] for name in names] if names else [row for row in rows.values() if row.active]
        return [self._jobs.reactivated(row, self.detached.reactivate, on_progress, stop) for row in wanted]

    def deactivate(
        self,
        name: str,
        *,
        delete: bool = False,
        on_progress: OnProgress | None = None,
        stop: StopSource | None = None,
    ) -> DeactivatedSnapshot:
        """Take a snapshot out of use; with `delete`, remove it and what was written to it. Crash: as in process.

        One that is mounted or open stays as it is: DeviceBusy.
        """
        jobs = self._begin()
        job = self.detached.deactivate(name, delete=delete)
        done = jobs.run(job, DeactivatedSnapshot, name=f"deactivate {name}", on_progress=on_progress, stop=stop)
        return msgspec.structs.replace(done, deleted=delete)

    def remove(
        self,
        image_id: str,
        *,
        force: bool = False,
        on_progress: OnProgress | None = None,
        stop: StopSource | None = None,
    ) -> RemovedImage:
        """Remove an image: its device, its file, and with `force` its snapshots. Crash: as in process.

        What is mounted or open is not removed; CatalogConflict if it has snapshots and is not forced.
        """
        jobs = self._begin()
        job = self.detached.remove(image_id, force=force)
        return jobs.run(job, RemovedImage, name=f"remove {image_id}", on_progress=on_progress, stop=stop)

    @property
    def detached(self) -> DetachedJobs:
        """The same, left to a worker: `snapshot`, `activate`, `deactivate`, `remove` answer with the id of a job."""
        from holdfast_images.detached import DetachedJobs  # noqa: PLC0415 - as above

        return DetachedJobs(self._host, self._known_jobs)

    def _begin(self) -> ImageJobs:
        jobs = self._known_jobs
        self.prepare()
        return jobs

    # --- archives ---

    def inspect(
        self,
        source: str | Path | None = None,
        *,
        key: str | None = None,
        sha256: str | None = None,
        most_bytes: int | None = None,
        seconds: float | None = None,
    ) -> Inspection:
        """Say everything that is wrong with an archive: a file, a URL, or a key in the bucket of the settings.

        Nothing is unpacked and nothing recorded; an object is fetched into a temporary directory and removed again.
        What is larger is refused, and what takes longer ended, if it is said so.
        """
        from holdfast_images.administration import inspect_source  # noqa: PLC0415 - as above

        return inspect_source(self.settings, source, key, sha256, most_bytes, seconds)

    # --- maintenance ---

    def verify(self, image_id: str | None = None, *, deep: bool = False) -> list[Finding]:
        """What of an image, or of everything, is not what is recorded; `deep` reads every byte. Changes nothing.

        Of everything: the jobs, the rules of the catalog, files, devices and snapshots, the room that is left, and
        what `collect` would remove.
        """
        from holdfast_images.administration import verify_everything, verify_image  # noqa: PLC0415 - as above

        engine = self._known_jobs.engine
        self._host.check_owner()
        if image_id is not None:
            return list(verify_image(self._host, self._found(image_id), deep=deep))
        return [*engine.check(deep=deep), *verify_everything(self._host, engine, deep=deep)]

    def check(self) -> list[Finding]:
        """Rows of the catalog that break its rules or cannot be read. Cheap: no file is looked at, nothing changed."""
        from holdfast_images.administration import verify_catalog, verify_rows  # noqa: PLC0415 - as above

        return [*verify_rows(self._host), *verify_catalog(self._host.catalog)] if self._host.has_catalog else []

    def repair(self, *, dry_run: bool = False) -> list[MendedRow]:
        """Put rows right by what files, devices and the other rows tell; or only say which. Crash: one by one."""
        from holdfast_images.facts import mend_all  # noqa: PLC0415 - as above

        return mend_all(self._host, dry_run=dry_run) if self._host.has_catalog else []

    def collect(self, *, dry_run: bool = False, refusals_older_than: float | None = None) -> Collection:
        """Remove what crashes have left and nobody needs, and refusals that are so many seconds old; or only plan it.

        What an unfinished job may need, or is in use, stays. Crash: some of it is removed, the next call has the rest.
        """
        from holdfast_images.gc import collect_garbage  # noqa: PLC0415 - as above

        engine = self._known_jobs.engine
        self._host.check_owner()
        if not dry_run:
            self.prepare()
        return collect_garbage(self._host, engine, dry_run=dry_run, refusals_older_than=refusals_older_than)

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many images, devices and snapshots this host has: what they are, and in which state. Makes nothing."""
        return self._host.catalog.counts_here() if self._host.has_catalog else {}

    def room(self) -> PoolStatus:
        """How much room there is for devices on this host. PoolUnusable if there is no pool."""
        return self._host.devices.pool()

    @cached_property
    def pool(self) -> ImagePool:
        """The thin pool of the data directory: `create`, `status`, `extend`, `check`. Needs no database."""
        from holdfast_images.administration import ImagePool  # noqa: PLC0415 - for the device mapper only

        return ImagePool(self._host.data)

    @property
    def locks(self) -> ImageLocks:
        """The locks of the images: `held`, `stale`, `release`."""
        from holdfast_images.administration import ImageLocks  # noqa: PLC0415 - as above

        return ImageLocks(self._host, self._known_jobs)

    @property
    def fleet(self) -> ImageFleet:
        """What all hosts of the store have: `images`, `snapshots`, `locks`, a page at a time, `counts` and `hosts`."""
        from holdfast_images.fleet import ImageFleet  # noqa: PLC0415 - as above

        return ImageFleet(self._host, self._known_jobs.engine)

    def host(self) -> HostReport:
        """What this host is called, and whose its data directory is. Changes nothing."""
        self._host.refuse_missing()
        return self._host.report()

    def adopt(self) -> Adoption:
        """Take the data directory, and the name of this host, over for this machine, whoever had them.

        For a machine that has taken the place of another. ImageBusy while a worker of this host is live.
        """
        self._known_jobs.refuse_live_worker()
        return self._host.adopt()
