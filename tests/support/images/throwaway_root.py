"""A root directory to throw away, with the programs by which others read archives: what they write stays in it."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("tar", "bsdtar", "umoci", "skopeo", "gzip", "xz", "zstd")
_ENVIRONMENT = {"PATH": "/usr/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/tmp", "TMPDIR": "/tmp"}
_LOCALE = Path("/usr/lib/locale/C.utf8")
TIMEOUT = 120.0

Send = Callable[[Any], None]


def make_throwaway_root(place: Path) -> None:
    """Copies of programs and their libraries, in an empty directory."""
    for name in ("usr/bin", "tmp", "var/tmp", "etc/containers", "dev"):
        (place / name).mkdir(parents=True)
    (place / "dev/null").touch()
    shutil.copytree(_LOCALE, place / _LOCALE.relative_to("/"))
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None, f"{name} is missing; make tools installs it"
        _copy(Path(program).resolve(), place / "usr/bin" / name)
        for library in _libraries(program):
            _copy(library, place / str(library).lstrip("/"))


def inside(place: Path, act: Callable[[Send], None]) -> Iterator[Any]:
    """Run something in a process whose root this is, and yield what it sends. Needs to be root, to enter it.

    It must have been imported whatever it needs: nothing of this Python is there.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as answers:
                os.chroot(place)
                os.chdir("/")

                def send(message: Any) -> None:
                    pickle.dump(message, answers)
                    answers.flush()

                try:
                    act(send)
                except Exception as error:  # the parent raises it
                    send(AssertionError(f"{type(error).__name__}: {error}"))
                status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        try:
            while True:
                message = pickle.load(pipe)
                if isinstance(message, AssertionError):
                    raise message
                yield message
        except EOFError:
            pass
        finally:
            pipe.close()
            _, status = os.waitpid(child, 0)
    assert status == 0, f"the process inside the root ended with {status}"


def run(*command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run one of the programs, from inside; whatever it answers is the caller's to judge."""
    os.umask(0o022)
    return subprocess.run(command, capture_output=True, check=False, input=stdin, env=_ENVIRONMENT, timeout=TIMEOUT)


def empty_directory(name: str) -> Path:
    """An empty directory, from inside. What was there before is removed."""
    path = Path(name)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    path.chmod(0o755)
    return path


def _libraries(program: str) -> list[Path]:
    told = subprocess.run(["ldd", program], capture_output=True, check=False, text=True).stdout  # a static one has none
    return [Path(word) for line in told.splitlines() for word in line.split() if word.startswith("/")]


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
