"""How long does it take to read every header of an archive and to judge it by all rules?"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from measuring.figures import Figure, Settings, figure

from holdfast_images.archive.compression import open_stream
from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.inspection import inspect_tar
from image_questions.archives import large_files, small_files
from image_questions.programs import run, timed


def validate(settings: Settings) -> Iterator[Figure]:
    """In this process, as the other two are without a start of an interpreter to pay for."""
    place = Path(settings.directory)
    entries = settings.pick(10_000, 100_000)
    yield from _beside_both(settings, f"{entries:,} small files", small_files(place, entries), entries)
    pax = small_files(place, entries, tarfile.PAX_FORMAT)
    yield from _beside_both(settings, f"{entries:,} small files, pax", pax, entries)
    large = settings.pick(500, 5_000)
    yield from _beside_both(settings, f"{large:,} large files", large_files(place, large), large)


def _beside_both(settings: Settings, name: str, archive: Path, entries: int) -> Iterator[Figure]:
    ours, by_tarfile, by_tar = [], [], []
    for _ in range(settings.repeat):
        ours.append(timed(lambda: _scan(archive, entries)))
        by_tarfile.append(timed(lambda: _iterate(archive)))
        by_tar.append(timed(lambda: run(["tar", "-tvf", archive])))
    faster = [theirs / mine for theirs, mine in zip(by_tarfile, ours, strict=True)]
    question = "validate"
    yield figure(
        question, name, ours, "s", ratios=faster, besides=by_tarfile, ratio_to="tarfile (× as fast)", at_least=4
    )
    yield figure(question, name, ours, "s", besides=by_tar, ratio_to="tar -tv", at_most=2)


def _scan(archive: Path, entries: int) -> None:
    descriptor = os.open(archive, os.O_RDONLY)
    try:
        with closing(open_stream(descriptor, limits=Limits())) as stream:
            report = inspect_tar(stream, policy=Policy.STRICT, limits=Limits())
    finally:
        os.close(descriptor)
    if not report.acceptable or report.entries != entries:
        raise SystemExit(f"{archive.name}: {report.entries} entries instead of {entries}, {report.findings[:1]}")


def _iterate(archive: Path) -> None:
    with tarfile.open(archive) as members:
        for _ in members:
            pass
