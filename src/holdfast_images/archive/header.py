"""One header block of 512 bytes: its layout, its checksum and its numbers. Pure, and strict where readers disagree."""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import adler32

from holdfast_images.archive.entry import EntryKind, Reason
from holdfast_images.errors import ImageRefused

BLOCK = 512
LAYOUT = struct.Struct("100s24s12s12s8sc100s8s80x155s12s")
"""name, (mode, uid, gid), size, mtime, checksum, type, link name, (magic, version), (names, device), prefix, rest."""
PLAIN_LAYOUT = struct.Struct("100s24s11sc11sc8sc108s64x16s167s")
"""The same block in other pieces: name, owner, size and its last byte, mtime and its last byte, checksum, type,
(link name, magic), device, (prefix, rest)."""
DEVICE = slice(329, 345)
"""Major and minor number of a device node, eight bytes each."""

POSIX = b"ustar\x0000"
GNU = b"ustar  \0"
V7 = bytes(8)
NO_NAME = bytes(100)
NO_PREFIX = bytes(155)
NO_REST = bytes(12)
PLAIN_MIDDLES = (bytes(100) + POSIX, bytes(100) + GNU)
PLAIN_END = bytes(167)
PLAIN_DEVICES = (b"0000000\0" * 2, bytes(16))
"""The device numbers of what is no device, as most writers put them."""
BEFORE_END = BLOCK - len(PLAIN_END)
"""Bytes of a plain header that its checksum is about: the others are zeros."""

KINDS: dict[bytes, EntryKind] = {
    b"\0": EntryKind.FILE,
    b"0": EntryKind.FILE,
    b"1": EntryKind.HARDLINK,
    b"2": EntryKind.SYMLINK,
    b"3": EntryKind.CHARACTER_DEVICE,
    b"4": EntryKind.BLOCK_DEVICE,
    b"5": EntryKind.DIRECTORY,
    b"6": EntryKind.FIFO,
    b"S": EntryKind.FILE,
}
FORMAT_BITS: dict[EntryKind, int] = {
    EntryKind.FILE: 0o100000,
    EntryKind.HARDLINK: 0o100000,
    EntryKind.SYMLINK: 0o120000,
    EntryKind.CHARACTER_DEVICE: 0o020000,
    EntryKind.BLOCK_DEVICE: 0o060000,
    EntryKind.DIRECTORY: 0o040000,
    EntryKind.FIFO: 0o010000,
}
"""Some writers put st_mode into the header, type and all."""

_OCTAL = b"01234567"
_LARGEST = 1 << 63
_SUMS = 1 << 14
NOBODY = (1 << 32) - 1
"""As an owner this number means "leave as it is" to chown."""


def checksum(block: memoryview) -> int:
    """The sum of the block's bytes, with the checksum field read as spaces, as the field should say it."""
    # The low half of Adler-32 is one more than the sum of the bytes as long as that is below 65,521: it is exact for
    # 256 bytes at a time, and ten times as fast as sum().
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - (adler32(block[148:156]) & 0xFFFF)
    return total - 1 + 8 * 32


class PlainSums(dict[bytes, int]):
    """Checksum field -> the low half of the Adler-32 of a plain header that has this field, rightly.

    A plain header is mostly zeros: the sum of its bytes is too small to need halves. There are few sums: each is
    worked out once. A field that is written in another way than most has none (-1).
    """

    def __missing__(self, field: bytes) -> int:
        """Work it out."""
        digits = field[:6]
        total = -1
        if field[6:] == b"\0 " and not digits.strip(_OCTAL):
            total = int(digits, 8) - 8 * 32 + (adler32(field) & 0xFFFF)
        if len(self) < _SUMS:
            self[field] = total
        return total


def is_checksum(field: bytes, total: int) -> bool:
    """Does the checksum field say this sum?"""
    if field == b"%06o\0 " % total:
        return True
    try:
        return number(field) == total and field[0] < 128
    except ImageRefused:
        return False


def number(field: bytes, *, negative: bool = False) -> int:
    """The number in a field: octal digits with spaces around them, NULs behind; or base-256. All else is refused."""
    if field[0] >= 128:
        return _base_256(field, negative=negative)
    # Perl and Java align to the right: every reader leaves out spaces in front.
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    if not digits:
        # Blank means zero to every reader, but some stumble over spaces.
        if field.strip(b"\0"):
            raise ImageRefused(Reason.BAD_NUMBER, f"a numeric field holds {field!r}")
        return 0
    if digits.strip(_OCTAL):
        raise ImageRefused(
            Reason.BAD_SIZE if digits[:1] == b"-" else Reason.BAD_NUMBER, f"a numeric field holds {field!r}"
        )
    return int(digits, 8)


def _base_256(field: bytes, *, negative: bool) -> int:
    # Readers agree about 0x80 and 0xff in front and about nothing between.
    if field[0] == 0x80:
        value = int.from_bytes(field[1:], "big")
    elif field[0] == 0xFF:
        value = int.from_bytes(field, "big", signed=True)
    else:
        raise ImageRefused(Reason.BAD_NUMBER, f"a numeric field begins with the byte {field[0]:#x}")
    if value >= _LARGEST or (value < 0 and not negative) or value < -_LARGEST:
        raise ImageRefused(Reason.BAD_SIZE, f"a numeric field holds {value}")
    return value


