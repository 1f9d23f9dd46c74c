"""The only place that starts programs: no shell, a time limit for each, and a line in the log."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import threading
import time
from enum import StrEnum

import msgspec

from holdfast_images.errors import ImageError, TryAgain

log = logging.getLogger("holdfast_images.devices")

PROGRAMS = frozenset({"e2fsck", "losetup", "mkfs.ext4", "thin_check", "thin_ls"})
SEARCHED = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
PASSED_ON = ("LD_LIBRARY_PATH",)
TIMEOUT = 60.0
GRACE = 1.0
MOST_OUTPUT = 4000


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a program said, and how it ended."""

    command: str
    status: int
    output: str
    errors: str
    seconds: float


class CommandFailed(TryAgain):
    """A program ended with an error, or was ended because it took too long."""


def run(*command: str, timeout: float = TIMEOUT, accept: tuple[int, ...] = (0,)) -> CommandResult:
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
    answer = CommandResult(
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


# --- The device mapper's texts: tables that are given to it, tables and status lines that it gives. Pure ---
#
# What is not exactly as the kernel documents it is refused: a number taken from the wrong place would cut a device off.

SECTOR = 512
BLOCK_SECTORS = 128
"""64 KiB, the smallest block a pool can have: a snapshot copies a whole block for each first write."""
MOST_THIN_ID = (1 << 24) - 1
LEAST_METADATA = 2 << 20
MOST_METADATA = 16_978_542_592
"""The kernel uses no more than 255 bitmaps of metadata: 15.81 GiB."""
METADATA_PER_BLOCK = 48

_NUMBERS = re.compile(r"(\d+):(\d+)")
_PAIR = re.compile(r"(\d+)/(\d+)")


class Mode(StrEnum):
    """What a pool can do."""

    WRITE = "rw"
    READ_ONLY = "ro"
    OUT_OF_DATA_SPACE = "out_of_data_space"
    FAIL = "Fail"


class Target(msgspec.Struct, frozen=True):
    """One line of a table or of a status."""

    start: int
    length: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.start} {self.length} {self.kind} {self.text}".rstrip()


class ThinPoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says of a pool."""

    mode: Mode
    transaction_id: int = 0
    used_metadata_blocks: int = 0
    total_metadata_blocks: int = 0
    used_data_blocks: int = 0
    total_data_blocks: int = 0
    held_root: int | None = None
    needs_check: bool = False
    error_if_no_space: bool = False
    metadata_low_water: int = 0


class ThinPoolTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool is made of."""

    length: int
    metadata: str
    data: str
    block_sectors: int
    low_water_blocks: int
    features: frozenset[str]


class ThinTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a thin device is."""

    length: int
    pool: str
    id: int


class UnreadableText(ImageError):
    """The device mapper said something that is not documented."""


def thin_pool_target(
    metadata: str, data: str, data_sectors: int, *, block_sectors: int = BLOCK_SECTORS, low_water_blocks: int
) -> Target:
    """A pool that answers writes without room with an error at once, and zeroes every block before it is used.

    By default the kernel would let writers hang for a minute; and without zeroing a new device shows what a deleted
    one held.
    """
    length = data_sectors // block_sectors * block_sectors
    if length <= 0:
        raise ImageError(f"{data} is too small for a pool: {data_sectors * SECTOR} bytes")
    text = f"{_word(metadata)} {_word(data)} {block_sectors} {low_water_blocks} 1 error_if_no_space"
    return Target(0, length, "thin-pool", text)


def thin_target(pool: str, thin_id: int, size: int) -> Target:
    """A thin device of a pool, given as major:minor. The pool does not know how long its devices are."""
    if size <= 0 or size % SECTOR:
        raise ImageError(f"a device of {size} bytes cannot be: it must be a positive multiple of {SECTOR}")
    return Target(0, size // SECTOR, "thin", f"{_word(pool)} {valid_thin_id(thin_id)}")


def valid_thin_id(thin_id: int) -> int:
    """An id that the kernel takes; ImageError if it is none."""
    if not 0 <= thin_id <= MOST_THIN_ID:
        raise ImageError(f"{thin_id} is no device id", hint=f"0 to {MOST_THIN_ID}")
    return thin_id


def metadata_bytes(data_bytes: int, block_sectors: int = BLOCK_SECTORS) -> int:
    """How large a pool's metadata should be, by the kernel's rule, with room for as much again in snapshots."""
    wanted = 2 * METADATA_PER_BLOCK * (data_bytes // (block_sectors * SECTOR))
    return min(max(LEAST_METADATA, -(-wanted // 4096) * 4096), MOST_METADATA)


def parse_thin_pool_status(text: str) -> ThinPoolStatus:
    """From the text of a thin-pool's status. Raises UnreadableText."""
    words = text.split()
    if words[:1] == ["Fail"] or words[:1] == ["Error"]:
        return ThinPoolStatus(mode=Mode.FAIL)
    try:
        transaction, metadata, data, root, mode, discard, on_full, needs_check, *rest = words
        used_metadata, total_metadata = _pair(metadata)
        used_data, total_data = _pair(data)
        return ThinPoolStatus(
            mode=Mode(mode),
            transaction_id=int(transaction),
            used_metadata_blocks=used_metadata,
            total_metadata_blocks=total_metadata,
            used_data_blocks=used_data,
            total_data_blocks=total_data,
            held_root=None if root == "-" else int(root),
            needs_check=_one_of(needs_check, "-", "needs_check") == "needs_check",
            error_if_no_space=_one_of(on_full, "queue_if_no_space", "error_if_no_space") == "error_if_no_space",
            metadata_low_water=int(rest[0]) if rest and _one_of(discard, *_DISCARDS) else 0,
        )
    except ValueError as error:
        raise UnreadableText(f"the status of a thin pool is not as documented: {text!r}") from error


_DISCARDS = ("ignore_discard", "discard_passdown", "no_discard_passdown")


def parse_thin_pool_table(target: Target) -> ThinPoolTable:
    """From a pool's table. Raises UnreadableText."""
    words = target.text.split()
    try:
        metadata, data, block, low_water, *features = words
        _one_of(target.kind, "thin-pool")
        _one_of(str(len(features) - 1), features[0] if features else "-1")
        return ThinPoolTable(
            length=target.length,
            metadata=metadata,
            data=data,
            block_sectors=int(block),
            low_water_blocks=int(low_water),
            features=frozenset(features[1:]),
        )
    except ValueError as error:
        raise UnreadableText(f"the table of a thin pool is not as documented: {target}") from error


def parse_thin_table(target: Target) -> ThinTable | None:
    """From a device's table; None if it is another kind of device. Raises UnreadableText."""
    if target.kind != "thin":
        return None
    words = target.text.split()
    # A third word is an external origin, which we never give: such a device is not ours.
    if len(words) != 2 or target.start != 0 or not _NUMBERS.fullmatch(words[0]) or not words[1].isdecimal():
        raise UnreadableText(f"the table of a thin device is not as documented: {target}")
    return ThinTable(length=target.length, pool=words[0], id=int(words[1]))


def shown_thin(target: Target, pool: str) -> int | None:
    """The id of the device of this pool, major:minor, that a target shows, with an external origin or without. Pure."""
    words = target.text.split()
    if target.kind != "thin" or words[:1] != [pool] or not words[1:2] or not words[1].isdecimal():
        return None
    return int(words[1])


def _word(text: str) -> str:
    if not text or any(character.isspace() or character == "\0" for character in text):
        raise ImageError(f"{text!r} cannot stand in a table of the device mapper")
    return text


def _pair(text: str) -> tuple[int, int]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise ValueError(text)
    used, total = int(match[1]), int(match[2])
    if used > total:
        raise ValueError(text)
    return used, total


def _one_of(text: str, *words: str) -> str:
    if text not in words:
        raise ValueError(text)
    return text
