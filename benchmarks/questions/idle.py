"""What does a worker cost that has nothing to do, and how much memory does it hold?"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.workers import WorkerProcess, new_engine, submit, wait_until_settled


def idle(settings: Settings) -> Iterator[Figure]:
    """A worker process of default settings: before its first job, and after its work is done."""
    seconds = float(settings.pick(5, 20))
    share, wakes, fresh, used, bare = [], [], [], [], []
    for _ in range(1 if settings.quick else settings.repeat):
        with new_engine(settings.directory) as engine:
            worker = WorkerProcess(Path(engine.store.url.removeprefix("sqlite:///")).parent)
            worker.wait_until_ready()
            time.sleep(1.0)
            fresh.append(resident(worker.pid))
            cpu, woken = cpu_seconds(worker.pid), wake_ups(worker.pid)
            time.sleep(seconds)
            share.append((cpu_seconds(worker.pid) - cpu) / seconds * 100)
            wakes.append((wake_ups(worker.pid) - woken) / seconds)
            submit(engine, flows.five_steps, 1000)
            wait_until_settled(engine)
            used.append(resident(worker.pid))
            worker.stop()
            bare.append(_resident_bare())
    yield figure("idle", "CPU of an idle worker", share, "% of a core", ratios=share, ratio_to="1 %", at_most=0.2)
    yield figure("idle", "wake-ups of all its threads", wakes, "/s")
    ratios = [mine / its for mine, its in zip(fresh, bare, strict=True)]
    yield figure("idle", "memory, before its first job", fresh, "MB RSS", ratios=ratios, ratio_to="bare Python")
    ratios = [mine / its for mine, its in zip(used, bare, strict=True)]
    yield figure("idle", "memory, after 1,000 flows", used, "MB RSS", ratios=ratios, ratio_to="bare Python")


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def wake_ups(pid: int) -> int:
    """How often its threads have gone to sleep."""
    statuses = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(
        int(found[1])
        for text in statuses
        if (found := re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE))
    )


def resident(pid: int) -> float:
    """Megabytes of a process that are in memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _resident_bare() -> float:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        time.sleep(0.3)
        megabytes = resident(process.pid)
        process.kill()
    return megabytes
