"""The images of every host of a store, each with how far it is: what a list and a page show.

Whatever is asked, the cost is bounded: pages go by key, counts stop early, and of what runs the newest are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast import Engine, JobState
from holdfast.views import JobFilter, JobRow, Views
from holdfast_images.catalog.fleet import LAST_ID, CatalogCounts, HostLock, ImageCopy, SnapshotCopy
from holdfast_images.catalog.tables import DownloadStatus
from holdfast_images.errors import InvalidName
from holdfast_images.flows.schemas import PROCESS
from holdfast_images.host import LocalHost

PAGE_LIMIT = 500
COUNT_CAP = 10_000
MOST_UNDER_WAY = 100
"""Of each flow of a host; of more only the newest are looked at."""
MOST_FAILED = 20
STAGES = ("download-image", "unpack-image", "activate-image")
UNFINISHED = (JobState.PENDING, JobState.RUNNING)
ENDED_BADLY = (JobState.FAILED, JobState.QUARANTINED)
DOING = ("downloading", "unpacking", "activating")
DAY = 86_400_000
_CURSOR = re.compile(r"f([0-9]{1,18})")


class ImageRow(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a host as a list shows it. Times are milliseconds since 1970."""

    image_id: str
    host: str = ""
    """Empty in a store that one host has."""
    s3_key: str = ""
    status: str
    """downloading, unpacking, activating, waiting; ready, unpacked, verified; failed, refused, quarantined"""
    state: JobState
    """What the status comes to, in the states of jobs."""
    checksum: str | None = None
    size_bytes: int | None = None
    device_name: str | None = None
    snapshots: int = 0
    in_use: int = 0
    step: str | None = None
    number: int = 0
    """Steps that are done, or the step that it is in, counted from 1, of `steps`."""
    steps: int = 12
    done: float | None = None
    """Of `total`, mostly bytes, as the step last said."""
    total: float | None = None
    is_setback: bool = False
    """Does the step have to be tried again?"""
    says: str = ""
    """Why it is where it is, in a sentence."""
    job_id: str | None = None
    """The job that works on it, or that ended badly."""
    changed_at: int = 0


class ImagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list, newest first; what is on its way and not in the catalog yet begins the first page."""

    rows: list[ImageRow]
    next: str | None = None


class SnapshotRow(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a host. Times are milliseconds since 1970."""

    snapshot_name: str
    image_id: str
    host: str = ""
    snapshot_id: str
    active: bool
    created_at: int
    deactivated_at: int | None = None


class SnapshotPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list, newest first."""

    rows: list[SnapshotRow]
    next: str | None = None


class ImageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are; what has reached the cap may be more."""

    images: int
    devices: int
    snapshots_in_use: int
    refusals: int
    cap: int = COUNT_CAP


class ImageHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that keeps images here; a store that one host has knows one, without a name."""

    host: str
    directory: str = ""
    is_this: bool = False


class ImageFleet:
    """What all hosts have, looked at from one of them."""

    def __init__(self, host: LocalHost, engine: Engine) -> None:
        self._host = host
        self._store = engine.store
        self._views = Views(engine)
        flows = {name: engine.flows[host.flow_name(name)] for name in STAGES}
        self._steps = [(name, step) for name in STAGES for step in flows[name].definition.steps]

    def images(
        self, *, host: str = "", status: str = "", text: str = "", cursor: str | None = None, limit: int = 50
    ) -> ImagePage:
        """A page of the images of all hosts, or of one. InvalidName for a cursor that is none."""
        before = _position_in(cursor)
        found = self._host.catalog.page_of_images(
            host=host, status=status, text=text, before=before, most=_checked(limit) + 1
        )
        shown = found[:limit]
        known = self._known_jobs(self._hosts_of(host))
        rows = [self._row(copy, known.pop((copy.host, copy.image_id), None)) for copy in shown]
        if cursor is None and not status:
            rows = [*self._not_recorded(known, text), *rows]
        return ImagePage(rows=rows, next=f"f{shown[-1].id}" if len(found) > limit else None)

    def image(self, image_id: str) -> list[ImageRow]:
        """One image, on every host that has it."""
        copies = self._host.catalog.copies_of_image(image_id)
        known = self._known_jobs(self._hosts_of(""), f"{image_id}/")
        rows = [self._row(copy, known.pop((copy.host, image_id), None)) for copy in copies]
        return [*rows, *(self._of_job(each) for each in known.values())]

    def snapshots(
        self, *, host: str = "", image_id: str = "", active: bool = False, cursor: str | None = None, limit: int = 50
    ) -> SnapshotPage:
        """A page of the snapshots of all hosts, of one, or of one image."""
        found = self._host.catalog.page_of_snapshots(
            host=host, image_id=image_id, active=active, before=_position_in(cursor), most=_checked(limit) + 1
        )
        rows = [_snapshot_row(each) for each in found[:limit]]
        return SnapshotPage(rows=rows, next=f"f{found[limit - 1].id}" if len(found) > limit else None)

    @property
    def own_host(self) -> str:
        """What this host is called here; empty in a store that one host has."""
        return self._host.host

    def locks(self) -> list[HostLock]:
        """The locks of all hosts, oldest first, some hundred of them."""
        return self._host.catalog.locks_of_all()

    def counts(self) -> ImageCounts:
        """How many images, devices, snapshots in use and refusals there are."""
        found: CatalogCounts = self._host.catalog.counts_of_all(most=COUNT_CAP)
        return ImageCounts(**msgspec.structs.asdict(found))

    def hosts(self) -> list[ImageHost]:
        """Every host that has used this store, and this one."""
        own = self._host.host
        claims = {claim.host: claim.directory for claim in self._host.catalog.list_hosts()} if own else {}
        claims.setdefault(own, str(self._host.data))
        return [ImageHost(host=name, directory=claims[name], is_this=name == own) for name in sorted(claims)]

    # --- what is on its way, or ended badly: from the jobs ---

    def _hosts_of(self, wanted: str) -> list[str]:
        return [wanted] if wanted and self._host.host else [each.host for each in self.hosts()]

    def _known_jobs(self, hosts: Sequence[str], prefix: str | None = None) -> dict[tuple[str, str], _ImageJobRow]:
        """Of each image the job that tells most: an unfinished one, the further stage first, else the last bad one."""
        found: dict[tuple[str, str], _ImageJobRow] = {}
        for host in hosts:
            for each in self._told_by(host, prefix):
                known = found.get((host, each.image_id))
                if known is None or each.rank > known.rank:
                    found[host, each.image_id] = each
        return found

    def _told_by(self, host: str, prefix: str | None) -> Iterator[_ImageJobRow]:
        for states, most in ((UNFINISHED, MOST_UNDER_WAY), (ENDED_BADLY, MOST_FAILED)):
            for stage, name in enumerate((PROCESS, *STAGES)):
                flow = f"{name}.{host}" if host else name
                wanted = JobFilter(states=states, flow=flow, key_prefix=prefix)
                # Looked up first, because of most flows there is none: a page asks for a lot more.
                if not self._store.list_jobs(wanted, beyond=None, limit=1, newest_first=True):
                    continue
                for row in self._views.jobs(wanted, limit=most).rows:
                    yield _ImageJobRow(host=host, stage=stage - 1, row=row)

    def _not_recorded(self, known: Mapping[tuple[str, str], _ImageJobRow], text: str) -> list[ImageRow]:
        """Images that only jobs know of. What ended badly more than a day ago is for the list of jobs."""
        wanted, recent = text.lower(), self._store.now() - DAY
        rows = [
            each
            for each in known.values()
            if (each.is_unfinished or each.row.job.updated_at > recent)
            and wanted in each.image_id.lower()
            and not self._host.catalog.copies_of_image(each.image_id)
        ]
        rows.sort(key=lambda each: (each.is_unfinished, each.row.job.created_at), reverse=True)
        return [self._of_job(each) for each in rows]

    def _row(self, copy: ImageCopy, known: _ImageJobRow | None) -> ImageRow:
        changed_at = _milliseconds(copy.updated_at)
        is_ready = copy.download_status is DownloadStatus.COMPLETED and copy.in_use > 0
        if known is not None and not known.is_unfinished and (is_ready or known.row.job.updated_at < changed_at):
            known = None  # it has been put right since
        row = self._of_job(known) if known is not None else self._at_rest(copy, is_ready=is_ready)
        return msgspec.structs.replace(
            row,
            host=copy.host,
            s3_key=copy.s3_key,
            checksum=copy.checksum,
            size_bytes=copy.size_bytes,
            device_name=copy.device_name,
            snapshots=copy.snapshots,
            in_use=copy.in_use,
            changed_at=max(row.changed_at, changed_at),
        )

    def _at_rest(self, copy: ImageCopy, *, is_ready: bool) -> ImageRow:
        steps = len(self._steps)
        number = {name: sum(stage == name for stage, _ in self._steps) for name in STAGES}
        at: tuple[str, JobState, int, str]
        if copy.download_status is not DownloadStatus.COMPLETED:
            at = ("failed", JobState.FAILED, 0, "it was not taken; process it again to hear why")
        elif is_ready:
            at = ("ready", JobState.SUCCEEDED, steps, "sealed and verified")
        elif copy.device_name is not None:
            at = ("unpacked", JobState.SUCCEEDED, steps - number[STAGES[2]], "unpacked, without a snapshot in use")
        else:
            at = ("verified", JobState.SUCCEEDED, number[STAGES[0]], "downloaded and verified")
        status, state, done, says = at
        return ImageRow(
            image_id=copy.image_id, status=status, state=state, number=done, steps=steps, says=says, host=copy.host
        )

    def _of_job(self, known: _ImageJobRow) -> ImageRow:
        row, job = known.row, known.row.job
        error = row.error
        step = row.step or (error.step if error is not None else None)
        stage = STAGES[known.stage] if known.stage >= 0 else None
        number = self._steps.index((stage, step)) + 1 if stage and step and (stage, step) in self._steps else 0
        if not number and stage:
            number = next(place for place, (name, _) in enumerate(self._steps) if name == stage) + 1
        says = row.explanation
        if job.state in ENDED_BADLY:
            status = "quarantined" if job.state is JobState.QUARANTINED else "failed"
            if error is not None:
                status = "refused" if error.type == "ImageRefused" else status
                says = f"{step}: {error.text}" if step else error.text
        else:
            status = DOING[known.stage] if stage and job.state is JobState.RUNNING else "waiting"
        said = row.progress or {}
        return ImageRow(
            image_id=known.image_id,
            host=known.host,
            status=status,
            state=job.state,
            step=step,
            number=number,
            steps=len(self._steps),
            done=_number(said.get("done")),
            total=_number(said.get("total")),
            is_setback=row.tries > 0 and job.state in UNFINISHED,
            says=says,
            job_id=job.job_id,
            changed_at=job.updated_at,
        )


class _ImageJobRow(msgspec.Struct, frozen=True):
    """A job about an image. `stage`: which of the three; -1 of the job that has them all."""

    host: str
    stage: int
    row: JobRow

    @property
    def image_id(self) -> str:
        return (self.row.job.key or "").partition("/")[0]

    @property
    def is_unfinished(self) -> bool:
        return self.row.job.state in UNFINISHED

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """The greatest tells most."""
        running = self.row.job.state is JobState.RUNNING
        if not self.is_unfinished:
            # A stage tells why, the job that has them all only which stage it was.
            return False, self.stage >= 0, self.row.job.updated_at, self.stage
        return True, running and self.stage >= 0, self.stage, self.row.job.created_at


def _snapshot_row(copy: SnapshotCopy) -> SnapshotRow:
    return SnapshotRow(
        snapshot_name=copy.snapshot_name,
        image_id=copy.image_id,
        host=copy.host,
        snapshot_id=copy.snapshot_id,
        active=copy.active,
        created_at=_milliseconds(copy.created_at),
        deactivated_at=_milliseconds(copy.deactivated_at) if copy.deactivated_at is not None else None,
    )


def _checked(limit: int) -> int:
    if not 1 <= limit <= PAGE_LIMIT:
        raise InvalidName(f"a page cannot have {limit} rows", hint=f"from 1 to {PAGE_LIMIT}")
    return limit


def _position_in(cursor: str | None) -> int:
    if cursor is None:
        return LAST_ID
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidName(f"{cursor[:100]!r} is no cursor", hint="take `next` of a page as it is")
    return int(match[1])


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
