"""What nobody needs any more: which it is (pure), and its removal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from holdfast import Engine
from holdfast_images.catalog.tables import Reservation
from holdfast_images.devices.protocol import COLLECTED, NO_ID, Device, DeviceKind, Found
from holdfast_images.errors import ImageError
from holdfast_images.facts import PARTIAL, Facts, gather, mend, work_of, wrong_rows
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.download import discard_update
from holdfast_images.model import file_name, image_of_file, recorded_file_name
from holdfast_images.source.partial import remove_partials

STALE_SECONDS = 3600
DAY = 86_400.0


class Leftover(StrEnum):
    """What kind of thing is left."""

    LOCK = "lock"
    DEVICE = "device"
    SNAPSHOT = "snapshot"
    REMAINS = "remains"
    RESERVATION = "reservation"
    PARTIAL = "partial"
    FILE = "file"
    REFUSAL = "refusal"
    CONTENT = "content"
    """New content of an image that never came into use."""
    ROW = "row"
    """A row that says what is not so: put right, not removed."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to be removed, and why nobody needs it."""

    kind: Leftover
    subject: str
    why: str
    image_id: str = ""
    device_id: int | None = None
    uuid: str = ""
    bytes: int | None = None


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """How an action ended: removed, or why not."""

    action: Action
    removed: bool
    reason: str = ""


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """What was left over, and what became of it; of a dry run nothing became."""

    actions: tuple[Action, ...]
    done: tuple[Collected, ...] = ()

    @property
    def removed(self) -> list[Action]:
        """What is gone, or was put right."""
        return [each.action for each in self.done if each.removed]

    @property
    def kept(self) -> list[Collected]:
        """What could not be removed, and why."""
        return [each for each in self.done if not each.removed]


def collect_garbage(
    ctx: FlowContext, engine: Engine, *, dry_run: bool, refusals_older_than: float | None
) -> Collection:
    """Plan, and unless it is a dry run carry it out. Crash: as in collect."""
    # What is left over is told by the rows: they are put right first.
    rows = plan_rows(ctx)
    done = collect(ctx, engine, rows) if rows and not dry_run else []
    rest = plan(gather(ctx, engine), refusals_older_than=refusals_older_than)
    done += [] if dry_run else collect(ctx, engine, rest)
    return Collection(actions=(*rows, *rest), done=tuple(done))


# --- the plan: pure -------------------------------------------------------------------------------------------


def plan(facts: Facts, *, refusals_older_than: float | None = None) -> list[Action]:
    """Everything that can go. What an unfinished job may still need, or is in use, stays."""
    actions = [*_locks(facts), *_devices(facts), *_remains(facts), *_reservations(facts), *_files(facts)]
    actions += _updates(facts)
    if refusals_older_than is not None:
        actions += _refusals(facts, refusals_older_than)
    return actions


def plan_rows(ctx: FlowContext) -> list[Action]:
    """The rows that can be put right by what is there."""
    wrong = [each for each in wrong_rows(ctx) if each.mend is not None]
    return [Action(kind=Leftover.ROW, subject=each.subject, why=each.why) for each in wrong]


def _locks(facts: Facts) -> Iterator[Action]:
    for lock in facts.locks:
        kind, _, job_id = lock.locked_by.partition(":")
        if kind == "job":
            if job_id in facts.finished:
                yield Action(
                    kind=Leftover.LOCK, subject=lock.locked_by, image_id=lock.image_id, why="its job has ended"
                )
        elif lock.age > STALE_SECONDS:
            why = f"no job holds it, and it is {lock.age} s old"
            yield Action(kind=Leftover.LOCK, subject=lock.locked_by, image_id=lock.image_id, why=why)


