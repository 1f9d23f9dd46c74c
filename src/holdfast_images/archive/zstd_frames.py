"""The skeleton of a zstd stream (RFC 8878): frames and blocks without their content. Pure.

The decompressor takes a stream that ends too early for one that has ended, and tells of a window only by its memory.
"""

from __future__ import annotations

from collections.abc import Generator

from holdfast_images.archive.reasons import Reason
from holdfast_images.errors import ImageRefused

MAGIC = 0xFD2FB528
SKIPPABLE = 0x184D2A50
FRAMES = 1 << 20
"""Seekable archives have one frame for some hundred KiB; a million empty ones only cost time."""

_DICTIONARY_BYTES = (0, 1, 2, 4)
_CONTENT_BYTES = (0, 2, 4, 8)


class FrameWalker:
    """Follows the compressed bytes from frame to frame; refuses what is no frame, and windows that are too large."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._frames = 0
        self._between = True
        self._held = b""
        self._skip = 0
        self._walk = self._stream()
        self._need = next(self._walk)

    @property
    def is_complete(self) -> bool:
        """Would it be right to end here?"""
        return self._between and not self._held and not self._skip

    def feed(self, piece: bytes) -> None:
        """Look at the next bytes."""
        at = 0
        while at < len(piece):
            if self._skip:
                step = min(self._skip, len(piece) - at)
                self._skip -= step
                at += step
                continue
            step = min(self._need - len(self._held), len(piece) - at)
            self._held += piece[at : at + step]
            at += step
            if len(self._held) == self._need:
                field, self._held = self._held, b""
                self._need = self._walk.send(int.from_bytes(field, "little"))

    def _stream(self) -> Generator[int, int, None]:
        """Yields how many bytes it wants to see next, and is sent their value."""
        while True:
            magic = yield 4
            self._between = False
            self._count()
            if magic == MAGIC:
                yield from self._frame()
            elif magic & 0xFFFFFFF0 == SKIPPABLE:
                self._skip = yield 4
            elif self._frames > 1:
                raise ImageRefused(Reason.TRAILING_DATA, "something that is not zstd follows the zstd stream")
            else:
                raise _damaged("it does not begin with a frame")
            self._between = True

    def _count(self) -> None:
        self._frames += 1
        if self._frames > FRAMES:
            raise ImageRefused(Reason.DECOMPRESSION_BOMB, f"the zstd stream has more than {FRAMES} frames")

    def _frame(self) -> Generator[int, int, None]:
        descriptor = yield 1
        if descriptor & 0b1000:
            raise _damaged("a reserved bit is set in a frame's header")
        single = bool(descriptor & 0b100000)
        if not single:
            self._check_window(_window_size((yield 1)))
        dictionary = _DICTIONARY_BYTES[descriptor & 3]
        if dictionary and (yield dictionary):
            raise _damaged("it needs a dictionary")
        content = _CONTENT_BYTES[descriptor >> 6] or int(single)
        size = (yield content) if content else 0
        if single:
            self._check_window(size + 256 * (content == 2))
        last = False
        while not last:
            header = yield 3
            last = bool(header & 1)
            kind = header >> 1 & 3
            if kind == 3:
                raise _damaged("a block is of the reserved kind")
            self._skip = 1 if kind == 1 else header >> 3
        if descriptor & 0b100:
            yield 4

    def _check_window(self, size: int) -> None:
        if size > self._window:
            raise ImageRefused(
                Reason.WINDOW_TOO_LARGE,
                f"the zstd window is {size} bytes, {self._window} are allowed",
                hint="compress it without --long, or with --long=25 at most",
            )


def _window_size(descriptor: int) -> int:
    base = 1 << (10 + (descriptor >> 3))
    return base + base // 8 * (descriptor & 7)


def _damaged(why: str) -> ImageRefused:
    return ImageRefused(Reason.BAD_COMPRESSION, f"the zstd stream is damaged: {why}")
