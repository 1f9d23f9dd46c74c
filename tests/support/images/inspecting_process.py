"""A process that inspects an archive, to be measured. Prints what came of it, and the peak of its child's memory.

Argument: archive.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.sandbox import inspect_image


def main(archive: str) -> None:
    report = inspect_image(Path(archive), policy=Policy.STRICT, limits=Limits(), timeout=1000)
    answer = {
        "acceptable": report.acceptable,
        "entries": report.entries,
        "codes": [each.code for each in report.findings[:5]],
        "peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
