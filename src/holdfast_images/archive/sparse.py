"""Sparse files in the four forms GNU tar has had, as one map. Pure."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_images.archive.header import BLOCK, number
from holdfast_images.archive.reasons import Reason
from holdfast_images.errors import ImageRefused

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
