"""The system calls that Python does not offer, through the C library, each with its error raised."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2

MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

# The same on every architecture that has them at all: they are younger than the common table.
SYS_OPEN_TREE = 428
SYS_MOVE_MOUNT = 429
SYS_LANDLOCK_CREATE_RULESET = 444
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer


def prctl(option: int, second: int = 0, third: int | ctypes.c_void_p = 0) -> None:
    """Set something about this process, as the manual page of prctl says."""
    # Unsigned long for each: the kernel looks at all 64 bits of the arguments that have to be zero.
    last = third if isinstance(third, ctypes.c_void_p) else ctypes.c_ulong(third)
    _checked(_libc.prctl(option, ctypes.c_ulong(second), last, ctypes.c_ulong(0), ctypes.c_ulong(0)), "prctl")


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def mount_private_everywhere() -> None:
    """What is mounted here from now on is not seen elsewhere, nor the other way round."""
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount")


def open_mount_of(directory: int) -> int:
    """A mount of its own, not yet attached, that shows just this directory."""
    flags = ctypes.c_uint(OPEN_TREE_CLONE | AT_EMPTY_PATH | os.O_CLOEXEC)
    return _checked(_syscall(SYS_OPEN_TREE, directory, b"", flags), "open_tree")


def attach_mount(mount: int, path: bytes) -> None:
    """Attach what open_mount_of() has made."""
    _checked(_syscall(SYS_MOVE_MOUNT, mount, b"", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH), "move_mount")


def pivot_root_here() -> None:
    """Make the working directory, a mount, the root, and let go of the old one and of everything mounted in it."""
    number = SYS_PIVOT_ROOT[os.uname().machine]
    _checked(_syscall(number, b".", b"."), "pivot_root")
    # Both are stacked on the same place now, the old one on top.
    _checked(_libc.umount2(b".", MNT_DETACH), "umount2")


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


_CAPABILITY_VERSION_3 = 0x20080522


def effective_capabilities() -> int:
    """The capabilities in force, as a bit mask."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    sets = (_CapabilitySets * 2)()
    _checked(_libc.capget(ctypes.byref(header), sets), "capget")
    return int(sets[0].effective) | int(sets[1].effective) << 32


def keep_capabilities(mask: int) -> None:
    """Of the capabilities held only those of the mask stay, and no program could bring others back."""
    held = effective_capabilities() & mask
    for capability in range(64):
        if mask >> capability & 1:
            continue
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # beyond the last one that this kernel knows, or not allowed to drop: then there is none to gain
    try:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError:
        pass  # kernels before 4.3 have none
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    sets = (_CapabilitySets * 2)()
    for index in range(2):
        part = held >> 32 * index & 0xFFFFFFFF
        sets[index] = _CapabilitySets(part, part, 0)
    _checked(_libc.capset(ctypes.byref(header), sets), "capset")


class _LandlockPathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1


def landlock_version() -> int:
    """The version of Landlock this kernel speaks; 0 for none."""
    return max(
        0, int(_syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION))
    )


def landlock(handled: int, *, directory: int | None, allowed: int) -> None:
    """From now on the `handled` kinds of access are refused, but for those `allowed` below the directory."""
    attribute = ctypes.c_uint64(handled)
    ruleset = _checked(
        _syscall(SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(attribute), ctypes.c_size_t(8), 0), "landlock_create_ruleset"
    )
    try:
        if directory is not None:
            rule = _LandlockPathBeneath(allowed, directory)
            _checked(
                _syscall(SYS_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), 0),
                "landlock_add_rule",
            )
        _checked(_syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)
