"""How long does it take from an object in S3 to a snapshot, with every check, on the directory backend?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from measuring.figures import Figure, Settings, figure

from holdfast_images.source.partial import hash_file
from image_questions.archives import gzipped, large_files, small_files
from image_questions.commands import process_image, state_in
from image_questions.programs import emptied, run, timed
from image_questions.serving import Bucket, bucket

SCRIPT = """
cd "$1"
curl -sSf -o image "$2"
echo "$3  image" | sha256sum --check --quiet
tar -tf image > listing
mkdir device
tar --numeric-owner -xpf image -C device
sync -f device
cp --reflink=auto -a device snapshot
sync -f snapshot
"""
"""As a platform engineer would write it. It checks the digest and that tar can read the archive, and nothing else."""


def pipeline(settings: Settings) -> Iterator[Figure]:
    """The whole command, beside a shell script that downloads, checks, unpacks, syncs and copies."""
    place = Path(settings.directory) / "pipeline"
    place.mkdir()
    entries, large = settings.pick(10_000, 100_000), settings.pick(500, 5_000)
    images = {
        f"{entries:,} small files": small_files(place.parent, entries),
        f"{large:,} large files": large_files(place.parent, large),
    }
    images |= {f"{name}, gzip": gzipped(plain) for name, plain in images.items()}
    with bucket(place) as store:
        for name, archive in images.items():
            store.put(archive.name, archive)
            yield _beside_script(settings, name, store, archive, place)
    shutil.rmtree(place)


def _beside_script(settings: Settings, name: str, store: Bucket, archive: Path, place: Path) -> Figure:
    digest = hash_file(archive)
    command = process_image("--s3-key", archive.name, "--sha256", digest)
    seconds, others = [], []
    # Fewer rounds than elsewhere: these are the longest.
    for _ in range(max(1, settings.repeat - 2)):
        ours, theirs = emptied(place / "ours"), emptied(place / "script")
        environment = {**store.environment, **state_in(ours)}
        seconds.append(timed(lambda environment=environment: run(command, **environment)))
        script = ["sh", "-euc", SCRIPT, "sh", theirs, store.signed(archive.name), digest]
        others.append(timed(lambda script=script: run(script)))
    return figure("pipeline", name, seconds, "s", besides=others, ratio_to="shell script", at_most=0.8)
