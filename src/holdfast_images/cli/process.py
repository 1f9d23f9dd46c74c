"""`holdfast process-image`: from an object to a snapshot, by one command."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast import PipelineResponse
from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_fields, show
from holdfast.cli.settings import Settings
from holdfast_images.app import source_of
from holdfast_images.cli.following import finish
from holdfast_images.cli.opening import data_option, opened_images
from holdfast_images.flows.messages import ActivateResponse, DownloadResponse, ProcessRequest, UnpackResponse


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """How one stage ended: `completed`, or `handoff` if it found its work done."""

    job_id: str
    state: str
    outcome: str
    seconds: float


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
    with opened_images(settings, create=True, **flags) as images:
        request = images.request(
            source_of(images.settings, key=key, url=source),
            image_id=image_id,
            snapshot_name=snapshot,
            sha256=sha256,
            verify=verify,
        )
        response = finish(settings, images, images.submit(request), PipelineResponse)
    processed = processed_of(request, response)
    show(settings, processed, lambda: _print(processed))
    warnings = len(_stage(response, "download", DownloadResponse).warnings)
    if warnings:
        note(settings, f"{warnings} warning(s): see holdfast image show {processed.image_id}")
    return ExitCode.OK


def processed_of(request: ProcessRequest, response: PipelineResponse) -> Processed:
    """What came of a request."""
    downloaded = _stage(response, "download", DownloadResponse)
    unpacked = _stage(response, "unpack", UnpackResponse)
    activated = _stage(response, "activate", ActivateResponse)
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
        stages={
            name: Stage(job_id=one.job_id, state=one.state, outcome=one.outcome, seconds=one.seconds)
            for name, one in response.stages.items()
        },
    )


Answer = DownloadResponse | UnpackResponse | ActivateResponse


def _stage(response: PipelineResponse, name: str, kind: type[Any]) -> Any:
    return msgspec.convert(response.stages[name].response, kind)


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
