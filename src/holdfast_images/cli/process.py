"""`holdfast process-image`: from an object to a snapshot, by one command."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode, code_of
from holdfast.cli.output import note, print_fields, print_table, show, time_of
from holdfast.cli.settings import Settings
from holdfast_images.archive.entry import Finding
from holdfast_images.asking import request_of, source_of
from holdfast_images.catalog.place import database_path, is_postgres
from holdfast_images.cli.settings import configure_log, data_option, settings_of
from holdfast_images.errors import ImageError, InvalidName
from holdfast_images.flows.finished import Finished, find_finished
from holdfast_images.flows.messages import ProcessRequest
from holdfast_images.flows.workshop import WARNINGS_KEPT
from holdfast_images.opening import opened_workshop
from holdfast_images.settings import Backend
from holdfast_images.settings import Settings as ImageSettings

ASKED = ("image_id", "snapshot", "sha256", "refresh", "verify")
"""Options that are asked of an image; the others are settings."""
FOR_ONE = ("image_id", "snapshot", "sha256")
WAYS_OUT = {"SETUID": " (--keep-setuid keeps them)"}
SEVERAL_COLUMNS = ("image", "key", "path", "outcome")


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
    asked_at: int = 0
    """When the source was last asked, in milliseconds since 1970."""
    warnings: tuple[Finding, ...] = ()
    """What is odd about the image, or was left out of it; some of each kind."""


class Worked(NamedTuple):
    """What is there of an image now, and how each stage ended."""

    finished: Finished
    stages: dict[str, Stage]


@click.command("process-image", cls=Command)
@click.option("--s3-key", "keys", metavar="KEY", multiple=True, help="The key of the object in the bucket. Repeatable.")
@click.option(
    "--source",
    "sources",
    metavar="URL",
    multiple=True,
    help="Instead of a key: s3://bucket/key, https://host/path or file:///path. Repeatable.",
)
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
@click.option("--refresh", is_flag=True, help="Ask the source whether the object has changed.")
@click.option("--verify", is_flag=True, help="Read everything again, and ask the source, whatever was verified before.")
@click.option("--detach", is_flag=True, help="Submit it, and leave it to a worker.")
@data_option
@click.pass_obj
def process_image(
    settings: Settings, /, keys: tuple[str, ...], sources: tuple[str, ...], detach: bool, **options: Any
) -> int:
    """Fetch, check, unpack and snapshot an image, or several at once.

    What is done already is found and not done again; how long ago its source was asked is told. If a worker runs, it
    does the work; else this command does it. Interrupted or killed, the same command goes on. A refused image ends
    with 3, a missing object with 4; of several images, the first that failed decides.
    """
    flags = {name: value for name, value in options.items() if name not in ASKED}
    own = settings_of(settings, **flags)
    requests = _requests(own, keys, sources, **{name: options[name] for name in ASKED})
    found = [_found(settings, own, request) for request in requests]
    left = [request for request, each in zip(requests, found, strict=True) if each is None]
    if detach and left:
        return _detached(settings, left, **flags)
    if len(requests) > 1:
        return _several(settings, requests, found, **flags)
    [request], [finished] = requests, found
    worked = Worked(finished, dict.fromkeys(Finished.__struct_fields__, Stage())) if finished is not None else None
    if worked is not None:
        _tell_done(settings, worked)
    else:
        from holdfast_images.cli.processing import work  # noqa: PLC0415 - a finished image needs nothing of the engine

        worked = work(settings, request, **flags)
    processed = processed_of(request, *worked)
    show(settings, processed, lambda: _print(processed))
    _tell_warnings(settings, processed)
    return ExitCode.OK


def _tell_warnings(settings: Settings, processed: Processed) -> None:
    """A line for each kind: of the first, and of how many more there are."""
    by_code: dict[str, list[Finding]] = {}
    for each in processed.warnings:
        by_code.setdefault(each.code, []).append(each)
    for code, [first, *others] in by_code.items():
        where = f" at {first.path}" if first.path else ""
        more = f" and {len(others)} more" if others else ""
        note(settings, f"warning: {code}{where}{more}: {first.detail}{WAYS_OUT.get(code, '')}")
    if len(processed.warnings) == WARNINGS_KEPT:
        note(settings, "there may be more of them: holdfast inspect tells all")


def _requests(
    own: ImageSettings, keys: tuple[str, ...], sources: tuple[str, ...], **asked: Any
) -> list[ProcessRequest]:
    named = [source_of(own, key=key) for key in keys] + [source_of(own, url=url) for url in sources]
    if keys and sources and len(named) == 2:
        source_of(own, key=keys[0], url=sources[0])  # says that one of them is enough
    if not named:
        source_of(own)  # says what is missing
    if len(named) > 1 and (wrong := [name for name in FOR_ONE if asked[name]]):
        raise InvalidName(
            f"--{wrong[0].replace('_', '-')} is for one image, and {len(named)} are named",
            hint="process it by a command of its own",
        )
    return [request_of(own, source, snapshot_name=asked["snapshot"], **_without(asked, "snapshot")) for source in named]


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _detached(settings: Settings, requests: Sequence[ProcessRequest], **flags: Any) -> int:
    from holdfast_images.cli.processing import hand_over  # noqa: PLC0415 - as above

    jobs, has_worker = hand_over(settings, requests, **flags)
    data = [{"job_id": job, "image_id": each.image_id} for job, each in zip(jobs, requests, strict=True)]
    show(settings, {"jobs": data}, lambda: print(*jobs, sep="\n"))
    if not has_worker:
        note(settings, "no worker runs: start one with holdfast worker")
    return ExitCode.OK


def _several(
    settings: Settings, requests: Sequence[ProcessRequest], found: Sequence[Finished | None], **flags: Any
) -> int:
    from holdfast_images.cli.main import CODES  # noqa: PLC0415 - one image needs neither
    from holdfast_images.cli.processing import work_at_once  # noqa: PLC0415 - as above

    done = dict.fromkeys(Finished.__struct_fields__, Stage())
    left = [request for request, each in zip(requests, found, strict=True) if each is None]
    worked = iter(work_at_once(settings, left, **flags) if left else [])
    outcomes = [next(worked) if each is None else Worked(each, done) for each in found]
    answers: list[dict[str, Any]] = []
    code = ExitCode.OK
    for request, outcome in zip(requests, outcomes, strict=True):
        if isinstance(outcome, Worked):
            answers.append(msgspec.to_builtins(processed_of(request, *outcome)))
            continue
        code = code or code_of(type(outcome), CODES)
        error = {"type": type(outcome).__name__, "message": str(outcome), "hint": outcome.hint}
        answers.append({"image_id": request.image_id, "s3_key": request.s3_key, "error": error})
    show(settings, {"images": answers}, lambda: print_table(SEVERAL_COLUMNS, map(_row, answers)))
    note(settings, f"{sum('error' not in each for each in answers)} of {len(answers)} image(s) are there")
    return code


def _row(answer: Mapping[str, Any]) -> tuple[object, ...]:
    error = answer.get("error")
    return (answer["image_id"], answer["s3_key"], answer.get("snapshot_path"), error["message"] if error else "done")


def _tell_done(settings: Settings, worked: Worked) -> None:
    for name in worked.stages:
        note(settings, f"{name}: already done")
    asked_at = worked.finished.download.asked_at
    if asked_at:
        note(settings, f"its source was last asked {_ago(asked_at)}: --refresh asks it")


def _ago(then: int) -> str:
    seconds = max(0.0, time.time() - then / 1000)
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def _found(settings: Settings, own: ImageSettings, request: ProcessRequest) -> Finished | None:
    """What is done already, if that is everything. Makes nothing, and leaves it to a job to say what is wrong."""
    place = settings.place
    if not is_postgres(place) and not database_path(place).exists():
        return None
    if is_postgres(place) or own.backend is not Backend.DIRECTORY:
        configure_log(settings)  # files and directories are looked at without a word
    try:
        with opened_workshop(place, own, read_only=True) as shop:
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
        asked_at=downloaded.asked_at,
        warnings=unpacked.warnings if unpacked.unpacked else downloaded.warnings,
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
            ("asked at", time_of(processed.asked_at) if processed.asked_at else None),
            *((name, f"{stage.outcome} in {stage.seconds:.2f} s") for name, stage in processed.stages.items()),
        ]
    )
