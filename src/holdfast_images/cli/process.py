"""`holdfast process-image`: from an object to a snapshot, by one command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_fields, show
from holdfast.cli.settings import Settings
from holdfast_images.asking import request_of, source_of
from holdfast_images.catalog.place import database_path, is_postgres
from holdfast_images.cli.settings import configure_log, data_option, settings_of
from holdfast_images.errors import ImageError
from holdfast_images.flows.finished import Finished, find_finished
from holdfast_images.flows.messages import ProcessRequest
from holdfast_images.opening import opened_workshop
from holdfast_images.settings import Backend
from holdfast_images.settings import Settings as ImageSettings


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """How one stage ended: `completed`, or `handoff` if it found its work done; with no job if none was needed."""

    job_id: str | None = None
    state: str = "succeeded"
    outcome: str = "handoff"
    seconds: float = 0.0


class Processed(msgspec.Struct, frozen=True, kw_only=True):
    """What the command prints with --json. Scripts rely on it: fields are only ever added."""

    image_id: str
    s3_key: str
    checksum: str
    size_bytes: int
    local_path: str
    device_id: str
    device_name: str
    device_path: str
    file_count: int
    snapshot_id: str
    snapshot_name: str
    snapshot_path: str
    stages: dict[str, Stage]


@click.command("process-image", cls=Command)
@click.option("--s3-key", "key", metavar="KEY", help="The key of the object in the bucket.")
@click.option("--source", metavar="URL", help="Instead of a key: s3://bucket/key, https://host/path or file:///path.")
@click.option("--bucket", metavar="NAME", help="The bucket; HOLDFAST_BUCKET or S3_BUCKET.")
@click.option("--endpoint", metavar="URL", help="Of an S3-compatible store; HOLDFAST_ENDPOINT or AWS_ENDPOINT_URL.")
@click.option("--region", metavar="NAME", help="Of the bucket; HOLDFAST_REGION or AWS_REGION.")
@click.option("--anonymous", is_flag=True, default=None, help="Read a public bucket without credentials.")
@click.option("--image-id", metavar="ID", help="What to call the image; derived from bucket and key by default.")
@click.option("--snapshot", metavar="NAME", help="What to call the snapshot; snap-<image id> by default.")
@click.option(
    "--policy",
    type=click.Choice(["strict", "distro"]),
    help="strict (the default) refuses setuid files and absolute symlinks; distro takes what distributions contain.",
)
@click.option("--keep-setuid", is_flag=True, default=None, help="With the policy distro: do not strip setuid bits.")
@click.option("--sha256", metavar="HEX", help="Take only the object with this digest.")
@click.option("--verify", is_flag=True, help="Read everything again, whatever was verified before.")
@data_option
@click.pass_obj
def process_image(
    settings: Settings,
    /,
    key: str | None,
    source: str | None,
    image_id: str | None,
    snapshot: str | None,
    sha256: str | None,
    verify: bool,
    **flags: Any,
) -> int:
    """Fetch, check, unpack and snapshot an image.

    What is done already is found and not done again. If a worker runs, it does the work; else this command does it.
    Interrupted or killed, the same command goes on. A refused image ends with 3, a missing object with 4.
    """
    own = settings_of(settings, **flags)
    request = request_of(
        own,
        source_of(own, key=key, url=source),
        image_id=image_id,
        snapshot_name=snapshot,
        sha256=sha256,
        verify=verify,
    )
    finished, stages = _found(settings, own, request), dict.fromkeys(Finished.__struct_fields__, Stage())
    if finished is not None:
        for name in stages:
            note(settings, f"{name}: already done")
    else:
        from holdfast_images.cli.processing import work  # noqa: PLC0415 - a finished image needs nothing of the engine

        finished, stages = work(settings, request, **flags)
    processed = processed_of(request, finished, stages)
    show(settings, processed, lambda: _print(processed))
    if finished.download.warnings:
        warnings = len(finished.download.warnings)
        note(settings, f"{warnings} warning(s): see holdfast image show {processed.image_id}")
    return ExitCode.OK


def _found(settings: Settings, own: ImageSettings, request: ProcessRequest) -> Finished | None:
    """What is done already, if that is everything. Makes nothing, and leaves it to a job to say what is wrong."""
    place = settings.place
    if not is_postgres(place) and not database_path(place).exists():
        return None
    if is_postgres(place) or own.backend is not Backend.DIRECTORY:
        configure_log(settings)  # files and directories are looked at without a word
    try:
        with opened_workshop(place, own) as shop:
            return find_finished(shop, request)
    except ImageError:
        return None


def processed_of(request: ProcessRequest, finished: Finished, stages: Mapping[str, Stage]) -> Processed:
    """What came of a request."""
    downloaded, unpacked, activated = finished.download, finished.unpack, finished.activate
    return Processed(
        image_id=request.image_id,
        s3_key=request.s3_key,
        checksum=downloaded.checksum,
        size_bytes=downloaded.size_bytes,
        local_path=downloaded.local_path,
        device_id=unpacked.device_id,
        device_name=unpacked.device_name,
        device_path=unpacked.device_path,
        file_count=unpacked.file_count,
        snapshot_id=activated.snapshot_id,
        snapshot_name=activated.snapshot_name,
        snapshot_path=activated.device_path,
        stages=dict(stages),
    )


def _print(processed: Processed) -> None:
    print_fields(
        [
            ("image", processed.image_id),
            ("key", processed.s3_key),
            ("sha256", processed.checksum),
            ("bytes", f"{processed.size_bytes:,}"),
            ("file", processed.local_path),
            ("device", f"{processed.device_name} at {processed.device_path}"),
            ("files", f"{processed.file_count:,}"),
            ("snapshot", f"{processed.snapshot_name} at {processed.snapshot_path}"),
            *((name, f"{stage.outcome} in {stage.seconds:.2f} s") for name, stage in processed.stages.items()),
        ]
    )
