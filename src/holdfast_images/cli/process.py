"""`holdfast process-image` and `inspect`: from an object to a snapshot, and a dry run of the rules over one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from holdfast.cli.command import Command, CommandSettings, ExitCode, code_of
from holdfast.cli.output import note, print_fields, print_table, show, time_of
from holdfast_images.cli.session import begin, configure_log, data_option, image_manager
from holdfast_images.errors import InvalidName
from holdfast_images.flows.schemas import ProcessRequest
from holdfast_images.manager import ImageManager
from holdfast_images.messages import Processed
from holdfast_images.settings import Backend

ASKED = ("image_id", "snapshot_name", "sha256", "refresh", "verify")
"""Options that are asked of an image; the others are settings."""
FOR_ONE = ("image_id", "snapshot_name", "sha256")
OPTIONS = {"image_id": "image-id", "snapshot_name": "snapshot"}
AS_PROCESS_IMAGE = {"bucket", "endpoint", "region", "anonymous", "sha256", "policy", "keep_setuid"}
WAYS_OUT = {"SETUID": " (--keep-setuid keeps them)"}
SEVERAL_COLUMNS = ("image", "key", "path", "outcome")


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
@click.option(
    "--snapshot", "snapshot_name", metavar="NAME", help="What to call the snapshot; snap-<image id> by default."
)
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
    settings: CommandSettings, /, keys: tuple[str, ...], sources: tuple[str, ...], detach: bool, **options: Any
) -> int:
    """Fetch, check, unpack and snapshot an image, or several at once.

    What is done already is found and not done again; how long ago its source was asked is told. If a worker runs, it
    does the work; else this command does it. Interrupted or killed, the same command goes on. A refused image ends
    with 3, a missing object with 4; of several images, the first that failed decides.
    """
    asked = {name: options.pop(name) for name in ASKED}
    with image_manager(settings, **options) as images:
        requests = _requests(images, keys, sources, **asked)
        if images.is_shared or images.settings.backend is not Backend.DIRECTORY:
            configure_log(settings)  # files and directories are looked at without a word
        found = [images.find(request) for request in requests]
        left = [request for request, each in zip(requests, found, strict=True) if each is None]
        if left:
            begin(settings, images)
        if detach and left:
            return _submit(settings, images, left)
        if len(requests) > 1:
            return _process_all(settings, images, requests)
        [request], [processed] = requests, found
        return _show(settings, processed if processed is not None else _process(settings, images, request))


def _requests(
    images: ImageManager, keys: tuple[str, ...], sources: tuple[str, ...], **asked: Any
) -> list[ProcessRequest]:
    named: list[dict[str, Any]] = [{"key": key} for key in keys] + [{"source": url} for url in sources]
    if keys and sources and len(named) == 2:
        images.request(sources[0], key=keys[0])  # says that one of them is enough
    if not named:
        images.request()  # says what is missing
    if len(named) > 1 and (wrong := [name for name in FOR_ONE if asked[name]]):
        raise InvalidName(
            f"--{OPTIONS.get(wrong[0], wrong[0])} is for one image, and {len(named)} are named",
            hint="process it by a command of its own",
        )
    return [images.request(**name, **asked) for name in named]


def _process(settings: CommandSettings, images: ImageManager, request: ProcessRequest) -> Processed:
    from holdfast_images.cli.progress import watching  # noqa: PLC0415 - a finished image needs nothing of the engine

    with watching(settings) as (tell, signals):
        return images.process(request, on_progress=tell, stop=signals)


def _show(settings: CommandSettings, processed: Processed) -> int:
    if processed.was_there:
        _tell_done(settings, processed)
    show(settings, processed, lambda: _print(processed))
    _tell_warnings(settings, processed)
    return ExitCode.OK


def _tell_warnings(settings: CommandSettings, processed: Processed) -> None:
    """A line for each kind: of the first, and of how many more there are."""
    by_code: dict[str, list[Any]] = {}
    for each in processed.warnings:
        by_code.setdefault(each.code, []).append(each)
    for code, [first, *others] in by_code.items():
        where = f" at {first.path}" if first.path else ""
        more = f" and {len(others)} more" if others else ""
        note(settings, f"warning: {code}{where}{more}: {first.detail}{WAYS_OUT.get(code, '')}")
    if processed.may_have_more_warnings:
        note(settings, "there may be more of them: holdfast inspect tells all")


def _submit(settings: CommandSettings, images: ImageManager, requests: Sequence[ProcessRequest]) -> int:
    submission = images.submit(*requests)
    show(settings, {"jobs": submission.jobs}, lambda: print(*(each.job_id for each in submission.jobs), sep="\n"))
    if not submission.has_worker:
        note(settings, "no worker runs: start one with holdfast worker")
    return ExitCode.OK


def _process_all(settings: CommandSettings, images: ImageManager, requests: Sequence[ProcessRequest]) -> int:
    from holdfast_images.cli.main import CODES  # noqa: PLC0415 - one image needs neither
    from holdfast_images.cli.progress import watching  # noqa: PLC0415 - as above

    with watching(settings) as (_, signals):
        outcomes = images.process_all(requests, stop=signals)
    answers: list[dict[str, Any]] = []
    code = ExitCode.OK
    for outcome in outcomes:
        if isinstance(outcome, Processed):
            answers.append(msgspec.to_builtins(outcome))
            continue
        failure = outcome.error
        code = code or code_of(type(failure), CODES)
        error = {"type": type(failure).__name__, "message": str(failure), "hint": failure.hint}
        answers.append({"image_id": outcome.image_id, "s3_key": outcome.s3_key, "error": error})
    show(settings, {"images": answers}, lambda: print_table(SEVERAL_COLUMNS, map(_row, answers)))
    note(settings, f"{sum('error' not in each for each in answers)} of {len(answers)} image(s) are there")
    return code


def _row(answer: Mapping[str, Any]) -> tuple[object, ...]:
    error = answer.get("error")
    return (answer["image_id"], answer["s3_key"], answer.get("snapshot_path"), error["message"] if error else "done")


def _tell_done(settings: CommandSettings, processed: Processed) -> None:
    for name in processed.stages:
        note(settings, f"{name}: already done")
    if processed.asked_at:
        note(settings, f"its source was last asked {_ago(processed.asked_at)}: --refresh asks it")


def _ago(then: int) -> str:
    seconds = max(0.0, time.time() - then / 1000)
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


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


@click.command(cls=Command)
@click.argument("file", required=False)
@click.option("--s3-key", "key", metavar="KEY", help="The key of the object in the bucket.")
@click.option("--source", metavar="URL", help="Instead of a key: s3://bucket/key, https://host/path or file:///path.")
@click.pass_obj
def inspect(
    settings: CommandSettings,
    /,
    file: str | None,
    key: str | None,
    source: str | None,
    sha256: str | None,
    **flags: Any,
) -> int:
    """Say everything that is wrong with an archive.

    It is a file, or an object as process-image would fetch it.

    Nothing is unpacked and nothing recorded; an object is fetched into a temporary directory (TMPDIR) and removed
    again. FILE may be a URL. Ends with 3 if process-image would refuse it, with 4 if it is not there.
    """
    with image_manager(settings, **flags) as images:
        if file is not None and source is not None:
            raise InvalidName("one archive is inspected at a time", hint="give a file, or --s3-key, or --source")
        if source is not None and "://" not in source:
            images.request(source)  # says what a URL is
        found = images.inspect(source if source is not None else file, key=key, sha256=sha256)
    if found.fetched_bytes is not None:
        note(settings, f"fetched {found.fetched_bytes:,} bytes, sha256 {found.checksum}")
    report = found.report
    rows = [(each.severity, each.code, each.path, each.offset, each.detail) for each in report.findings]
    columns = ("severity", "code", "path", "offset", "detail")
    show(settings, report, lambda: print_table(columns, rows) if rows else None)
    verdict = "acceptable" if report.acceptable else "refused"
    left_out = f" (and {report.findings_left_out} more findings)" if report.findings_left_out else ""
    counted = f"{report.entries:,} entries, {report.total_bytes:,} bytes{left_out}"
    note(settings, f"{verdict} by policy {report.policy}: {counted}")
    return ExitCode.OK if report.acceptable else ExitCode.REFUSED


inspect.params += [option for option in process_image.params if option.name in AS_PROCESS_IMAGE]
