"""One life of the image manager between two power cuts. Runs in the guest; talks to tests/guest/power_cuts.py.

A life checks the pool as the cut left it, goes on with the job that was cut short, reports what became of it, removes
the image, checks that nothing is left, and processes it once more: until the point where the power is to be cut.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from holdfast import Engine, crash_points
from holdfast.core.facts import Severity
from holdfast.guard import check
from holdfast.testing import VirtualClock, run_until_idle
from holdfast_images.devices import lock, record
from holdfast_images.devices.consistency import check_metadata
from holdfast_images.flows.process import all_flows
from holdfast_images.flows.schemas import RemoveRequest, key_of
from tests.devicemapper.flow_context import IMAGE_ID, context, faults, mount_state, request_for, seen
from tests.devicemapper.pools import open_devices

STATE = Path("/run/state")
HOME = STATE / "holdfast"
START = 1_750_000_000_000


def tell(kind: str, what: object) -> None:
    """One line for the host, which may kill us as soon as it has read it."""
    os.write(1, f"@{kind} {json.dumps(what)}\n".encode())


class Points:
    """Counts the points that are passed, and stops for ever at one of them."""

    def __init__(self, stop_at: int | None) -> None:
        self.names: list[str] = []
        self._stop_at = stop_at

    def __call__(self, name: str) -> None:
        if "ReportProgress" in name:
            return  # as often as time allows: the other points would not keep their numbers
        self.names.append(name)
        if name == "effect.extract.before":
            tell("extracting", len(self.names) - 1)
        if len(self.names) - 1 == self._stop_at:
            tell("cut", name)
            signal.pause()


def live(number: int, source: Path, stop_at: int | None) -> None:
    """One life; it comes to an end only if the power is not cut."""
    mount_state(STATE)
    if (HOME / "pool.json").exists():
        check_metadata(HOME)
        tell("thin_check", "clean")
    devices = open_devices(HOME)
    ctx = context(HOME, devices)
    clock = VirtualClock(START + number * 3_600_000)
    with Engine.open(HOME, flows=all_flows(ctx), clock=clock) as engine:
        if engine.store.jobs(limit=1):
            run_until_idle(engine, clock)
            # A cut before the job was durable leaves none; submitting is the submitter's to repeat.
            request = request_for(source)
            engine.submit("process-image", request, key=key_of(request))
            run_until_idle(engine, clock)
            found = faults(ctx, devices)
            found += [str(one) for one in check(engine.store, deep=True) if one.severity is Severity.ERROR]
            tell("end", {"seen": seen(ctx, devices), "faults": found})
            engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID, force=True))
            run_until_idle(engine, clock)
            left = devices.thin_pool.ids()
            tell("removed", {"faults": faults(ctx, devices), "left": left})
        points = Points(stop_at)
        crash_points.set_hook(points)
        lock.set_hook(points)
        request = request_for(source)
        engine.submit("process-image", request, key=key_of(request))
        run_until_idle(engine, clock)
        tell("points", points.names)


def forget_to_sync() -> None:
    """The mistake that the cuts must be able to find: the pool is told before the record is on disk."""
    record.Registry.sync = lambda self: None  # type: ignore[method-assign]
    os.fsync = lambda fd: None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--forget-to-sync", action="store_true")
    options = parser.parse_args()
    if options.forget_to_sync:
        forget_to_sync()
    live(options.number, options.source, options.stop_at)
    return 0


if __name__ == "__main__":
    sys.exit(main())
