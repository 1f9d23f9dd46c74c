"""`holdfast inspect`: a dry run of the safety rules over an archive."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_table, show
from holdfast.cli.settings import Settings
from holdfast_images.archive.entry import Report
from holdfast_images.archive.running import inspect_image
from holdfast_images.asking import source_of
from holdfast_images.cli.process import process_image
from holdfast_images.cli.settings import settings_of
from holdfast_images.errors import InvalidName, ObjectNotFound
from holdfast_images.settings import Settings as ImageSettings
from holdfast_images.source.fetching import fetch
from holdfast_images.source.locations import FileObject, Location, location_of

AS_PROCESS_IMAGE = {"bucket", "endpoint", "region", "anonymous", "sha256", "policy", "keep_setuid"}


@click.command(cls=Command)
@click.argument("file", required=False)
@click.option("--s3-key", "key", metavar="KEY", help="The key of the object in the bucket.")
@click.option("--source", metavar="URL", help="Instead of a key: s3://bucket/key, https://host/path or file:///path.")
@click.pass_obj
def inspect(
    settings: Settings,
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
    own = settings_of(settings, **flags)
    if file is not None and "://" in file and source is None:
        file, source = None, file
    if [file, key, source].count(None) != 2:
        raise InvalidName("one archive is inspected at a time", hint="give a file, or --s3-key, or --source")
    with _archive(settings, own, file, _location(own, key, source), sha256) as path:
        report = inspect_image(path, policy=own.policy, limits=own.limits, keep_setuid=own.keep_setuid)
    show(settings, report, lambda: _print(report))
    note(settings, _verdict(report))
    return ExitCode.OK if report.acceptable else ExitCode.REFUSED


inspect.params += [option for option in process_image.params if option.name in AS_PROCESS_IMAGE]


def _location(own: ImageSettings, key: str | None, source: str | None) -> Location | None:
    if key is not None:
        return source_of(own, key=key).location
    # A signed URL will do: no job keeps it.
    return location_of(source, settings=own.source) if source is not None else None


@contextmanager
def _archive(
    settings: Settings, own: ImageSettings, file: str | None, location: Location | None, sha256: str | None
) -> Iterator[Path]:
    """The archive as a file, as long as the block lasts."""
    if location is None or isinstance(location, FileObject):
        path = Path(location.path if location is not None else file or "")
        if not path.exists():
            raise ObjectNotFound(f"there is no file {path}")
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-inspect-") as directory:
        path = Path(directory, "image.tar")
        fetched = fetch(
            location,
            path,
            limit=own.limits.image_bytes,
            sha256=sha256,
            connections=own.connections,
            settings=own.source,
        )
        note(settings, f"fetched {fetched.size_bytes:,} bytes, sha256 {fetched.checksum}")
        yield path


def _print(report: Report) -> None:
    rows = [(each.severity, each.code, each.path, each.offset, each.detail) for each in report.findings]
    if rows:
        print_table(("severity", "code", "path", "offset", "detail"), rows)


def _verdict(report: Report) -> str:
    verdict = "acceptable" if report.acceptable else "refused"
    left_out = f" (and {report.findings_left_out} more findings)" if report.findings_left_out else ""
    return f"{verdict} by policy {report.policy}: {report.entries:,} entries, {report.total_bytes:,} bytes{left_out}"
