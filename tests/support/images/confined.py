"""A program that shuts itself in as the child does, tries what must fail then, and prints how each attempt ended.

Run with the descriptor-free arguments: target directory, "writing" or "reading", and the path of a file outside.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast_images.archive import confinement as confining
from holdfast_images.archive import confinement as kernel


def outcome(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except (ValueError, MemoryError, RuntimeError) as error:
        return type(error).__name__
    return "done"


def is_open(descriptor: int, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False


def climb(root: int) -> None:
    """Take '..' often."""
    here = os.dup(root)
    for _ in range(30):
        above = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = above
    if not os.path.samestat(os.fstat(here), os.fstat(root)):
        raise RuntimeError


def call(number: int, *arguments: Any) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def attempt() -> None:
        if libc.syscall(number, *arguments) < 0:
            raise OSError(ctypes.get_errno(), "")

    return attempt


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def run_thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def without(measures: list[str]) -> None:
    """Take some of what the kernel offers away, as an older or stricter one would."""

    def refuse(*_: Any) -> Any:
        raise OSError(errno.EPERM, "not granted")

    if "user-namespace" in measures:
        setattr(confining, "_enter_user_namespace", refuse)  # noqa: B010 - as below
    if "namespaces" in measures:
        setattr(kernel, "unshare", refuse)  # noqa: B010 - as below
    if "pivot-root" in measures:
        setattr(confining, "_pivot", lambda _: None)  # noqa: B010 - replaced, not assigned to
    if "chroot" in measures:
        setattr(confining, "_change_root", refuse)  # noqa: B010 - as above


def main(target: str, mode: str, outside: str, *missing: str) -> None:
    without(list(missing))
    os.open(outside, os.O_RDONLY)
    secret = os.stat(outside)
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    if mode == "reading":
        os.rmdir(target)
    confining.close_others({descriptor})
    root, measures = confining.confine(
        descriptor, writing=mode == "writing", depth=256, keep_capabilities_of_files=False
    )
    confining.limit_file_size(1 << 20)
    writing = os.O_WRONLY | os.O_CREAT
    told = {
        "measures": measures,
        "extra descriptor": "open" if any(is_open(each, secret) for each in range(3, 100)) else "closed",
        "read outside": outcome(lambda: os.open(outside, os.O_RDONLY)),
        "read /proc": outcome(lambda: os.open("/proc/self/status", os.O_RDONLY)),
        "write inside": outcome(lambda: os.write(os.open("f", writing, dir_fd=root), b"x")),
        "climb": outcome(lambda: climb(root)),
        "execute": outcome(lambda: os.execv("/bin/true", ["true"])),
        "fork": outcome(fork),
        "thread": outcome(run_thread),
        "socket": outcome(socket.socket),
        "mount": outcome(call(165 if os.uname().machine == "x86_64" else 40, b"a", b"/", b"tmpfs", 0, None)),
        "chroot": outcome(lambda: os.chroot(".")),
        "device node": outcome(lambda: os.mknod("n", 0o020600, os.makedev(1, 3), dir_fd=root)),
        "signal its parent": outcome(lambda: os.kill(os.getppid(), signal.SIGCONT)),
        "unknown call": outcome(call(470)),
        "large file": outcome(lambda: os.pwrite(os.open("g", writing, dir_fd=root), b"x", 1 << 21)),
        "much memory": outcome(lambda: bytearray(2 << 30)),
        "many descriptors": outcome(lambda: [os.dup(root) for _ in range(2000)]),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
