"""`holdfast snapshot …`: snapshots made and taken out of use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from holdfast.cli.command import Command, CommandSettings, ExitCode, Group
from holdfast.cli.maintenance import show_findings
from holdfast.cli.output import note, print_fields, print_lines, print_table, show, step_of, time_of
from holdfast_images.cli.progress import watching
from holdfast_images.cli.session import data_option, opened
from holdfast_images.errors import InvalidName, UnknownImage
from holdfast_images.messages import ActivatedSnapshot, ImageJob, ImageReport, ListedImage


@click.group(cls=Group)
def snapshot() -> None:
    """Make a snapshot, take one out of use, or bring it back."""


@snapshot.command()
@click.argument("image_id", metavar="IMAGE")
@click.argument("name")
@data_option
@click.pass_obj
def create(settings: CommandSettings, /, image_id: str, name: str, **flags: Any) -> int:
    """Make one more snapshot of an image, and print its path.

    One of this name that is there and in use is found, and not made again.
    """
    with opened(settings, **flags) as images, watching(settings) as (tell, signals):
        made = images.snapshot(image_id, name, on_progress=tell, stop=signals)
    show(settings, made, lambda: print(made.snapshot_path))
    return ExitCode.OK


@snapshot.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every snapshot that is recorded as in use, as after a reboot.")
@data_option
@click.pass_obj
def activate(settings: CommandSettings, /, names: tuple[str, ...], every: bool, **flags: Any) -> int:
    """Bring snapshots back into use, and print their paths.

    Those that are named, or with --all every one that was in use: thin devices are gone after a reboot, or when
    somebody has removed them; what was written to them is not. One that was taken out of use on purpose comes back
    only by its name. Ends with 1 if one could not be brought back; the others are.
    """
    if bool(names) == every:
        raise InvalidName("give the names of snapshots, or --all", hint="see which there are: holdfast snapshots")
    with opened(settings, **flags) as images, watching(settings) as (tell, signals):
        done = images.activate(*names, on_progress=tell, stop=signals)
    data = [
        {
            "image_id": each.image_id,
            "snapshot_name": each.snapshot_name,
            "snapshot_path": each.snapshot_path,
            "error": _why_not(each),
        }
        for each in done
    ]
    show(settings, data, lambda: print_lines(each.snapshot_path for each in done if each.snapshot_path))
    failed = [each for each in done if each.error is not None]
    for each in failed:
        note(settings, f"{each.snapshot_name} is not in use: {_why_not(each)}")
    return ExitCode.FAILURE if failed else ExitCode.OK


def _why_not(activated: ActivatedSnapshot) -> str:
    error = activated.error
    if error is None:
        return ""
    return f"{error}" + (f" ({error.hint})" if error.hint else "")


@snapshot.command()
@click.argument("name")
@click.option("--delete", is_flag=True, help="Remove it and what was written to it.")
@data_option
@click.pass_obj
def deactivate(settings: CommandSettings, /, name: str, delete: bool, **flags: Any) -> int:
    """Take a snapshot out of use; with --delete for good.

    One that is mounted or open stays as it is.
    """
    with opened(settings, **flags) as images, watching(settings) as (tell, signals):
        done = images.deactivate(name, delete=delete, on_progress=tell, stop=signals)
    show(settings, done, lambda: print(name))
    note(settings, f"{name} is {'deleted' if delete else 'out of use'}")
    return ExitCode.OK


# --- `holdfast images` and `image …`: images listed; one of them looked at, verified and removed --------

IMAGE_COLUMNS = ("image", "key", "download", "activation", "bytes", "device", "snapshots")
SNAPSHOT_COLUMNS = ("snapshot", "image", "id", "active", "path")
STATUS_COLUMNS = ("image", "download", "activation", "device", "snapshot", "active")

image_argument = click.argument("image_id", metavar="IMAGE")


@click.command(cls=Command)
@click.option(
    "--status",
    type=click.Choice(["pending", "downloading", "completed", "failed"]),
    help="Only images whose download has this status.",
)
@click.pass_obj
def images(settings: CommandSettings, status: str | None) -> None:
    """List images."""
    with opened(settings) as manager:
        listed = manager.images(status or "")
    data = [{**fields_of(each.image), "device_name": each.device_name, "snapshots": each.snapshots} for each in listed]
    show(settings, {"images": data}, lambda: print_table(IMAGE_COLUMNS, map(_image_row, listed)))


@click.command(cls=Command)
@click.option("--active", is_flag=True, help="Only those in use.")
@click.pass_obj
def snapshots(settings: CommandSettings, active: bool) -> None:
    """List snapshots."""
    with opened(settings) as manager:
        rows = manager.snapshots(active=active)
    data = {"snapshots": [fields_of(row) for row in rows]}
    show(settings, data, lambda: print_table(SNAPSHOT_COLUMNS, map(_snapshot_row, rows)))


@click.group(cls=Group)
def image() -> None:
    """Look at one image, verify it, remove it."""


@image.command("show")
@image_argument
@click.pass_obj
def show_image(settings: CommandSettings, image_id: str) -> None:
    """Show an image: its file, its device, its snapshots, what was warned of, its last jobs.

    Of one that is on its way and not in the catalog yet: its jobs, and how far they are.
    """
    with opened(settings) as manager:
        report = manager.status(image_id)
    known = report.verification
    data = {
        "image": fields_of(report.image) if report.image else None,
        "verification": {**fields_of(known), "warnings": report.warnings} if known else None,
        "device": fields_of(report.device) if report.device else None,
        "snapshots": [fields_of(each) for each in report.snapshots],
        "lock": msgspec.structs.asdict(report.lock) if report.lock else None,
        "jobs": report.jobs,
    }
    show(settings, data, lambda: _print(report))


@image.command()
@click.option("--s3-key", "key", metavar="KEY", required=True, help="As it was recorded: a key, or a URL.")
@click.pass_obj
def status(settings: CommandSettings, key: str) -> None:
    """Show how far the image of a key is: download, activation, device and snapshots.

    A line for each snapshot.
    """
    with opened(settings) as manager:
        report = manager.status(s3_key=key)
    if report.image is None:
        raise UnknownImage(f"there is no image of the key {key!r}", hint="see which there are: holdfast images")
    rows = list(_status_rows(report))
    lines = [
        (
            row["image_id"],
            row["download_status"],
            row["activation_status"],
            row["device_name"],
            row["snapshot_name"],
            None if row["snapshot_active"] is None else ("yes" if row["snapshot_active"] else "no"),
        )
        for row in rows
    ]
    show(settings, {"s3_key": key, "status": rows}, lambda: print_table(STATUS_COLUMNS, lines))


@image.command()
@image_argument
@click.option("--deep", is_flag=True, help="Read the whole file and everything in the device.")
@data_option
@click.pass_obj
def verify(settings: CommandSettings, /, image_id: str, deep: bool, **flags: Any) -> int:
    """Check that the file, the device and the snapshots of an image are what is recorded.

    Nothing is changed. Ends with 7 if anything was found.
    """
    with opened(settings, **flags) as manager:
        findings = manager.verify(image_id, deep=deep)
    return show_findings(settings, findings)


@image.command()
@image_argument
@click.option("--force", is_flag=True, help="Remove its snapshots as well.")
@data_option
@click.pass_obj
def remove(settings: CommandSettings, /, image_id: str, force: bool, **flags: Any) -> int:
    """Remove an image: its device, its file, and with --force its snapshots.

    What is mounted or open is not removed. Interrupted or killed, the same command goes on.
    """
    with opened(settings, **flags) as manager, watching(settings) as (tell, signals):
        removed = manager.remove(image_id, force=force, on_progress=tell, stop=signals)
    show(settings, removed, lambda: print(image_id))
    note(settings, f"removed {image_id}" + (f" and {', '.join(removed.snapshots)}" if removed.snapshots else ""))
    return ExitCode.OK


def fields_of(row: msgspec.Struct) -> dict[str, Any]:
    """A row as JSON has it: without the number of the row, and times as everywhere in milliseconds since 1970."""
    fields = msgspec.structs.asdict(row)
    fields.pop("id", None)
    return {
        name: round(value.timestamp() * 1000) if isinstance(value, datetime) else value
        for name, value in fields.items()
    }


def _image_row(listed: ListedImage) -> tuple[object, ...]:
    row = listed.image
    states = (row.download_status, row.activation_status)
    return (row.image_id, row.s3_key, *states, row.size_bytes, listed.device_name, ", ".join(listed.snapshots))


def _snapshot_row(row: Any) -> tuple[object, ...]:
    return (row.snapshot_name, row.image_id, row.snapshot_id, "yes" if row.active else "no", row.device_path)


def _status_rows(report: ImageReport) -> Iterator[dict[str, Any]]:
    """One for each snapshot, and one with empty columns if there is none."""
    assert report.image is not None
    for each in report.snapshots or (None,):
        yield {
            "image_id": report.image_id,
            "s3_key": report.image.s3_key,
            "download_status": report.image.download_status,
            "activation_status": report.image.activation_status,
            "device_name": report.device.device_name if report.device else None,
            "snapshot_name": each.snapshot_name if each else None,
            "snapshot_active": each.active if each else None,
        }


def _step_of(job: ImageJob) -> str | None:
    current: Any = job.current  # it has the fields of the engine's own record
    return step_of(current)


def _print(report: ImageReport) -> None:
    _print_row(report) if report.image else print("it is on its way, and not in the catalog yet")
    if report.warnings is None:
        print("\nwhat was warned of cannot be read: holdfast verify-system")
    warnings = [(each.code, each.path, each.detail) for each in report.warnings or ()]
    _section("warnings", ("code", "path", "detail"), warnings)
    _section("snapshots", SNAPSHOT_COLUMNS, [_snapshot_row(each) for each in report.snapshots])
    jobs = [(job.job_id, job.flow, job.state, _step_of(job), time_of(job.created_at)) for job in report.jobs]
    _section("jobs", ("job", "flow", "state", "step", "created"), jobs)


def _print_row(report: ImageReport) -> None:
    row, known, device = report.image, report.verification, report.device
    assert row is not None
    verified_at = time_of(round(known.verified_at.timestamp() * 1000)) if known else None
    print_fields(
        [
            ("image", row.image_id),
            ("key", row.s3_key),
            ("download", row.download_status),
            ("activation", row.activation_status),
            ("sha256", row.checksum),
            ("bytes", f"{row.size_bytes:,}"),
            ("file", row.local_path),
            ("verified", f"{verified_at}, policy {known.policy}" if known else None),
            ("device", f"{device.device_name} at {device.device_path}" if device else None),
            ("files", f"{device.file_count:,} with {device.size_bytes:,} bytes" if device else None),
            ("locked by", report.lock.locked_by if report.lock else None),
        ]
    )


def _section(title: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        print(f"\n{title}")
        print_table(columns, rows)
