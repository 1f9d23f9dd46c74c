"""How much memory does an image take, from its source to its snapshot?"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from measuring.figures import Figure, Settings, figure

from image_questions.archives import gzipped, large_files, small_files
from image_questions.commands import process_image, state_in
from image_questions.programs import emptied, our_environment

LOOK_EVERY = 0.01
AIM_MB = 150


def memory(settings: Settings) -> Iterator[Figure]:
    """The command and the process it shuts in, together, at their highest."""
    place = Path(settings.directory) / "memory"
    entries, large = settings.pick(10_000, 100_000), settings.pick(500, 5_000)
    for name, archive in (
        (f"{entries:,} small files", small_files(place.parent, entries)),
        (f"{large:,} large files, gzip", gzipped(large_files(place.parent, large))),
    ):
        megabytes = _peak(process_image("--source", f"file://{archive}"), emptied(place))
        note = "all of its processes together"
        aim = f"the aim: {AIM_MB} MB"
        share = [megabytes / AIM_MB]
        yield figure("memory", name, [megabytes], "MB RSS", ratios=share, ratio_to=aim, at_most=1, note=note)
    shutil.rmtree(place)


def _peak(command: list[str], state: Path) -> float:
    environment = {**our_environment(), **state_in(state)}
    highest = 0.0
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            highest = max(highest, sum(_resident(pid) for pid in _family(process.pid)))
            time.sleep(LOOK_EVERY)
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return highest


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return  # it has just ended
    for child in " ".join(tasks).split():
        yield from _family(int(child))


def _resident(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0