def text(field: bytes) -> bytes:
    """The name in a field. What some readers would cut off at a NUL is refused."""
    value = field.rstrip(b"\0")
    if b"\0" in value:
        raise ImageRefused(Reason.NUL_IN_NAME, f"the name {value!r} goes on after a NUL byte")
    return value


def owner(field: bytes, kind: EntryKind) -> tuple[int, int, int]:
    """Mode, uid and gid from their 24 bytes; the type bits that some writers add must be those of the entry."""
    mode = number(field[:8])
    if mode > 0o7777:
        if mode & ~0o7777 != FORMAT_BITS[kind]:
            raise ImageRefused(Reason.BAD_HEADER, f"the mode {mode:o} is that of another type of entry")
        mode &= 0o7777
    return mode, whose(number(field[8:16])), whose(number(field[16:24]))


def whose(value: int) -> int:
    """A uid or gid that a file can have."""
    if value >= NOBODY:
        raise ImageRefused(Reason.BAD_OWNER, f"{value} is not the number of a user or group")
    return value


def unused_is_empty(magic: bytes, kind: bytes, prefix: bytes, rest: bytes) -> bool:
    """Is there nothing where the form has no field? GNU keeps times and sparse maps where POSIX has the prefix."""
    if magic == POSIX:
        return rest == NO_REST  # star keeps its own trailer there, and times inside the prefix
    if kind == b"S":
        return prefix[:41] == NO_PREFIX[:41]
    return prefix == NO_PREFIX and rest == NO_REST


# --- Sparse files in the four forms GNU tar has had, as one map. Pure -----------------------------------

PIECES = 1 << 17
"""A file of 1 GiB with a hole in every second page."""
_DIGITS = 20

Map = tuple[tuple[int, int], ...]


def checked(pieces: list[tuple[int, int]], size: int, stored: int) -> Map:
    """The map without its empty pieces, if it is in order, fits the file, and is what is stored.

    To GNU tar every piece begins with a block of its own, and the file ends where the map does.
    """
    end = total = 0
    for offset, length in pieces:
        if offset < end:
            raise bad(f"a piece begins at {offset}, before the end {end} of the one in front of it")
        if length and total % BLOCK:
            raise bad(f"a piece follows one that ends at {end}, in the middle of a block")
        end = offset + length
        total += length
    if end != size:
        raise bad(f"it ends at {end}, but the file at {size}")
    if total != stored:
        raise bad(f"the pieces have {total} bytes, but {stored} are stored")
    return tuple(piece for piece in pieces if piece[1])


def bad(why: str) -> ImageRefused:
    """A refusal of the map."""
    return ImageRefused(Reason.BAD_SPARSE, f"the map of the sparse file is wrong: {why}")


def old_map(prefix: bytes, block: Callable[[], bytes]) -> tuple[list[tuple[int, int]], int]:
    """The pieces and the size of the old form: four in the header, 21 in each block that follows it."""
    pieces, ended = _old_pieces(prefix[41:137], [], ended=False)
    size = number(prefix[138:150])
    more = prefix[137]
    while more:
        following = block()
        pieces, ended = _old_pieces(following[:504], pieces, ended=ended)
        more = following[504]
        if len(pieces) > PIECES:
            raise bad(f"it has more than {PIECES} pieces")
    return pieces, size


def _old_pieces(table: bytes, pieces: list[tuple[int, int]], *, ended: bool) -> tuple[list[tuple[int, int]], bool]:
    for at in range(0, len(table), 24):
        slot = table[at : at + 24]
        if slot == bytes(24):
            ended = True
            continue
        if ended:
            # Readers stop at the first empty slot, or skip it.
            raise bad("a piece follows the end of the map")
        pieces.append((number(slot[:12]), number(slot[12:])))
    return pieces, ended


def listed_map(numbers: list[bytes], count: bytes) -> list[tuple[int, int]]:
    """The pieces of the forms 0.0 and 0.1: offset, length, offset, length, ..., and how many there are."""
    if len(numbers) != 2 * decimal(count):
        raise bad(f"{count!r} pieces are announced, {len(numbers)} numbers given")
    values = [decimal(each) for each in numbers]
    return list(zip(values[::2], values[1::2], strict=True))


def stored_map(block: Callable[[], bytes]) -> tuple[list[tuple[int, int]], int]:
    """The pieces of the form 1.0, which are in front of the content, and how many bytes they take there."""
    text: list[bytes] = []
    lines, needed = 0, 0
    while not needed or lines < needed:
        piece = block()
        text.append(piece)
        lines += piece.count(b"\n")
        if not needed and lines:
            count = decimal(b"".join(text).split(b"\n", 1)[0])
            if count > PIECES:
                raise bad(f"it has more than {PIECES} pieces")
            needed = 1 + 2 * count
        if len(text) * BLOCK > (needed or 1) * (_DIGITS + 1) + BLOCK:
            raise bad("its numbers are too long")
    numbers = b"".join(text).split(b"\n")
    if b"".join(numbers[needed:]).strip(b"\0") or len(numbers) != needed + 1:
        raise bad("something follows the map")
    return listed_map(numbers[1:needed], numbers[0]), len(text) * BLOCK


def decimal(value: bytes) -> int:
    """A number in plain digits."""
    if not value.isdigit() or len(value) > _DIGITS:
        raise bad(f"{value[:40]!r} is no number")
    return int(value)


def check_name(name: bytes) -> None:
    """The real name of a sparse file must be one."""
    if not name or b"\0" in name:
        raise bad(f"the file is named {name[:80]!r}")
