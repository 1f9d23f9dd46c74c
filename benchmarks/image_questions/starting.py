"""How long does it take when there is nothing to do?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from measuring.figures import Figure, Settings, figure

from image_questions.archives import small_files
from image_questions.commands import holdfast, process_image, state_in
from image_questions.programs import emptied, run, timed


def again(settings: Settings) -> Iterator[Figure]:
    """process-image of an image that is finished, and --help; the aims are seconds."""
    place = emptied(Path(settings.directory) / "again")
    archive = small_files(place.parent, settings.pick(10_000, 100_000))
    finished = process_image("--source", f"file://{archive}")
    environment = state_in(place)
    run(finished, **environment)
    for name, command, aim in (
        ("re-run of a finished image", finished, 0.15),
        ("holdfast --help", holdfast("--help"), 0.1),
    ):
        rounds = range(settings.pick(5, 15))
        seconds = [timed(lambda command=command: run(command, **environment)) for _ in rounds]
        shares = [each / aim for each in seconds]
        yield figure("again", name, seconds, "s", ratios=shares, ratio_to=f"the aim: {aim:g} s", at_most=1)
    shutil.rmtree(place)
