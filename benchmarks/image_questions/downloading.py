"""How long does it take until an object of S3 is a file on the disk, and its SHA-256 known?"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from measuring.figures import Figure, Settings, figure

from holdfast_images.source.fetch import fetch
from holdfast_images.source.partial import hash_file
from image_questions.programs import run, sync, timed
from image_questions.serving import Bucket, bucket


def download(settings: Settings) -> Iterator[Figure]:
    """In this process, beside curl, until the file is synced; and beside the hash of that file alone."""
    size = settings.pick(256 << 20, 1 << 30)
    place = Path(settings.directory) / "download"
    place.mkdir()
    chance = random.Random(1)
    content = b"".join(chance.randbytes(1 << 24) for _ in range(size >> 24))
    with bucket(place) as store:
        store.put("image.tar", content)
        del content
        yield from _beside_curl(settings, store, place, size)
    shutil.rmtree(place)


def _beside_curl(settings: Settings, store: Bucket, place: Path, size: int) -> Iterator[Figure]:
    ours, by_curl, alone = [], [], []
    curled, fetched = place / "by-curl", place / "by-us"
    for _ in range(settings.repeat):
        sync(place)
        by_curl.append(timed(lambda: (run(["curl", "-sSf", "-o", curled, store.signed("image.tar")]), sync(place))))
        alone.append(timed(lambda: run(["openssl", "dgst", "-sha256", curled])))
        sync(place)
        ours.append(timed(lambda: fetch(store.location("image.tar"), fetched, limit=size, settings=store.settings)))
        if hash_file(fetched) != hash_file(curled):
            raise SystemExit("the file that was downloaded is not what curl got")
        fetched.unlink()
        curled.unlink()
    slower = [max(each) for each in zip(by_curl, alone, strict=True)]
    name = f"{size >> 20:,} MiB with SHA-256"
    yield figure("download", name, ours, "s", besides=slower, ratio_to="the slower of the two", at_most=1.2)
    yield figure("download", name, ours, "s", besides=by_curl, ratio_to="curl, sync")
    yield figure("download", name, ours, "s", besides=alone, ratio_to="openssl dgst -sha256")
