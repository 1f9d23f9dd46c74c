"""Measures the image manager, each figure beside the programs that a shell script would use, in one run.

    python benchmarks/images.py [--quick] [--json] [--only NAME ...] [--dir DIR] [--repeat N]

Nothing is asserted about absolute times. The exit code is 1 only if something was lost on the way: a file that was not
extracted, a digest that is wrong. Needs root, as owners are kept. See image_questions/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# So that it runs from a checkout, too, whatever the current directory is; the tests know how to start an S3 server.
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "src"), str(ROOT)]

import msgspec
from image_questions import downloading, extracting, memory, pipeline, scanning, starting
from image_questions.programs import missing_programs
from measuring.figures import Figure, Settings, table
from measuring.machine import describe_machine

QUESTIONS: Mapping[str, Callable[[Settings], Iterator[Figure]]] = {
    "validate": scanning.validate,
    "extract": extracting.extract,
    "gunzip": extracting.gunzip,
    "download": downloading.download,
    "pipeline": pipeline.pipeline,
    "again": starting.again,
    "memory": memory.memory,
}


def main() -> int:
    """Ask the questions, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    parser.add_argument("--only", nargs="+", choices=sorted(QUESTIONS), metavar="NAME", help=", ".join(QUESTIONS))
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where images are made; must be a real disk")
    parser.add_argument("--repeat", type=int, help="runs per figure (5, with --quick 3)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("owners of files are kept, which only root can do")
    if missing := missing_programs():
        parser.error(f"missing: {', '.join(missing)}; on Debian: apt-get install {' '.join(missing.values())}")
    figures: list[Figure] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.dir) as directory:
        # At the beginning: later, the load is our own.
        machine = describe_machine(directory)
        settings = Settings(directory, options.quick, options.repeat or (3 if options.quick else 5))
        for name, question in QUESTIONS.items():
            if options.only and name not in options.only:
                continue
            print(f"{time.perf_counter() - began:6.1f} s  {name}", file=sys.stderr, flush=True)
            figures += question(settings)
    if options.json:
        report = {"machine": machine, "quick": options.quick, "repeat": settings.repeat, "figures": figures}
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print(", ".join(f"{key} {value}" for key, value in machine.items()))
        print(table(figures))
    print(f"{time.perf_counter() - began:6.1f} s  done", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
