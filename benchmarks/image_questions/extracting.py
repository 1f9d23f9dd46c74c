"""How long does it take until every file of an image is on the disk, with its owner, mode and time?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from measuring.figures import Figure, Settings, figure

from image_questions.archives import gzipped, large_files, small_files
from image_questions.programs import emptied, python, run, sync, timed

EXTRACT = """
import sys
from pathlib import Path
from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.sandbox import extract_image

processes = int(sys.argv[3])
extract_image(
    Path(sys.argv[1]), Path(sys.argv[2]), policy=Policy.STRICT, limits=Limits(), timeout=3600, processes=processes
)
"""
"""The confined child and its parent, from the start of an interpreter to its end."""

TAR = ["--numeric-owner", "-xpf"]


def extract(settings: Settings) -> Iterator[Figure]:
    """Plain archives, by one process that writes and by two, beside GNU tar and bsdtar; timed until all is synced."""
    place = Path(settings.directory)
    entries, large = settings.pick(10_000, 100_000), settings.pick(500, 5_000)
    for name, archive in (
        (f"{entries:,} small files", small_files(place, entries)),
        (f"{large:,} large files", large_files(place, large)),
    ):
        others = {
            "tar -x": lambda target, archive=archive: run(["tar", *TAR, archive, "-C", target]),
            "bsdtar -x": lambda target, archive=archive: run(["bsdtar", *TAR, archive, "-C", target]),
        }
        aims = {"tar -x": 1.0, "bsdtar -x": None}
        yield from _beside(settings, "extract", name, archive, others, aims, writers={", one process": 1, "": 2})


def gunzip(settings: Settings) -> Iterator[Figure]:
    """The same, compressed."""
    place = Path(settings.directory)
    entries, large = settings.pick(10_000, 100_000), settings.pick(500, 5_000)
    for name, plain in (
        (f"{entries:,} small files, gzip", small_files(place, entries)),
        (f"{large:,} large files, gzip", large_files(place, large)),
    ):
        archive = gzipped(plain)
        others = {"gzip -dc | tar -x": lambda target, archive=archive: _piped(archive, target)}
        yield from _beside(settings, "gunzip", name, archive, others, {"gzip -dc | tar -x": 0.7}, writers={"": 2})


def _piped(archive: Path, target: Path) -> None:
    run(["sh", "-ec", 'gzip -dc "$1" | tar --numeric-owner -xpf - -C "$2"', "sh", archive, target])


def _beside(
    settings: Settings,
    question: str,
    name: str,
    archive: Path,
    others: dict[str, Callable[[Path], None]],
    aims: dict[str, float | None],
    writers: dict[str, int],
) -> Iterator[Figure]:
    target = Path(settings.directory) / "extracted"
    ours: dict[str, list[float]] = {how: [] for how in writers}
    theirs: dict[str, list[float]] = {other: [] for other in others}
    for _ in range(settings.repeat):
        for how, processes in writers.items():
            emptied(target)
            command = python(EXTRACT, archive, target, processes)
            ours[how].append(timed(lambda command=command: run(command)))
        count = _count(target)
        for other, command in others.items():
            emptied(target)
            theirs[other].append(timed(lambda command=command: (command(target), sync(target))))
            if _count(target) != count:
                raise SystemExit(f"{archive.name}: {count} files, where {other} makes {_count(target)}")
    shutil.rmtree(target)
    for how, seconds in ours.items():
        for other, values in theirs.items():
            beside = f"{other}, sync"
            yield figure(question, name + how, seconds, "s", besides=values, ratio_to=beside, at_most=aims[other])


def _count(target: Path) -> int:
    return sum(len(files) + len(folders) for _, folders, files in os.walk(target))
