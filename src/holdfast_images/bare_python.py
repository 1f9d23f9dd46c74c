"""Processes of our own that start with as little as can be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

START = """
import gc, os, sys
gc.disable()
sys.path += sys.argv[3:]
sys.modules["typing_extensions"] = None
__import__(sys.argv[1], fromlist=["main"]).main(sys.argv[2])
os._exit(0)
"""
"""Its program. Where its packages are, it is told, and does not look for them.

Half of its start and its end is spared: msgspec takes from `typing` what it would take from typing_extensions, which
imports a good part of the standard library; what is imported holds no garbage, and need not be taken apart.
"""
PACKAGES = ("holdfast", "holdfast_images", "isal", "msgspec", "zstandard")
"""Besides the standard library, and after it: all that such a process imports."""


def start_python(
    module: str,
    argument: str,
    *,
    descriptors: Sequence[int],
    stdin: int = subprocess.DEVNULL,
    stderr: int | None = subprocess.STDOUT,
) -> subprocess.Popen[bytes]:
    """A process that calls main() of a module, with nothing of ours but these descriptors and a pipe for its words.

    It is in a session of its own: what a terminal sends to this process is not for it.
    """
    return subprocess.Popen(  # noqa: S603 - this program, no shell
        [sys.executable, "-I", "-S", "-c", START, module, argument, *import_paths()],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=descriptors,
        start_new_session=True,
        cwd="/",
        env={},
        bufsize=0,
    )


def import_paths() -> list[str]:
    """Where this process has these packages from, and nothing else of where it looks for modules."""
    specs = [find_spec(name) for name in PACKAGES]
    places = [place for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]
    return list(dict.fromkeys(os.path.dirname(os.path.abspath(place)) for place in places))
