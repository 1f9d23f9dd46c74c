"""A dry run of the safety rules over an archive, wherever it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast_images.archive.running import inspect_image
from holdfast_images.errors import InvalidName, ObjectNotFound
from holdfast_images.messages import Inspection, source_of
from holdfast_images.settings import Settings
from holdfast_images.source.fetching import Fetched, fetch
from holdfast_images.source.locations import FileObject, Location, location_of


def inspect_source(settings: Settings, source: str | Path | None, key: str | None, sha256: str | None) -> Inspection:
    """Everything that is wrong with a file, a URL, or a key in the bucket of the settings."""
    if (source is None) == (key is None):
        raise InvalidName("one archive is inspected at a time", hint="give a file, or --s3-key, or --source")
    location = _location(settings, source, key)
    with _archive(settings, Path(source or ""), location, sha256) as (path, fetched):
        report = inspect_image(path, policy=settings.policy, limits=settings.limits, keep_setuid=settings.keep_setuid)
    if fetched is None:
        return Inspection(report=report)
    return Inspection(report=report, fetched_bytes=fetched.size_bytes, checksum=fetched.checksum)


def _location(settings: Settings, source: str | Path | None, key: str | None) -> Location | None:
    if key is not None:
        return source_of(settings, key=key).location
    # A signed URL will do: no job keeps it.
    return location_of(str(source), settings=settings.source) if "://" in str(source) else None


@contextmanager
def _archive(
    settings: Settings, file: Path, location: Location | None, sha256: str | None
) -> Iterator[tuple[Path, Fetched | None]]:
    """The archive as a file as long as the block lasts; how it was fetched, if it had to be."""
    if location is None or isinstance(location, FileObject):
        path = Path(location.path) if location is not None else file
        if not path.exists():
            raise ObjectNotFound(f"there is no file {path}")
        yield path, None
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-inspect-") as directory:
        path = Path(directory, "image.tar")
        fetched = fetch(
            location,
            path,
            limit=settings.limits.image_bytes,
            sha256=sha256,
            connections=settings.connections,
            settings=settings.source,
        )
        yield path, fetched
