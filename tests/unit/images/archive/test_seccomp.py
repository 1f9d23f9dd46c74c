"""The filter, run by a small interpreter of the kernel's filter language: every call ends as the table says."""

from __future__ import annotations

import errno
import struct

import pytest

from holdfast_images.archive.confinement import CLONE, CLONE3, CLONE_THREAD, DENIED, HIGHEST, filter_for

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "symlinkat": (266, 36),
    "linkat": (265, 37),
    "unlinkat": (263, 35),
    "fchown": (93, 55),
    "fchmod": (91, 52),
    "utimensat": (280, 88),
    "fsetxattr": (190, 7),
    "syncfs": (306, 267),
    "flock": (73, 32),
    "mmap": (9, 222),
    "futex": (202, 98),
    "exit_group": (231, 94),
}
ALLOW, KILL = "allow", "kill"


def judged(machine: str, number: int, *, argument: int = 0, architecture: int | None = None) -> str:
    """What the kernel would do."""
    program = filter_for(machine)
    assert program is not None
    known = MACHINES[machine][1] if architecture is None else architecture
    data = struct.pack("=iIQ6Q", number, known, 0, argument, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator = position = 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return outcome(value)
        else:
            holds = {0x15: accumulator == value, 0x25: accumulator > value, 0x45: bool(accumulator & value)}[code]
            position += if_true if holds else if_false


def outcome(value: int) -> str:
    if value == 0x7FFF0000:
        return ALLOW
    return KILL if value == 0x80000000 else errno.errorcode[value & 0xFFFF]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_table_is_refused(machine: str) -> None:
    column = MACHINES[machine][0]
    numbers = {name: pair[column] for name, pair in DENIED.items() if pair[column] >= 0}

    assert {name: judged(machine, number) for name, number in numbers.items()} == dict.fromkeys(numbers, "EPERM")


@pytest.mark.parametrize("machine", MACHINES)
def test_what_extracting_needs_is_allowed(machine: str) -> None:
    column = MACHINES[machine][0]

    assert {judged(machine, pair[column]) for pair in ALLOWED.values()} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_all_other_calls_are_allowed(machine: str) -> None:
    column = MACHINES[machine][0]
    denied = {pair[column] for pair in DENIED.values()} | {CLONE[column], CLONE3}

    assert {judged(machine, number) for number in range(HIGHEST + 1) if number not in denied} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_may_be_made_and_processes_not(machine: str) -> None:
    clone = CLONE[MACHINES[machine][0]]

    assert judged(machine, clone, argument=CLONE_THREAD | 0x100) == ALLOW
    assert judged(machine, clone, argument=0x11) == "EPERM"
    assert judged(machine, CLONE3) == "ENOSYS"


@pytest.mark.parametrize("number", [HIGHEST + 1, 0x40000000, 0x40000000 + 59, 0xFFFFFFF])
def test_calls_that_nobody_has_judged_do_not_exist(number: int) -> None:
    """The second of them, and the third, are x86's second table: the same calls under other numbers."""
    assert judged("x86_64", number) == "ENOSYS"


def test_calls_by_the_numbers_of_another_architecture_are_fatal() -> None:
    assert judged("x86_64", 0, architecture=0x40000003) == KILL


def test_an_unknown_architecture_has_no_filter() -> None:
    assert filter_for("pdp11") is None
