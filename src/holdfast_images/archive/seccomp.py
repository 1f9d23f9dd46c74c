"""The system calls that nothing which unpacks an archive has any use for, refused by the kernel from then on."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from holdfast_images.archive.kernel import PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl

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
