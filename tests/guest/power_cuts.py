"""Power cuts: the guest is killed, booted again on the same disks, and must come to the same end.

Each boot finishes what the cut before has left, is compared with an undisturbed run, and is cut at the next point.
"""

from __future__ import annotations

import json
import queue
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.devicemapper.flow_context import image_of
from tests.guest.machine import GUEST_FAILED, Guest, make_disk, python

BOOT_TIMEOUT = 120.0
FIRST_POINT = "step.check-unpacked.before"
FILES, FILE_BYTES = 300, 40_000

Say = Callable[[str], None]


class PowerCuts:
    """A guest, its disks, and what must come of the image on them."""

    def __init__(self, place: Path, say: Say = print) -> None:
        self._say = say
        self._source = place / "image.tar"
        self._source.write_bytes(image_of(FILES, FILE_BYTES))
        self._disks = [
            make_disk(place / "state.img", 256 << 20, formatted=True),
            make_disk(place / "metadata.img", 8 << 20),
            make_disk(place / "data.img", 1 << 30),
        ]
        self._boots = 0
        self._expected: Any = None
        self.points: list[str] = []
        self.problems: list[str] = []
        self.survived = 0

    def learn(self) -> None:
        """Two undisturbed lives: the first says which points there are, the second what must come of the image."""
        for _ in range(2):
            told = self._boot(None)
            self._judge("an undisturbed run", told)
            self.points = told.get("points", [])
        if not self.points:
            raise RuntimeError(f"the undisturbed run failed: {self.problems}")

    def places(self) -> Sequence[int]:
        """Every point of unpack and activate."""
        return range(self.points.index(FIRST_POINT), len(self.points))

    def cut_at(self, point: int, *options: str) -> bool:
        """Cut the power at a point. True if it was passed and, what came before being whole, cut."""
        told = self._boot(point, *options)
        if told.get("cut") != self.points[point]:
            self.problems.append(f"point {point} ({self.points[point]}) was not passed: {told.get('cut')}")
            return False
        return True

    def cut_while_extracting(self, chance: random.Random) -> None:
        """Cut the power at some instant of the extraction."""
        self._boot(None, delay=chance.random() * 1.5)

    def finish(self, what: str) -> None:
        """Boot after a cut, and compare."""
        before = len(self.problems)
        self._judge(what, self._boot(None))
        self.survived += len(self.problems) == before

    def run(self, points: Sequence[int], *, random_cuts: int, chance: random.Random) -> None:
        """Cut after cut, each boot judging the one before."""
        cuts: list[tuple[str, int | None]] = [(f"a cut at {self.points[point]}", point) for point in points]
        cuts += [(f"random cut {number + 1} while extracting", None) for number in range(random_cuts)]
        chance.shuffle(cuts)
        before: str | None = None
        for what, point in [*cuts, ("", None)]:
            problems = len(self.problems)
            if not what:
                told = self._boot(None)
            elif point is None:
                told = self._boot(None, delay=chance.random() * 1.5)
            else:
                told = self._boot(point)
                if told.get("cut") != self.points[point]:
                    self.problems.append(f"{what}: it was not passed")
            if before is not None:
                self._judge(before, told)
                good = len(self.problems) == problems
                self.survived += good
                self._say(f"{'survived' if good else 'NOT SURVIVED'}: {before}")
            before = what

    def _judge(self, what: str, told: dict[str, Any]) -> None:
        """Is what the boot found the end that an undisturbed run comes to?"""
        end = told.get("end")
        if end is None:
            if self._expected is not None or "points" not in told:
                self.problems.append(f"after {what}: no end was reached: {told}")
            return
        if self._expected is None:
            self._expected = end["seen"]
        if end["seen"] != self._expected:
            self.problems.append(f"after {what}: ended as {end['seen']}, not as {self._expected}")
        self.problems += [f"after {what}: {fault}" for fault in end["faults"]]
        removed = told.get("removed", {"faults": ["the image was not removed"], "left": []})
        self.problems += [f"removed after {what}: {fault}" for fault in removed["faults"]]
        if removed["left"]:
            self.problems.append(f"after {what}: the pool still has {removed['left']}")

    def _boot(self, stop_at: int | None, *options: str, delay: float | None = None) -> dict[str, Any]:
        """One life, until it ends, is cut at a point, or some time after it has begun to extract."""
        number, self._boots = self._boots, self._boots + 1
        command = [python(), "-m", "tests.devicemapper.life", "--number", str(number), "--source", str(self._source)]
        command += [] if stop_at is None else ["--stop-at", str(stop_at)]
        lines: queue.Queue[str] = queue.Queue()
        told: dict[str, Any] = {}
        talk: list[str] = []
        with Guest([*command, *options], disks=self._disks, on_line=lines.put) as guest:
            deadline = time.monotonic() + BOOT_TIMEOUT
            while "cut" not in told:
                try:
                    line = lines.get(timeout=0.2)
                except queue.Empty:
                    if guest.has_ended() and lines.empty():
                        break
                    if time.monotonic() > deadline:
                        told["hung"] = talk[-20:]
                        break
                    continue
                if not line.startswith("@"):
                    talk.append(line)
                    continue
                kind, _, what = line[1:].partition(" ")
                told[kind] = json.loads(what)
                if kind == "extracting" and delay is not None:
                    time.sleep(delay)
                    break
            else:
                guest.kill()
            if guest.has_ended() and guest.wait(1) not in (0, GUEST_FAILED):
                self.problems.append("a life ended with an error: " + "\n".join(talk[-40:]))
        return told
