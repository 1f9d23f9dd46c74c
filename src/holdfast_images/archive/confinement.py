"""The system calls that Python does not offer, through the C library, each with its error raised."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct
from collections.abc import Callable

from holdfast_images.archive.tree import OPEN_DIRECTORIES, OPEN_DIRECTORY

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
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


# --- The system calls that nothing which unpacks an archive has any use for, refused by the kernel from then on ---

# Numbers on (x86_64, aarch64); -1 where an architecture never had the call.
DENIED: dict[str, tuple[int, int]] = {
    # other programs and other processes
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    # the network
    "socket": (41, 198),
    "socketpair": (53, 199),
    # mounts, roots and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    # what makes or finds files by other ways than names
    "mknodat": (259, 33),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279),
    "fanotify_init": (300, 262),
    # the kernel itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "personality": (135, 92),
    "syslog": (103, 116),
    # the machine
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    # x86_64's old ways to the same
    "fork": (57, -1),
    "vfork": (58, -1),
    "mknod": (133, -1),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
}
CLONE = (56, 220)
CLONE3 = 435
HIGHEST = 462
"""The youngest call this table has judged; younger ones are unknown here, and so is x86's second table."""
CLONE_THREAD = 0x00010000

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_IF_BITS = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_FIRST_ARGUMENT_AT = 16  # its low half: both architectures are little-endian
_KILL = 0x80000000
_ERROR = 0x00050000
_ALLOW = 0x7FFF0000


def filter_for(machine: str) -> bytes | None:
    """The filter as the kernel wants it; None for an architecture this table does not know."""
    if machine not in _ARCHITECTURES:
        return None
    column, audit = _ARCHITECTURES[machine]
    numbers = [pair[column] for pair in DENIED.values() if pair[column] >= 0]
    tail = [
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        # Threads are wanted, by decompressors, other processes are not.
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_IF_BITS, 0, 1, CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
    ]
    tests = len(numbers)
    head = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_GREATER, tests + 4, 0, HIGHEST),
        # The C library falls back to clone(), whose flags can be seen.
        (_IF_EQUAL, tests + 3, 0, CLONE3),
        (_IF_EQUAL, tests + 3, 0, CLONE[column]),
    ]
    middle = [(_IF_EQUAL, tests - index, 0, number) for index, number in enumerate(numbers)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in head + middle + tail)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny_system_calls() -> bool:
    """From now on, and for ever, the calls above fail; False if this kernel or architecture has no filter for it."""
    instructions = filter_for(os.uname().machine)
    if instructions is None:
        return False
    program = _Program(len(instructions) // 8, instructions)
    try:
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.cast(ctypes.byref(program), ctypes.c_void_p))
    except OSError:
        return False
    return True


# --- What the process that reads an archive can still do afterwards: write below one directory, and nothing else ---
#
# Every measure that the kernel grants is taken, and those taken are told by name; none is silently left out.

ADDRESS_SPACE = 1 << 30

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_FOWNER = 3
CAP_FSETID = 4
CAP_SYS_ADMIN = 21
CAP_SETFCAP = 31

ROOT_MEASURES = frozenset({"pivot-root", "chroot", "landlock"})
"""Each of them keeps every path outside the target out of reach."""

_NAMESPACES = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

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
    if _granted(lambda: unshare(_NAMESPACES)):
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
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    measures.append("no-new-privileges")
    _drop_capabilities(privileged=privileged, keep_capabilities_of_files=keep_capabilities_of_files)
    measures.append("capabilities")
    if not ROOT_MEASURES & set(measures) and landlock_version() >= 2:
        # Version 1 would refuse hard links between directories.
        directory = root if writing else None
        landlock(_LANDLOCK_ALL, directory=directory, allowed=_LANDLOCK_WRITING)
        measures.append("landlock")
    if before_filter is not None:
        before_filter(root)
    if deny_system_calls():
        measures.append("seccomp")
    return root, measures


def die_with(parent: int) -> None:
    """The kernel kills this process when its parent ends; if that has happened already, end here."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
    unshare(CLONE_NEWUSER)
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
    if not effective_capabilities() >> CAP_SYS_ADMIN & 1 or os.uname().machine not in SYS_PIVOT_ROOT:
        return None
    try:
        unshare(CLONE_NEWNS)
        mount_private_everywhere()
        # By its path: the descriptor leads into the namespace just left, from which nothing can be mounted.
        again = os.open(os.readlink(f"/proc/self/fd/{target}"), OPEN_DIRECTORY)
        if not os.path.samestat(os.fstat(again), os.fstat(target)):
            os.close(again)
            return None
        mount = open_mount_of(again)
        os.close(again)
        attach_mount(mount, b"/")
        os.fchdir(mount)
        os.close(mount)
        pivot_root_here()
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
    keep_capabilities(kept)
