"""What the process that reads an archive can still do afterwards: write below one directory, and nothing else.

Every measure that the kernel grants is taken, and those taken are told by name; none is silently left out.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

from holdfast_images.archive import kernel
from holdfast_images.archive.seccomp import deny_system_calls
from holdfast_images.archive.tree import OPEN_DIRECTORIES, OPEN_DIRECTORY

ADDRESS_SPACE = 1 << 30

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_FOWNER = 3
CAP_FSETID = 4
CAP_SYS_ADMIN = 21
CAP_SETFCAP = 31

ROOT_MEASURES = frozenset({"pivot-root", "chroot", "landlock"})
"""Each of them keeps every path outside the target out of reach."""

_NAMESPACES = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS

# Access rights of Landlock, version 2: everything that can be done to files; without running them, and without
# sockets, FIFOs and device nodes.
_LANDLOCK_ALL = (1 << 14) - 1
_LANDLOCK_EXECUTE, _LANDLOCK_SPECIAL = 1 << 0, 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11
_LANDLOCK_WRITING = _LANDLOCK_ALL & ~(_LANDLOCK_EXECUTE | _LANDLOCK_SPECIAL)


def confine(
    target: int,
    *,
    writing: bool,
    depth: int,
    keep_capabilities_of_files: bool,
    before_filter: Callable[[int], None] | None = None,
) -> tuple[int, list[str]]:
    """Shut this process in; the target's new descriptor (the given one is closed), and the measures in force.

    `before_filter` is called with the new descriptor when all is done but what keeps it from starting processes.
    Without `writing` the target is a directory that was removed: it is empty and stays so.
    """
    measures = ["session"] if os.getsid(0) == os.getpid() else []
    privileged = os.geteuid() == 0
    if not privileged and _granted(_enter_user_namespace):
        measures.append("user-namespace")
    if _granted(lambda: kernel.unshare(_NAMESPACES)):
        measures.append("namespaces")
    root = _pivot(target) if writing else None
    if root is not None:
        measures.append("pivot-root")
    else:
        root = target
        if _granted(lambda: _change_root(target)):
            measures.append("chroot")
    _limit(depth)
    measures.append("limits")
    # Before the capabilities go: without one of them, a filter needs this; and nothing here ever runs a program.
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    measures.append("no-new-privileges")
    _drop_capabilities(privileged=privileged, keep_capabilities_of_files=keep_capabilities_of_files)
    measures.append("capabilities")
    if not ROOT_MEASURES & set(measures) and kernel.landlock_version() >= 2:
        # Version 1 would refuse hard links between directories.
        directory = root if writing else None
        kernel.landlock(_LANDLOCK_ALL, directory=directory, allowed=_LANDLOCK_WRITING)
        measures.append("landlock")
    if before_filter is not None:
        before_filter(root)
    if deny_system_calls():
        measures.append("seccomp")
    return root, measures


def die_with(parent: int) -> None:
    """The kernel kills this process when its parent ends; if that has happened already, end here."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def close_others(keep: set[int]) -> None:
    """Close every descriptor but these and the standard ones."""
    low = 3
    for descriptor in sorted(keep):
        os.closerange(low, descriptor)
        low = descriptor + 1
    highest = max((int(name) for name in _open_descriptors()), default=low)
    os.closerange(low, highest + 1)


def limit_file_size(size: int) -> None:
    """No file grows beyond this: a write fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _open_descriptors() -> list[str]:
    try:
        return os.listdir("/proc/self/fd")
    except OSError:
        return [str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])]


def _granted(measure: Callable[[], None]) -> bool:
    try:
        measure()
    except OSError:
        return False
    return True


def _enter_user_namespace() -> None:
    """As root of a namespace in which there is nobody else; files made there belong to the user."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _pivot(target: int) -> int | None:
    """A mount namespace that holds the target and nothing else; None, and nothing done, where that is not allowed.

    Just changing the root would leave a copy of every mount of the host in the namespace, and each of them busy.
    """
    if not kernel.effective_capabilities() >> CAP_SYS_ADMIN & 1 or os.uname().machine not in kernel.SYS_PIVOT_ROOT:
        return None
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount_private_everywhere()
        # By its path: the descriptor leads into the namespace just left, from which nothing can be mounted.
        again = os.open(os.readlink(f"/proc/self/fd/{target}"), OPEN_DIRECTORY)
        if not os.path.samestat(os.fstat(again), os.fstat(target)):
            os.close(again)
            return None
        mount = kernel.open_mount_of(again)
        os.close(again)
        kernel.attach_mount(mount, b"/")
        os.fchdir(mount)
        os.close(mount)
        kernel.pivot_root_here()
    except OSError:
        return None
    os.chdir("/")
    # The old one is a way out: above it is the host's tree.
    os.close(target)
    return os.open("/", OPEN_DIRECTORY)


def _change_root(target: int) -> None:
    os.fchdir(target)
    os.chroot(".")
    os.chdir("/")


def _limit(depth: int) -> None:
    # Removing a tree holds a descriptor for each directory on the way.
    descriptors = OPEN_DIRECTORIES + depth + 64
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, ADDRESS_SPACE),
        (resource.RLIMIT_NOFILE, descriptors),
    ):
        _, hard = resource.getrlimit(what)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (allowed, allowed))


def _drop_capabilities(*, privileged: bool, keep_capabilities_of_files: bool) -> None:
    kept = 0
    if privileged:
        kept = 1 << CAP_CHOWN | 1 << CAP_DAC_OVERRIDE | 1 << CAP_FOWNER | 1 << CAP_FSETID
        if keep_capabilities_of_files:
            kept |= 1 << CAP_SETFCAP
    kernel.keep_capabilities(kept)
