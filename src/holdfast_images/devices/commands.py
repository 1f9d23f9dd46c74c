"""The only place that starts programs: no shell, a time limit for each, and a line in the log."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
import time

import msgspec

from holdfast_images.errors import ImageError, TryAgain

log = logging.getLogger("holdfast_images.devices")

PROGRAMS = frozenset({"e2fsck", "losetup", "mkfs.ext4", "thin_check", "thin_ls"})
SEARCHED = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
PASSED_ON = ("LD_LIBRARY_PATH",)
TIMEOUT = 60.0
GRACE = 1.0
MOST_OUTPUT = 4000


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a program said, and how it ended."""

    command: str
    status: int
    output: str
    errors: str
    seconds: float


class CommandFailed(TryAgain):
    """A program ended with an error, or was ended because it took too long."""


def run(*command: str, timeout: float = TIMEOUT, accept: tuple[int, ...] = (0,)) -> Answer:
    """Run a program to its end. Raises CommandFailed unless its status is accepted.

    Crash: the program may live on for as long as it needs.
    """
    program, *arguments = command
    if program not in PROGRAMS or any("\0" in argument for argument in arguments):
        raise ImageError(f"{command!r} is no command of this program")
    path = find(program)
    if path is None:
        raise CommandFailed(f"the program {program} is not installed", hint=_package_of(program))
    begin = time.monotonic()
    try:
        status, output, errors = _finished([path, *arguments], timeout)
    except subprocess.TimeoutExpired:
        log.error("%s: ended after %.1f s", " ".join(command), timeout)
        raise CommandFailed(
            f"{' '.join(command)} did not end within {timeout:g} s", hint="is the disk below it still answering?"
        ) from None
    answer = Answer(
        command=" ".join(command),
        status=status,
        output=output.decode("utf-8", "replace"),
        errors=errors.decode("utf-8", "replace"),
        seconds=time.monotonic() - begin,
    )
    log.info("%s: status %d after %.3f s", answer.command, answer.status, answer.seconds)
    if answer.status not in accept:
        said = (answer.errors or answer.output).strip()[-MOST_OUTPUT:]
        raise CommandFailed(f"{answer.command} ended with status {answer.status}: {said or 'it said nothing'}")
    return answer


def _finished(command: list[str], timeout: float) -> tuple[int, bytes, bytes]:
    """Its status, output and errors. Raises TimeoutExpired, and then it was killed."""
    process = subprocess.Popen(  # noqa: S603 - a program of the list above, no shell
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except BaseException:
        _kill(process)
        raise
    return process.returncode, output, errors


def _kill(process: subprocess.Popen[bytes]) -> None:
    """One that waits for a disk dies when that answers, which may be never: we do not wait for it."""
    process.kill()
    try:
        process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        log.error("process %d does not die: it waits for a disk", process.pid)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        threading.Thread(target=process.wait, daemon=True).start()  # or else it would stay as a zombie


def find(program: str) -> str | None:
    """Where a program is; administrators' directories need not be in PATH."""
    searched = [*os.environ.get("PATH", "").split(":"), *SEARCHED]
    return shutil.which(program, path=":".join(place for place in searched if place.startswith("/")))


def _environment() -> dict[str, str]:
    """What is said is parsed, so it is said in one language; nothing else of ours is anybody's business."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"PATH": ":".join(SEARCHED), "LC_ALL": "C", **passed}


def _package_of(program: str) -> str:
    packages = {"thin": "thin-provisioning-tools", "losetup": "mount"}
    return f"install the package {packages.get(program.partition('_')[0], 'e2fsprogs')}"
