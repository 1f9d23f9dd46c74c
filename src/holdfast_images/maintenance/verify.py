"""Is everything that the catalog records there, and what it should be? Reports all of it, changes none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast import Engine, Finding, Severity
from holdfast_images.archive.entry import ArchiveFinding as Warned
from holdfast_images.archive.entry import Policy
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.tables import Image, Snapshot, UnpackedImage, Verification
from holdfast_images.devices.protocol import COLLECTED, Device, Found, PoolHealth, PoolStatus
from holdfast_images.errors import DeviceLost, ImageError
from holdfast_images.flows.context import FlowContext, recorded_device, uuids_of
from holdfast_images.maintenance.facts import gather
from holdfast_images.maintenance.gc import Action, plan
from holdfast_images.model import Fingerprint, device_number
from holdfast_images.source.partial import fingerprint_of, hash_file


def verify_everything(ctx: FlowContext, engine: Engine, *, deep: bool) -> Iterator[Finding]:
    """Rows, rules, room, every image, and what is left over. What cannot be asked hides nothing else."""
    yield from verify_rows(ctx)
    yield from verify_catalog(ctx.catalog)
    yield from _verify_pool(ctx)
    yield from checked("the catalog", _verify_images(ctx, deep=deep))
    yield from checked("the backend", _verify_leftovers(ctx, engine))


def _verify_images(ctx: FlowContext, *, deep: bool) -> Iterator[Finding]:
    for image in ctx.catalog.list_images():
        yield from checked(f"image {image.image_id}", verify_image(ctx, image, deep=deep))


def _verify_pool(ctx: FlowContext) -> Iterator[Finding]:
    try:
        yield from check_pool(ctx.devices.pool())
    except (ImageError, OSError) as failure:
        yield error("pool-unusable", "pool", with_hint(failure))


def _verify_leftovers(ctx: FlowContext, engine: Engine) -> Iterator[Finding]:
    facts = gather(ctx, engine)
    yield from (each for each in facts.disagreements if each.code not in COLLECTED)
    yield from leftovers(plan(facts))


def verify_catalog(catalog: Catalog) -> Iterator[Finding]:
    """The four rules between downloads, devices and snapshots."""
    for violation in catalog.violations():
        yield error("catalog-rule", f"image {violation.image_id}", f"rule {violation.rule}: {violation.message}")


def verify_rows(ctx: FlowContext) -> Iterator[Finding]:
    """Rows that cannot be read: somebody has written to the database by hand."""
    for table, subject, problem in ctx.catalog.unreadable():
        yield error("row-unreadable", f"{table} {subject}", f"the row cannot be read: {problem}")


def verify_image(ctx: FlowContext, image: Image, *, deep: bool) -> Iterator[Finding]:
    """Its file, its device and its snapshots. `deep` reads them all."""
    subject = f"image {image.image_id}"
    if image.download_status == "completed":
        path = ctx.recorded_file(image)
        known = ctx.catalog.get_verification(image.image_id)
        yield from check_file(image, known, path, *_file_facts(path, deep=deep))
        yield from _check_path(subject, image.local_path, path)
    unpacked = ctx.catalog.get_unpacked_image_by_id(image.image_id)
    if unpacked is not None:
        yield from checked(subject, _verify_device(ctx, image, unpacked, deep=deep))
    for snapshot in ctx.catalog.get_snapshots_by_image_id(image.image_id):
        yield from checked(f"snapshot {snapshot.snapshot_name}", _verify_snapshot(ctx, snapshot))


def checked(subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings, and one that says why there are no more, if the backend cannot be asked."""
    try:
        yield from findings
    except (ImageError, OSError) as failure:
        yield error("not-checked", subject, with_hint(failure))


def _file_facts(path: Path, *, deep: bool) -> tuple[Fingerprint | None, str | None]:
    try:
        return fingerprint_of(path), hash_file(path) if deep else None
    except OSError:
        return None, None


def check_file(
    image: Image, known: Verification | None, path: Path, fingerprint: Fingerprint | None, checksum: str | None
) -> Iterator[Finding]:
    """Pure: the recorded file against what is there; `checksum` if it was read."""
    subject = f"image {image.image_id}"
    if fingerprint is None:
        yield error("file-missing", subject, f"{path} is gone or cannot be read")
    elif checksum is not None and checksum != image.checksum:
        yield error("file-changed", subject, f"{path} has SHA-256 {checksum}, {image.checksum} is recorded")
    elif fingerprint.size != image.size_bytes:
        yield error("file-changed", subject, f"{path} has {fingerprint.size} bytes, {image.size_bytes} are recorded")
    elif known is None or not is_verdict(known):
        yield warning("file-unverified", subject, "nothing is known of how its content was judged")
    elif checksum is None and known.fingerprint != fingerprint:
        yield warning("file-touched", subject, f"{path} was written to or replaced: --deep tells")


