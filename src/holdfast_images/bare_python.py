"""Processes of our own that start with as little as can be."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast_images.errors import NotInstalled

if TYPE_CHECKING:
    import subprocess

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
    listens: bool = False,
) -> subprocess.Popen[bytes]:
    """A process that calls main() of a module, with nothing of ours but these descriptors and a pipe for its words.

    One that listens has a pipe for its input too, and shares this process's errors. It is in a session of its own: what
    a terminal sends to this process is not for it.
    """
    import subprocess  # noqa: PLC0415 - a re-run only asks where the packages are, and starts nothing

    return subprocess.Popen(  # noqa: S603 - this program, no shell
        [sys.executable, "-I", "-S", "-c", START, module, argument, *import_paths()],
        stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if listens else subprocess.STDOUT,
        pass_fds=descriptors,
        start_new_session=True,
        cwd="/",
        env={},
        bufsize=0,
    )


def import_paths() -> list[str]:
    """Where this process has these packages from, and nothing else of where it looks for modules.

    Raises NotInstalled if it does not have them all.
    """
    from importlib.util import find_spec  # noqa: PLC0415 - a child that is given work needs none of it

    specs = {name: find_spec(name) for name in PACKAGES}
    missing = [name for name, spec in specs.items() if spec is None]
    if missing:
        raise NotInstalled(
            f"images need packages that are not installed: {', '.join(missing)}", hint="pip install 'holdfast[images]'"
        )
    places = [place for spec in specs.values() if spec is not None for place in spec.submodule_search_locations or ()]
    return list(dict.fromkeys(os.path.dirname(os.path.abspath(place)) for place in places))
