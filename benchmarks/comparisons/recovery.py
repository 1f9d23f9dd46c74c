"""A thousand flows are under way when their process is killed: how long from the restart until all are done?"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from measuring.contestants import STAMPS, Ground, Program, Values
from measuring.figures import Figure, Settings, figure
from questions.recovery import FLOWS, kill_and_recover

from comparisons import field

HOLD = "HOLDFAST_BENCH_HOLD"
FAULTS = "lost, doubled or repeated"


def recovery(settings: Settings, ground: Ground) -> Iterator[Figure]:
    """The same flows held in the same steps; the same look for what is lost or doubled."""
    seconds, faults = Values(), Values()
    for _ in range(min(3, settings.repeat)):
        with tempfile.TemporaryDirectory(dir=settings.directory) as folder:
            run = kill_and_recover(settings, Path(folder))
        seconds.add(field.OURS, run.seconds)
        faults.add(field.OURS, run.faults)
        for one in ground.taking_part(field.DBOS_WAL):
            with ground.turn_of(one) as place, ground.stamps() as stamps:
                took, wrong = _dbos(place, stamps)
                seconds.add(one, took)
                faults.add(one, wrong)
    question = f"{FLOWS:,} flows in flight, SIGKILL, restart to all done"
    ours = seconds[field.OURS.title]
    for one, its in seconds.beside(field.OURS, [field.DBOS_WAL]):
        note = f"lost or doubled by {one.name}: {sum(faults[one.title]):.0f}"
        name = f"beside {one.title}"
        yield figure(question, name, ours, "s", besides=its, ratio_to=one.title, at_most=0.1, note=note)
    found = [sum(faults[field.OURS.title])]
    yield figure(question, FAULTS, found, "flows", ratios=found, ratio_to="none", at_most=0)


def _dbos(place: str, stamps: Path) -> tuple[float, int]:
    one, flows = field.DBOS_WAL, ("--jobs", str(FLOWS))
    variables = {STAMPS: str(stamps)}
    with Program(one, "hold", place, *flows, **variables, **{HOLD: "1"}) as held:
        held.wait_for("ready")
        held.kill()
    began = time.perf_counter()
    with Program(one, "recover", place, *flows, **variables) as recovering:
        recovering.wait_for("done")
        seconds = time.perf_counter() - began
    entered = Counter(stamps.read_text().splitlines())
    # Only the step that was killed runs a second time; the fifth runs once.
    wrong = [
        number
        for number in range(FLOWS)
        if any(entered[f"{number} {step}"] != 1 + (step == "abcd"[number % 4]) for step in "abcde")
    ]
    return seconds, len(wrong)
