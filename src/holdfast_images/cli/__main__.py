"""The process that is the command `holdfast`, with its image commands: as it is installed, and by `python -m`."""

from __future__ import annotations

import gc


def main() -> int:
    """Run one command and return its exit code.

    What is imported stays until the end. To look for garbage in it, many times while it comes in and thrice when the
    process ends, is a tenth of the time that a short command takes.
    """
    gc.set_threshold(50_000)
    from holdfast_images.cli.main import main as command  # noqa: PLC0415 - under the threshold just set

    code = command()
    gc.freeze()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