def _devices(facts: Facts) -> Iterator[Action]:
    recorded = {row.device_name for row in facts.unpacked} | {row.snapshot_name for row in facts.snapshots}
    reserved = {row.device_id: row for row in facts.reservations}
    names = {row.snapshot_name: row for row in facts.reservations if row.snapshot_name}
    for found in facts.found:
        if found.name in recorded or found.busy:
            continue
        reservation = reserved.get(found.id) if found.id is not None else names.get(found.name)
        reservation = reservation or _reserved_by_name(facts, found)
        device_id = reservation.device_id if found.id is None and reservation else found.id
        image_id = reservation.image_id if reservation else ""
        if not _is_worked_on(facts, image_id, found.name):
            yield Action(
                kind=Leftover.SNAPSHOT if found.kind is DeviceKind.SNAPSHOT else Leftover.DEVICE,
                subject=found.name,
                why=f"{found.health}, in no row and of no unfinished job",
                image_id=image_id,
                device_id=device_id,
                uuid=found.uuid or "",
            )


def _remains(facts: Facts) -> Iterator[Action]:
    for found in facts.disagreements:
        if found.code in COLLECTED:
            yield Action(kind=Leftover.REMAINS, subject=found.subject, why=found.message.partition(":")[0])


def _reserved_by_name(facts: Facts, found: Found) -> Reservation | None:
    """Of what cannot say its own id, the name does."""
    digits = found.name.removeprefix("thin-")
    return next((row for row in facts.reservations if str(row.device_id) == digits), None)


def _reservations(facts: Facts) -> Iterator[Action]:
    used = {row.device_id for row in facts.unpacked} | {row.snapshot_id for row in facts.snapshots}
    there = {found.id for found in facts.found} | {
        int(digits) for found in facts.found if (digits := found.name.removeprefix("thin-")).isdecimal()
    }
    names = {found.name for found in facts.found}
    for row in facts.reservations:
        if str(row.device_id) in used or row.device_id in there or (row.snapshot_name and row.snapshot_name in names):
            continue
        if not _is_worked_on(facts, row.image_id, row.snapshot_name):
            yield Action(
                kind=Leftover.RESERVATION,
                subject=str(row.device_id),
                why="no device has this id, and no unfinished job will make it",
                image_id=row.image_id,
                device_id=row.device_id,
            )


def _files(facts: Facts) -> Iterator[Action]:
    # A file that was unpacked was verified, whatever its row says of the download: the row is to be put right by it.
    unpacked = {row.image_id for row in facts.unpacked}
    recorded = {
        recorded_file_name(row.image_id, row.checksum or "", row.local_path)
        for row in facts.images
        if row.download_status == "completed" or row.image_id in unpacked
    }
    recorded |= {file_name(row.image_id, row.checksum) for row in facts.updates}
    for file in facts.files:
        if file.name.startswith(".") and file.name.endswith(PARTIAL):
            # Its job goes on with it.
            owner = image_of_file(file.name[1:].removesuffix(PARTIAL).rpartition(".")[0]) or ""
            if not file.is_written and not _is_worked_on(facts, owner):
                why = "whoever wrote it is gone, and no unfinished job will go on with it"
                yield Action(kind=Leftover.PARTIAL, subject=file.name, why=why, image_id=owner, bytes=file.size)
            continue
        image_id = image_of_file(file.name)
        if image_id is not None and file.name not in recorded and not _is_worked_on(facts, image_id):
            yield Action(
                kind=Leftover.FILE,
                subject=file.name,
                why="in no row and of no unfinished job",
                image_id=image_id,
                bytes=file.size,
            )


def _refusals(facts: Facts, seconds: float) -> Iterator[Action]:
    for row in facts.refusals:
        age = facts.now - row.refused_at.timestamp()
        if age > seconds:
            why = f"refused {age / DAY:.0f} days ago: {row.code}"
            yield Action(kind=Leftover.REFUSAL, subject=row.s3_key, why=why)


def _updates(facts: Facts) -> Iterator[Action]:
    for row in facts.updates:
        age = facts.now - row.verified_at.timestamp()
        if age > DAY and not _is_worked_on(facts, row.image_id):
            yield Action(
                kind=Leftover.CONTENT,
                subject=file_name(row.image_id, row.checksum),
                why="new content that nobody has unpacked for a day",
                image_id=row.image_id,
                bytes=row.size_bytes,
            )


