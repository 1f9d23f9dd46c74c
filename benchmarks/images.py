"""Measures the image manager, each figure beside the programs that a shell script would use, in one run.

    python benchmarks/images.py [--quick] [--json] [--only NAME ...] [--dir DIR] [--repeat N]

Nothing is asserted about absolute times. The exit code is 1 only if something was lost on the way: a file that was not
extracted, a digest that is wrong. Needs root, as owners are kept. See image_questions/README.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# So that it runs from a checkout, too, whatever the current directory is; the tests know how to start an S3 server.
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "src"), str(ROOT)]

from image_questions import downloading, extracting, memory, pipeline, scanning, starting
from image_questions.programs import missing_programs
from measuring.asking import ask, parser_for, show
from measuring.figures import Figure, Settings

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
    parser = parser_for(__doc__, list(QUESTIONS))
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("owners of files are kept, which only root can do")
    if missing := missing_programs():
        parser.error(f"missing: {', '.join(missing)}; on Debian: apt-get install {' '.join(missing.values())}")
    show(ask(QUESTIONS, options), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
