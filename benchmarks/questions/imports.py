"""How long does it take to import the engine, and to show the help of the command line?"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from measuring.figures import Figure, Settings, figure

import holdfast

BARE = "python -c pass"


def imports(settings: Settings) -> Iterator[Figure]:
    """Each command in turn, many rounds, so that noise hits all alike."""
    commands = {
        BARE: ["-c", "pass"],
        "import sqlite3, msgspec": ["-c", "import sqlite3, msgspec"],
        "import click": ["-c", "import click"],
        "import holdfast": ["-c", "import holdfast"],
    }
    if importlib.util.find_spec("click") is None:
        del commands["import click"]
    if importlib.util.find_spec("holdfast.cli.__main__") is not None:
        commands["python -m holdfast.cli --help"] = ["-m", "holdfast.cli", "--help"]
    elif importlib.util.find_spec("holdfast.cli.main") is not None:
        commands["holdfast --help"] = ["-c", "from holdfast.cli.main import main; main(['--help'])"]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(settings.pick(5, 15)):
        for name, arguments in commands.items():
            times[name].append(_run(arguments) * 1000)
    bare = statistics.median(times[BARE])
    for name, values in times.items():
        note = "" if name == BARE else f"{_modules(commands[name])} modules more"
        yield figure("imports", name, values, "ms", ratios=[value / bare for value in values], ratio_to=BARE, note=note)


def _run(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=_environment())
    return time.perf_counter() - began


def _modules(arguments: list[str]) -> int:
    """How many modules a command imports beyond those of a bare interpreter."""
    counted = []
    for one in (["-c", "pass"], arguments):
        command = [sys.executable, "-X", "importtime", *one]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=_environment())
        counted.append(sum(line.startswith("import time:") for line in done.stderr.splitlines()))
    return counted[1] - counted[0]


def _environment() -> dict[str, str]:
    library = str(Path(holdfast.__file__).resolve().parent.parent)
    paths = [library, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
