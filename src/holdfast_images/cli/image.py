"""`holdfast image …`: one image, looked at, verified and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from holdfast import JobState
from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.findings import show_findings
from holdfast.cli.output import note, print_fields, print_table, show, step_of, time_of
from holdfast.cli.settings import Settings
from holdfast_images.app import Images
from holdfast_images.archive.entry import Finding
from holdfast_images.catalog.rows import Image, Verification
from holdfast_images.cli.following import finish
from holdfast_images.cli.looking import SNAPSHOT_COLUMNS, at_its_path, fields_of, snapshot_row
from holdfast_images.cli.opening import opened_images
from holdfast_images.cli.settings import data_option
from holdfast_images.errors import UnknownImage
from holdfast_images.flows.messages import RemoveRequest, RemoveResponse
from holdfast_images.upkeep.verifying import verify_image

MOST_JOBS = 10
UNFINISHED = (JobState.PENDING, JobState.RUNNING)

image_argument = click.argument("image_id", metavar="IMAGE")


@click.group(cls=Group)
def image() -> None:
    """Look at one image, verify it, remove it."""


@image.command("show")
@image_argument
@click.pass_obj
def show_image(settings: Settings, image_id: str) -> None:
    """Show an image: its file, its device, its snapshots, what was warned of, its last jobs.

    Of one that is on its way and not in the catalog yet: its jobs, and how far they are.
    """
    with opened_images(settings, read_only=True) as images:
        data = _everything(images, image_id)
        if data["image"] is None and not any(job["state"] in UNFINISHED for job in data["jobs"]):
            raise _unknown(image_id, data["jobs"])
        taken = images.catalog.get_snapshots_by_image_id(image_id)
        rows = [snapshot_row(at_its_path(images, row)) for row in taken]
    show(settings, data, lambda: _print(data, rows))


@image.command()
@click.option("--s3-key", "key", metavar="KEY", required=True, help="As it was recorded: a key, or a URL.")
@click.pass_obj
def status(settings: Settings, key: str) -> None:
    """Show how far the image of a key is: download, activation, device and snapshots.

    A line for each snapshot.
    """
    with opened_images(settings, read_only=True) as images:
        rows = images.catalog.get_image_status(key)
    if not rows:
        raise UnknownImage(f"there is no image of the key {key!r}", hint="see which there are: holdfast images")
    lines = [
        (
            row.image_id,
            row.download_status,
            row.activation_status,
            row.device_name,
            row.snapshot_name,
            None if row.snapshot_active is None else ("yes" if row.snapshot_active else "no"),
        )
        for row in rows
    ]
    columns = ("image", "download", "activation", "device", "snapshot", "active")
    data = {"s3_key": key, "status": [msgspec.structs.asdict(row) for row in rows]}
    show(settings, data, lambda: print_table(columns, lines))


@image.command()
@image_argument
@click.option("--deep", is_flag=True, help="Read the whole file and everything in the device.")
@data_option
@click.pass_obj
def verify(settings: Settings, /, image_id: str, deep: bool, **flags: Any) -> int:
    """Check that the file, the device and the snapshots of an image are what is recorded.

    Nothing is changed. Ends with 7 if anything was found.
    """
    with opened_images(settings, read_only=True, **flags) as images:
        findings = list(verify_image(images, found(images, image_id), deep=deep))
    return show_findings(settings, findings)


@image.command()
@image_argument
@click.option("--force", is_flag=True, help="Remove its snapshots as well.")
@data_option
@click.pass_obj
def remove(settings: Settings, /, image_id: str, force: bool, **flags: Any) -> int:
    """Remove an image: its device, its file, and with --force its snapshots.

    What is mounted or open is not removed. Interrupted or killed, the same command goes on.
    """
    request = RemoveRequest(image_id=image_id, force=force)
    with opened_images(settings, **flags) as images:
        found(images, image_id)
        key = f"{image_id}/{'force' if force else 'careful'}"
        job = images.engine.submit(images.flow("remove-image"), request, key=key)
        removed = finish(settings, images, job, RemoveResponse, name=f"remove {image_id}")
    show(settings, removed, lambda: print(image_id))
    note(settings, f"removed {image_id}" + (f" and {', '.join(removed.snapshots)}" if removed.snapshots else ""))
    return ExitCode.OK


def found(images: Images, image_id: str) -> Image:
    """The row of an image that has to be there."""
    row = images.catalog.get_image_by_id(image_id)
    if row is None:
        raise _unknown(image_id, [])
    return row


def _unknown(image_id: str, jobs: Sequence[dict[str, Any]]) -> UnknownImage:
    if not jobs:
        return UnknownImage(f"there is no image {image_id!r}", hint="see which there are: holdfast images")
    last = jobs[0]
    return UnknownImage(
        f"there is no image {image_id!r}; its last job, {last['flow']}, is {last['state']}",
        hint=f"see why: holdfast job show {last['job_id']}",
    )


def _everything(images: Images, image_id: str) -> dict[str, Any]:
    catalog = images.catalog
    row = catalog.get_image_by_id(image_id)
    verification = catalog.get_verification(image_id)
    unpacked = catalog.get_unpacked_image_by_id(image_id)
    lock = catalog.get_image_lock(image_id)
    return {
        "image": {**fields_of(row), "local_path": str(images.shop.recorded_file(row))} if row else None,
        "verification": {**fields_of(verification), "warnings": _warnings(verification)} if verification else None,
        "device": fields_of(at_its_path(images, unpacked)) if unpacked else None,
        "snapshots": [fields_of(at_its_path(images, each)) for each in catalog.get_snapshots_by_image_id(image_id)],
        "lock": msgspec.structs.asdict(lock) if lock else None,
        "jobs": _jobs(images, image_id),
    }


def _warnings(known: Verification) -> tuple[Finding, ...] | None:
    """None if somebody has been at the row: verify-system tells of it, and processing the image writes it anew."""
    try:
        return msgspec.json.decode(known.warnings, type=tuple[Finding, ...])
    except msgspec.MsgspecError:
        return None


def _jobs(images: Images, image_id: str) -> list[dict[str, Any]]:
    store = images.engine.store
    jobs = [job for name in images.flows for job in store.jobs(flow=name, limit=1000)]
    own = [job for job in jobs if (job.key or "").startswith(f"{image_id}/")]
    own.sort(key=lambda job: job.created_at, reverse=True)
    shown = own[:MOST_JOBS]
    current = {one.job_id: one for one in store.running([job.job_id for job in shown])}
    return [
        {
            "job_id": job.job_id,
            "flow": job.flow,
            "state": job.state,
            "created_at": job.created_at,
            "current": current.get(job.job_id),
        }
        for job in shown
    ]


def _print(data: dict[str, Any], snapshots: list[tuple[object, ...]]) -> None:
    known = data["verification"]
    _print_row(data) if data["image"] else print("it is on its way, and not in the catalog yet")
    warnings = known["warnings"] if known else ()
    if warnings is None:
        print("\nwhat was warned of cannot be read: holdfast verify-system")
    _section("warnings", ("code", "path", "detail"), [(each.code, each.path, each.detail) for each in warnings or ()])
    _section("snapshots", SNAPSHOT_COLUMNS, snapshots)
    jobs = [
        (job["job_id"], job["flow"], job["state"], step_of(job["current"]), time_of(job["created_at"]))
        for job in data["jobs"]
    ]
    _section("jobs", ("job", "flow", "state", "step", "created"), jobs)


def _print_row(data: dict[str, Any]) -> None:
    row, known, device = data["image"], data["verification"], data["device"]
    print_fields(
        [
            ("image", row["image_id"]),
            ("key", row["s3_key"]),
            ("download", row["download_status"]),
            ("activation", row["activation_status"]),
            ("sha256", row["checksum"]),
            ("bytes", f"{row['size_bytes']:,}"),
            ("file", row["local_path"]),
            ("verified", f"{time_of(known['verified_at'])}, policy {known['policy']}" if known else None),
            ("device", f"{device['device_name']} at {device['device_path']}" if device else None),
            ("files", f"{device['file_count']:,} with {device['size_bytes']:,} bytes" if device else None),
            ("locked by", data["lock"]["locked_by"] if data["lock"] else None),
        ]
    )


def _section(title: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        print(f"\n{title}")
        print_table(columns, rows)
