"""A process that extracts an archive, to be killed, stopped or measured. Prints the child's pid, then what came of it.

Arguments: archive, target.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.sandbox import extract_image
from holdfast_images.errors import ImageError
from tests.support.images.children import child_of_mine


def main(archive: str, target: str) -> None:
    said: list[int] = []

    def say(*_: int) -> None:
        if not said:
            said.append(child_of_mine())
            print(said[0], flush=True)

    answer: dict[str, object] = {}
    try:
        told = extract_image(
            Path(archive), Path(target), policy=Policy.DISTRO, limits=Limits(), timeout=600, on_progress=say
        )
        answer = {
            "files": told.file_count,
            "warnings": [each.code for each in told.warnings],
            "confinement": told.confinement,
        }
    except ImageError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    answer["peak"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
