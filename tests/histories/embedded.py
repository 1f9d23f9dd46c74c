"""A process of a history whose worker is embedded: stopped cleanly by SIGTERM, like `holdfast worker`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from tests.histories import plan as plans
from tests.histories.clients import patiently_opened
from tests.histories.events import DIRECTORY_VARIABLE


def main() -> None:
    plan = plans.load(Path(os.environ[DIRECTORY_VARIABLE]))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with (
        patiently_opened(sys.argv[1], "embedded") as engine,
        engine.worker(concurrency=plan.concurrency, lease=plan.lease, stop_grace=20.0) as worker,
    ):
        print(json.dumps({"event": "ready", "worker_id": worker.worker_id}), flush=True)
        while not stopping.wait(0.5):
            if worker.failure is not None:
                sys.exit(f"the worker cannot go on: {worker.failure}")


if __name__ == "__main__":
    main()