def _is_worked_on(facts: Facts, image_id: str, name: str = "") -> bool:
    return any((image_id and work.image_id == image_id) or (name and work.snapshot_name == name) for work in facts.work)


# --- carrying it out ------------------------------------------------------------------------------------------


def collect(ctx: FlowContext, engine: Engine, actions: Sequence[Action]) -> list[Collected]:
    """Carry the plan out, leaving alone what has become somebody's meanwhile. One failure does not stop the rest.

    A job that begins at this very moment finds its file or device gone and makes it again.
    Crash: some are removed, the next plan has the others.
    """
    done = [_collected(ctx, engine, action) for action in actions if action.kind is not Leftover.REMAINS]
    return [*done, *_collected_remains(ctx, [each for each in actions if each.kind is Leftover.REMAINS])]


def _collected(ctx: FlowContext, engine: Engine, action: Action) -> Collected:
    now = Facts(now=0.0, work=tuple(work_of(engine)))
    if action.kind is not Leftover.LOCK and _is_worked_on(now, action.image_id, action.subject):
        return Collected(action=action, removed=False, reason="a job has begun to work on it")
    try:
        if _is_recorded(ctx, action):
            return Collected(action=action, removed=False, reason="a job has recorded it")
        return Collected(action=action, removed=_remove(ctx, action))
    except (ImageError, OSError) as error:
        return Collected(action=action, removed=False, reason=str(error))


def _collected_remains(ctx: FlowContext, actions: Sequence[Action]) -> Iterator[Collected]:
    """The backend removes them all at once, and those it has made by removing other things."""
    ctx.devices.collect()
    left = {each.subject for each in ctx.devices.disagreements()} if actions else set()
    for action in actions:
        reason = "somebody works on it, or the log says what failed" if action.subject in left else ""
        yield Collected(action=action, removed=not reason, reason=reason)


def _is_recorded(ctx: FlowContext, action: Action) -> bool:
    """Has it got its row since the plan was made?"""
    catalog = ctx.catalog
    match action.kind:
        case Leftover.DEVICE:
            return any(row.device_name == action.subject for row in catalog.list_unpacked_images())
        case Leftover.SNAPSHOT:
            return any(row.snapshot_name == action.subject for row in catalog.list_snapshots())
        case Leftover.FILE:
            image, update = catalog.get_image_by_id(action.image_id), catalog.get_update(action.image_id)
            is_staged = update is not None and file_name(update.image_id, update.checksum) == action.subject
            is_completed = image is not None and image.download_status == "completed"
            return is_staged or (image is not None and is_completed and ctx.recorded_file(image).name == action.subject)
        case _:
            return False


def _remove(ctx: FlowContext, action: Action) -> bool:
    catalog, directory = ctx.catalog, ctx.images
    match action.kind:
        case Leftover.LOCK:
            return catalog.release_image_lock(action.image_id, action.subject)
        case Leftover.DEVICE | Leftover.SNAPSHOT:
            device_id = NO_ID if action.device_id is None else action.device_id
            ctx.devices.delete(Device(id=device_id, name=action.subject, uuid=action.uuid))
            if action.image_id and action.device_id is not None:
                catalog.release_reservation(action.image_id, action.device_id)
        case Leftover.RESERVATION:
            assert action.device_id is not None
            catalog.release_reservation(action.image_id, action.device_id)
        case Leftover.PARTIAL:
            target = action.subject[1:].removesuffix(PARTIAL).rpartition(".")[0]
            return any(path.name == action.subject for path in remove_partials(directory / target))
        case Leftover.FILE:
            (directory / action.subject).unlink(missing_ok=True)
        case Leftover.ROW:
            return mend(ctx, action.subject, action.why)
        case Leftover.CONTENT:
            update = catalog.get_update(action.image_id)
            if update is None or file_name(update.image_id, update.checksum) != action.subject:
                return False
            discard_update(ctx, action.image_id, update.checksum)
        case Leftover.REFUSAL:
            catalog.forget_refusals(action.subject)
    return True
