"""The real command, which kills itself with SIGKILL at a named point: `killed_command.py POINT AFTER words…`.

It dies at the first POINT that comes after AFTER ("" for the very first).
"""

from __future__ import annotations

import os
import signal
import sys

from holdfast.crash_points import set_hook
from holdfast_images.cli.main import main
from holdfast_images.devices.lock import set_hook as set_device_hook

if __name__ == "__main__":
    point, after = sys.argv[1:3]
    armed = not after

    def die(name: str) -> None:
        global armed
        if armed and name == point:
            os.kill(os.getpid(), signal.SIGKILL)
        armed = armed or name == after

    set_hook(die)
    set_device_hook(die)
    sys.exit(main(sys.argv[3:]))
