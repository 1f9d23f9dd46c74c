"""What the images view shows: each part is read when it is first asked for, so that a fragment costs only its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from holdfast import HoldfastError
from holdfast.views import JobView, Views
from holdfast_images.devices.protocol import PoolStatus
from holdfast_images.fleet import ImageCounts, ImageHost, ImagePage, ImageRow
from holdfast_images.manager import ImageManager
from holdfast_images.messages import StageProgress
from holdfast_images.web.answers import CollectionPlan, ImageDetail, LockAnswer

ROWS = 50
MATRIX_ROWS = 20
WANTS_A_LOOK = ("low", "full", "read-only", "failed")
GAP, STAGE_GAP = 0.65, 2.2
"""Between the segments of a track, in hundredths of its width."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
UNDER_WAY = ("pending", "running")
CLASSES = {"running": "on", "failed": "bad", "quarantined": "q"}


class Segments(NamedTuple):
    """A part of a track that is drawn alike."""

    kind: str
    path: str


class StageStep(NamedTuple):
    """A step of a stage in the drawer."""

    name: str
    kind: str
    said: str


class StageShown(NamedTuple):
    """A stage in the drawer: its flow, how it stands, how long it took, and its steps."""

    progress: StageProgress
    milliseconds: int | None
    steps: list[StageStep]


class Cell(NamedTuple):
    """An image on a host, in the matrix."""

    kind: str
    icon: str
    label: str
    percent: str


class ImagesShown:
    """The whole view."""

    def __init__(
        self, images: ImageManager, views: Views, wanted: ImageWanted, *, detail: ImageDetail | None = None
    ) -> None:
        self.images = images
        self.wanted = wanted
        self.detail = detail
        self._views = views
        self.plan: CollectionPlan | None = None

    @cached_property
    def page(self) -> ImagePage:
        """This page of the images."""
        return self.images.fleet.images(
            host=self.wanted.host, text=self.wanted.text, cursor=self.wanted.after or None, limit=ROWS
        )

    @property
    def rows(self) -> Sequence[ImageRow]:
        """What is under way first, then the newest."""
        return sorted(self.page.rows, key=lambda row: row.state not in UNDER_WAY)

    @property
    def under_way(self) -> int:
        """How many of those on the page are."""
        return sum(row.state in UNDER_WAY for row in self.page.rows)

    @property
    def failed(self) -> int:
        """How many of those on the page did not come to a good end."""
        return sum(row.state in ("failed", "quarantined") for row in self.page.rows)

    @cached_property
    def counts(self) -> ImageCounts:
        """Of all hosts."""
        return self.images.fleet.counts()

    @cached_property
    def hosts(self) -> list[ImageHost]:
        """Those that keep images here."""
        return self.images.fleet.hosts()

    @property
    def own_host(self) -> str:
        """What this one is called."""
        return self.images.fleet.own_host

    @cached_property
    def room(self) -> PoolStatus | None:
        """For devices on this host; None if that cannot be told, and why is in `no_room`."""
        try:
            return self.images.room()
        except HoldfastError as error:
            self.no_room = str(error)
            return None

    no_room = ""

    @cached_property
    def locks(self) -> list[LockAnswer]:
        """Those of all hosts."""
        own = {lock.image_id: lock.state for lock in self.images.locks.held()}
        return [
            LockAnswer(
                image_id=lock.image_id,
                host=lock.host,
                locked_by=lock.locked_by,
                age=lock.age,
                state=own.get(lock.image_id) if lock.host == self.own_host else None,
            )
            for lock in self.images.fleet.locks()
        ]

    @cached_property
    def matrix(self) -> list[tuple[str, list[Cell]]]:
        """The newest images, and how far each is on every host; for a fleet."""
        found: dict[str, dict[str, ImageRow]] = {}
        for row in self.page.rows:
            found.setdefault(row.image_id, {})[row.host] = row
        names = list(found)[:MATRIX_ROWS]
        return [(name, [cell_of(found[name].get(each.host)) for each in self.hosts]) for name in names]

    @property
    def drawn(self) -> ImageRow | None:
        """The image in the drawer: as this host has it, or another one."""
        rows = self.detail.hosts if self.detail is not None else []
        return next((row for row in rows if row.host == self.own_host), rows[0] if rows else None)

    @cached_property
    def stages(self) -> list[StageShown]:
        """Of the image in the drawer, as its last job has them."""
        return [self._stage(stage) for stage in self.detail.stages] if self.detail is not None else []

    def _stage(self, progress: StageProgress) -> StageShown:
        job = self._views.job(progress.job_id)
        ended = {step.step: step.finished_at - step.started_at for step in job.steps}
        names = self._steps_of(job)
        current = job.current.step if job.current is not None else None
        failed = next((one.error.step for one in reversed(job.executions) if one.error is not None), None)
        steps = [
            StageStep(name, *_said(name, ended.get(name), current, failed, progress, is_last=name == names[-1]))
            for name in names
        ]
        took = sum(ended.values()) if progress.has_ended else None
        return StageShown(progress, took, steps)

    def _steps_of(self, job: JobView) -> Sequence[str]:
        flow = self.images.engine.flows.get(job.job.flow)
        return flow.definition.steps if flow is not None else [step.step for step in job.steps]


class ImageWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which images, as an address says it."""

    fragment: str = ""
    done: str = ""
    text: str = ""
    host: str = ""
    after: str = ""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """As parameters of an address."""
        return [(name, value) for name in ("text", "host") if (value := getattr(self, name))]


def _said(
    name: str, took: int | None, current: str | None, failed: str | None, progress: StageProgress, *, is_last: bool
) -> tuple[str, str]:
    if took is not None:
        return "done", (f"{took:,} ms" if took < 1000 else f"{took / 1000:.1f} s") + (" · commit" if is_last else "")
    if name == current:
        share = share_of(progress.done, progress.total)
        if progress.setback:
            return "warn", f"{share or 'backs off'}: {progress.setback}"
        return "on", share or "at work"
    if name == failed and progress.state in ("failed", "quarantined"):
        return "failed", "failed here"
    return "", "commit" if is_last else "–"


def track_of(row: ImageRow, stages: Sequence[int] = (4, 5, 3)) -> list[Segments]:
    """The steps of an image as segments of a line, one path for each kind."""
    count = sum(stages)
    width = (100 - (count - 1) * GAP - (len(stages) - 1) * (STAGE_GAP - GAP)) / count
    first: set[int] = set()
    for stage in stages[:-1]:
        first.add((max(first) if first else 0) + stage)
    drawn: dict[str, list[str]] = {}
    at = 0.0
    for place in range(count):
        at += (STAGE_GAP if place in first else GAP) if place else 0
        drawn.setdefault(_kind_of(row, place), []).append(f"M{at:.1f} 0h{width:.1f}v8h-{width:.1f}z")
        at += width
    return [Segments(kind, "".join(paths)) for kind, paths in drawn.items()]


def _kind_of(row: ImageRow, place: int) -> str:
    if row.state == "succeeded":
        return "ok" if place < row.number else "no"
    if place < row.number - 1:
        return "ok"
    if place > row.number - 1 or row.number == 0:
        return "no"
    return "wt" if row.is_setback else CLASSES.get(row.state, "no")


def cell_of(row: ImageRow | None) -> Cell:
    """How far an image is on a host."""
    if row is None:
        return Cell("none", "", "not here", "")
    if row.is_setback:
        return Cell("warn", "warn", row.status, share_of(row.done, row.total))
    kinds = {"pending": "none"}
    return Cell(kinds.get(row.state, row.state), row.state, row.status, share_of(row.done, row.total))


def share_of(done: float | None, total: float | None) -> str:
    """62 %, or nothing if that is not known."""
    return f"{int(100 * min(done / total, 1))} %" if done is not None and total else ""


def said_of(row: ImageRow) -> str:
    """What is to be said of an image in a line."""
    if row.state == "running" and row.step and not row.is_setback:
        share = share_of(row.done, row.total)
        if share and row.total is not None and row.done is not None and row.total > 1024:
            return f"{row.step} {share}, {size(row.done)} of {size(row.total)}"
        return f"{row.step} {share}".strip()
    return row.says


def size(number: float | None) -> str:
    """664 MiB, 1.4 GiB; a dash if it is not known."""
    if number is None:
        return "–"
    value, unit = float(number), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if unit and value < 10 else f"{round(value):,} {UNITS[unit]}"
