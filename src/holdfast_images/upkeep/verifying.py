"""Is everything that the catalog records there, and what it should be? Reports all of it, changes none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast import Finding, Severity
from holdfast_images.app import Images
from holdfast_images.catalog.rows import Image, Snapshot, UnpackedImage, Verification
from holdfast_images.devices.protocol import Device, Found, PoolHealth, PoolStatus
from holdfast_images.errors import DeviceLost, ImageError
from holdfast_images.model import Fingerprint
from holdfast_images.source.hashing import fingerprint_of, hash_file
from holdfast_images.upkeep.collecting import Action


def verify_catalog(images: Images) -> Iterator[Finding]:
    """The four rules between downloads, devices and snapshots."""
    for violation in images.catalog.violations():
        yield error("catalog-rule", f"image {violation.image_id}", f"rule {violation.rule}: {violation.message}")


def verify_image(images: Images, image: Image, *, deep: bool) -> Iterator[Finding]:
    """Its file, its device and its snapshots. `deep` reads them all."""
    if image.download_status == "completed":
        known = images.catalog.get_verification(image.image_id)
        yield from check_file(image, known, *_file_facts(Path(image.local_path), deep=deep))
    unpacked = images.catalog.get_unpacked_image_by_id(image.image_id)
    if unpacked is not None:
        yield from checked(f"image {image.image_id}", _verify_device(images, unpacked, deep=deep))
    for snapshot in images.catalog.get_snapshots_by_image_id(image.image_id):
        yield from checked(f"snapshot {snapshot.snapshot_name}", _verify_snapshot(images, snapshot))


def checked(subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings, and one that says why there are no more, if the backend cannot be asked."""
    try:
        yield from findings
    except (ImageError, OSError) as failure:
        yield error("not-checked", subject, str(failure))


def _file_facts(path: Path, *, deep: bool) -> tuple[Fingerprint | None, str | None]:
    try:
        return fingerprint_of(path), hash_file(path) if deep else None
    except OSError:
        return None, None


def check_file(
    image: Image, known: Verification | None, fingerprint: Fingerprint | None, checksum: str | None
) -> Iterator[Finding]:
    """Pure: the recorded file against what is there; `checksum` if it was read."""
    subject = f"image {image.image_id}"
    if fingerprint is None:
        yield error("file-missing", subject, f"{image.local_path} is gone or cannot be read")
    elif checksum is not None and checksum != image.checksum:
        yield error("file-changed", subject, f"{image.local_path} has SHA-256 {checksum}, {image.checksum} is recorded")
    elif fingerprint.size != image.size_bytes:
        message = f"{image.local_path} has {fingerprint.size} bytes, {image.size_bytes} are recorded"
        yield error("file-changed", subject, message)
    elif known is None:
        yield warning("file-unverified", subject, "nothing is known of how its content was judged")
    elif checksum is None and known.fingerprint != fingerprint:
        yield warning("file-touched", subject, f"{image.local_path} was written to or replaced: --deep tells")


def _verify_device(images: Images, row: UnpackedImage, *, deep: bool) -> Iterator[Finding]:
    subject = f"image {row.image_id}"
    if not row.layout_verified:
        yield warning("device-unverified", subject, f"{row.device_name} is not to be believed: process the image again")
        return
    found = images.devices.look(row.device_name)
    if (lost := _lost(found, row.device_id, row.device_name)) is not None:
        yield error("device-lost", subject, lost)
        return
    assert found is not None
    if (lost := _refused(lambda device: images.devices.verify(device, deep=deep), found, row.device_id)) is not None:
        yield error("device-lost", subject, lost)


def _verify_snapshot(images: Images, row: Snapshot) -> Iterator[Finding]:
    # A snapshot is there to be written to, so nothing is promised of its content.
    subject = f"snapshot {row.snapshot_name}"
    found = images.devices.look(row.snapshot_name)
    lost = _lost(found, row.snapshot_id, row.snapshot_name)
    if lost is None and found is not None:
        lost = _refused(images.devices.verify, found, row.snapshot_id)
    if lost is not None:
        told = error if row.active else warning
        yield told("snapshot-lost", subject, lost)


def _lost(found: Found | None, device_id: str, name: str) -> str | None:
    if found is None:
        return f"{name} is not there"
    if found.id != int(device_id) or not found.uuid:
        return f"{name} is {found.health}, or something else"
    return None


def _refused(verify: Callable[[Device], None], found: Found, device_id: str) -> str | None:
    try:
        verify(Device(id=int(device_id), name=found.name, uuid=found.uuid or "", size=found.size))
    except DeviceLost as lost:
        return str(lost)
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


def error(code: str, subject: str, message: str) -> Finding:
    """A broken promise."""
    return Finding(code=code, severity=Severity.ERROR, subject=subject, message=message)


def warning(code: str, subject: str, message: str) -> Finding:
    """Something to look at."""
    return Finding(code=code, severity=Severity.WARNING, subject=subject, message=message)
