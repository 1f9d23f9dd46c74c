"""`holdfast image …`: one image, looked at, verified and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.findings import show_findings
from holdfast.cli.output import note, print_fields, print_table, raw, show, time_of
from holdfast.cli.settings import Settings
from holdfast_images.app import Images
from holdfast_images.catalog.rows import Image
from holdfast_images.cli.following import finish
from holdfast_images.cli.looking import SNAPSHOT_COLUMNS, fields_of, snapshot_row
from holdfast_images.cli.opening import opened_images
from holdfast_images.cli.settings import data_option
from holdfast_images.errors import UnknownImage
from holdfast_images.flows.messages import RemoveRequest, RemoveResponse
from holdfast_images.upkeep.verifying import verify_image

MOST_JOBS = 10

image_argument = click.argument("image_id", metavar="IMAGE")


@click.group(cls=Group)
def image() -> None:
    """Look at one image, verify it, remove it."""


@image.command("show")
@image_argument
@click.pass_obj
def show_image(settings: Settings, image_id: str) -> None:
    """Show an image: its file, its device, its snapshots, what was warned of, its last jobs."""
    with opened_images(settings, read_only=True) as images:
        data = _everything(images, found(images, image_id))
        rows = [snapshot_row(row) for row in images.catalog.get_snapshots_by_image_id(image_id)]
    show(settings, data, lambda: _print(data, rows))


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
        raise UnknownImage(f"there is no image {image_id!r}", hint="see which there are: holdfast images")
    return row


def _everything(images: Images, row: Image) -> dict[str, Any]:
    catalog = images.catalog
    verification = catalog.get_verification(row.image_id)
    unpacked = catalog.get_unpacked_image_by_id(row.image_id)
    lock = catalog.get_image_lock(row.image_id)
    return {
        "image": fields_of(row),
        "verification": {**fields_of(verification), "warnings": raw(verification.warnings)} if verification else None,
        "device": fields_of(unpacked) if unpacked else None,
        "snapshots": [fields_of(each) for each in catalog.get_snapshots_by_image_id(row.image_id)],
        "lock": msgspec.structs.asdict(lock) if lock else None,
        "jobs": _jobs(images, row.image_id),
    }


def _jobs(images: Images, image_id: str) -> list[dict[str, Any]]:
    store = images.engine.store
    jobs = [job for name in images.flows for job in store.jobs(flow=name, limit=1000)]
    own = [job for job in jobs if (job.key or "").startswith(f"{image_id}/")]
    own.sort(key=lambda job: job.created_at, reverse=True)
    return [
        {"job_id": job.job_id, "flow": job.flow, "state": job.state, "created_at": job.created_at}
        for job in own[:MOST_JOBS]
    ]


def _print(data: dict[str, Any], snapshots: list[tuple[object, ...]]) -> None:
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
    warnings = msgspec.json.decode(known["warnings"]) if known else []
    _section("warnings", ("code", "path", "detail"), [(w["code"], w["path"], w["detail"]) for w in warnings])
    _section("snapshots", SNAPSHOT_COLUMNS, snapshots)
    jobs = [(job["job_id"], job["flow"], job["state"], time_of(job["created_at"])) for job in data["jobs"]]
    _section("jobs", ("job", "flow", "state", "created"), jobs)


def _section(title: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        print(f"\n{title}")
        print_table(columns, rows)