def is_verdict(known: Verification) -> bool:
    """Pure: does the row name a policy, and warnings that can be read?"""
    try:
        msgspec.json.decode(known.warnings, type=tuple[Warned, ...])
    except msgspec.MsgspecError:
        return False
    return known.policy in set(Policy)


def _check_path(subject: str, recorded: str, path: Path) -> Iterator[Finding]:
    if recorded != str(path):
        message = f"{recorded} is recorded, and it is at {path}: holdfast gc records that, if the state was moved"
        yield warning("path-moved", subject, message)


def _verify_device(ctx: FlowContext, image: Image, row: UnpackedImage, *, deep: bool) -> Iterator[Finding]:
    subject = f"image {row.image_id}"
    if not row.layout_verified:
        yield warning("device-unverified", subject, f"{row.device_name} is not to be believed: process the image again")
        return
    if recorded_device(row.device_id, row.device_name, "") is None:
        yield error("device-lost", subject, f"{row.device_name!r} with the id {row.device_id!r} cannot be a device")
        return
    found = ctx.devices.look(row.device_name)
    if (lost := _lost(found, row.device_id, row.device_name)) is not None:
        yield error("device-lost", subject, lost)
        return
    assert found is not None
    if found.uuid not in uuids_of(row.image_id, image.checksum or ""):
        yield error("device-lost", subject, f"{row.device_name} holds other content than {image.checksum}")
    elif (lost := _refused(lambda device: ctx.devices.verify(device, deep=deep), found)) is not None:
        yield error("device-lost", subject, lost)
    yield from _check_path(subject, row.device_path, ctx.devices.path_of(row.device_name))


def _verify_snapshot(ctx: FlowContext, row: Snapshot) -> Iterator[Finding]:
    # A snapshot is there to be written to, so nothing is promised of its content.
    subject = f"snapshot {row.snapshot_name}"
    found = ctx.devices.look(row.snapshot_name)
    lost = _lost(found, row.snapshot_id, row.snapshot_name)
    # One that is out of use on purpose is only to be there.
    if lost is None and found is not None and row.active:
        lost = _refused(ctx.devices.verify, found)
    if lost is not None:
        told = error if row.active else warning
        yield told("snapshot-lost", subject, lost)
    yield from _check_path(subject, row.device_path, ctx.devices.path_of(row.snapshot_name))


def _lost(found: Found | None, device_id: str, name: str) -> str | None:
    if found is None:
        return f"{name} is not there"
    if device_number(device_id) is None:
        return f"{device_id!r} cannot be the id of {name}"
    if found.id != device_number(device_id) or not found.uuid:
        return f"{name} is {found.health}, or something else"
    return None


def _refused(verify: Callable[[Device], None], found: Found) -> str | None:
    assert found.id is not None
    try:
        verify(Device(id=found.id, name=found.name, uuid=found.uuid or "", size=found.size))
    except DeviceLost as lost:
        return with_hint(lost)
    return None


def check_pool(pool: PoolStatus) -> Iterator[Finding]:
    """Pure: can more be unpacked?"""
    if pool.health is PoolHealth.LOW:
        yield warning("pool-low", "pool", pool.detail)
    elif pool.health is not PoolHealth.OK:
        yield error("pool-unusable", "pool", pool.detail or str(pool.health))


def leftovers(actions: list[Action]) -> Iterator[Finding]:
    """Pure: what `gc` would remove."""
    for action in actions:
        yield warning(f"left-over-{action.kind}", f"{action.kind} {action.subject}", f"{action.why}: holdfast gc")


def with_hint(failure: Exception) -> str:
    """What is wrong, and what to do about it."""
    hint = getattr(failure, "hint", None)
    return f"{failure}: {hint}" if hint else str(failure)


def error(code: str, subject: str, message: str) -> Finding:
    """A broken promise."""
    return Finding(code=code, severity=Severity.ERROR, subject=subject, message=message)


def warning(code: str, subject: str, message: str) -> Finding:
    """Something to look at."""
    return Finding(code=code, severity=Severity.WARNING, subject=subject, message=message)
