"""The next buffers are filled by a thread while the last one is being used."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from holdfast_images.archive.decoders import XZ_MAGIC, ByteSource, FileHash, GzipSource, Window, XzSource, ZstdSource
from holdfast_images.archive.entry import Limits, Reason
from holdfast_images.errors import ImageRefused

BUFFERS = 3
"""One is in use, one is full, one is being filled: more would only leave the processor's cache."""


class ReadAhead:
    """Hands out buffers in the order in which `fill` has filled them; `fill` says how far, and 0 at the end.

    What `fill` raises is raised by next(), when all that came before it was handed out.
    """

    def __init__(self, fill: Callable[[memoryview], int], size: int) -> None:
        self._fill = fill
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._filled: SimpleQueue[tuple[memoryview, int] | BaseException] = SimpleQueue()
        self._used: memoryview | None = None
        self._last: tuple[memoryview, int] | BaseException | None = None
        for _ in range(BUFFERS):
            self._free.put(memoryview(mmap.mmap(-1, size)))
        self._thread = threading.Thread(target=self._run, name="holdfast-read-ahead", daemon=True)
        self._thread.start()

    def next(self) -> tuple[memoryview, int]:
        """The next buffer and how much is in it; the one handed out before is filled anew."""
        if self._used is not None:
            self._free.put(self._used)
            self._used = None
        got = self._filled.get() if self._last is None else self._last
        if isinstance(got, BaseException):
            self._last = got
            raise got
        if got[1]:
            self._used = got[0]
        else:
            self._last = got
        return got

    def close(self) -> None:
        """End the thread, whatever it has read."""
        self._free.put(None)
        self._thread.join()

    def _run(self) -> None:
        filled = 1
        while filled and (buffer := self._free.get()) is not None:
            try:
                filled = self._fill(buffer)
            except BaseException as error:
                self._filled.put(error)
                return
            self._filled.put((buffer, filled))


# --- The bytes of an archive, decompressed as they are read, whatever they were compressed with; bombs are cut off ---

BLOCK = 512
BUFFER = 256 << 10
"""Small enough to stay in the processor's cache: larger ones were slower."""
FAR, LITTLE = 32 << 10, 4 << 10
"""So much content is worth a seek instead of being read through; so much is read where it ends."""
RATIO_FROM = 64 << 20
"""A small archive may well be all zeros."""
HEADERS_PER_ENTRY = 16 << 10
"""What names, extension headers and padding may add to the content in the decompressed stream."""

_SOURCES: dict[str, Callable[[Window], ByteSource]] = {"gzip": GzipSource, "xz": XzSource, "zstd": ZstdSource}
_FOREIGN = {
    b"BZh": "bzip2",
    b"\x5d\0\0": "lzma",
    b"\x1f\x9d": "compress",
    b"\x1f\xa0": "compress",
    b"LZIP": "lzip",
    b"\x04\x22\x4d\x18": "lz4",
}


def open_stream(
    fd: int, *, limits: Limits, start: int = 0, length: int | None = None, hashed: FileHash | None = None
) -> Stream:
    """The content of the window [start, start + length) of the file, decompressed if its first bytes say so.

    `hashed` is shown everything that is read of it.
    """
    available = max(0, os.fstat(fd).st_size - start)
    length = available if length is None else length
    if length > available:
        raise ImageRefused(Reason.TRUNCATED, f"{length} bytes were expected, {available} are there")
    if length > limits.image_bytes:
        raise ImageRefused(Reason.IMAGE_TOO_LARGE, f"it has {length} bytes, an image may have {limits.image_bytes}")
    kind = _compression(os.pread(fd, min(8, length), start))
    if kind == "none":
        return Stream(fd, start, length, hashed)
    return CompressedStream(_SOURCES[kind](Window(fd, start, length, hashed)), kind, limits)


def _compression(beginning: bytes) -> str:
    if beginning.startswith(b"\x1f\x8b"):
        return "gzip"
    # The second is a skippable frame, with which a zstd file may begin.
    if beginning.startswith(b"\x28\xb5\x2f\xfd") or (beginning[1:4] == b"\x2a\x4d\x18" and beginning[0] >> 4 == 5):
        return "zstd"
    if beginning.startswith(XZ_MAGIC):
        return "xz"
    for magic, name in _FOREIGN.items():
        if beginning.startswith(magic):
            raise ImageRefused(
                Reason.UNSUPPORTED_COMPRESSION,
                f"it is compressed by {name}",
                offset=0,
                hint="compress the archive by gzip, xz or zstd",
            )
    return "none"


class Stream:
    """An archive that is not compressed: blocks are handed out by index into a buffer, skipped content is not read.

    The buffer begins and ends at multiples of 512 bytes or at the end of the stream, so no block is ever split.
    """

    compression = "none"

    def __init__(self, fd: int, start: int, length: int, hashed: FileHash | None = None) -> None:
        self._fd = fd
        self._start = start
        self._hashed = hashed
        self.length: int | None = length
        """None if only reading it through can tell."""
        # Page-aligned: the kernel copies into it twice as fast.
        self.buffer = memoryview(mmap.mmap(-1, BUFFER))
        self.base = 0
        """Where in the stream the buffer begins."""
        self._next = 0
        self._end = 0
        self._wanted = LITTLE
        """How much is read next: little at first, where a large file may be, or the only header that is wanted."""

    @property
    def position(self) -> int:
        """How many bytes of the stream have been handed out or skipped."""
        return self.base + self._next

    def block(self, skip: int = 0) -> int:
        """Leave out `skip` bytes and hand out 512: their index in `buffer`, or -1 at the end of the stream."""
        return self.block_at(self.base + self._next + skip)

    def block_at(self, offset: int) -> int:
        """The same, for the block at an offset in the stream that was not handed out yet."""
        index = offset - self.base
        if index + BLOCK <= self._end:
            self._next = index + BLOCK
            return index
        if index > self._end:
            self._jump(index - self._next)
        else:
            self._next = index
        if self._next == self._end and not self._fill():
            return -1
        if self._end - self._next < BLOCK:
            raise ImageRefused(
                Reason.TRUNCATED, "it ends in the middle of a block", offset=self.base + self._end, hint=AGAIN
            )
        self._next += BLOCK
        return self._next - BLOCK

    def chunk(self, limit: int) -> memoryview:
        """Some of the next bytes, at most `limit`, none only at the end; valid until the next call."""
        if self._next == self._end:
            self._fill()
        begin = self._next
        self._next = min(self._end, begin + limit)
        return self.buffer[begin : self._next]

    def skip(self, count: int) -> None:
        """Leave out bytes; they must be there."""
        if count <= self._end - self._next:
            self._next += count
        else:
            self._jump(count)

    def close(self) -> None:
        """Give back what it holds; the descriptor stays open."""

    def _jump(self, count: int) -> None:
        target = self.base + self._next + count
        assert self.length is not None
        if target > self.length:
            raise ImageRefused(Reason.TRUNCATED, "it ends in the middle of content", offset=self.length, hint=AGAIN)
        # Behind a large file another one is likely: then only its header is wanted.
        self._wanted = LITTLE if target - self.base - self._end > FAR else BUFFER
        self.base = target
        self._next = self._end = 0

    def _fill(self) -> int:
        """Replace the used-up buffer by what comes next; 0 at the end."""
        assert self.length is not None
        self.base += self._end
        self._next = self._end = filled = 0
        wanted = min(self._wanted, self.length - self.base)
        self._wanted = BUFFER
        while filled < wanted:
            got = os.preadv(self._fd, [self.buffer[filled:wanted]], self._start + self.base + filled)
            if got == 0:
                raise ImageRefused(Reason.TRUNCATED, "the file became shorter while it was read", hint=AGAIN)
            filled += got
        if self._hashed is not None:
            self._hashed.saw(self._start + self.base, self.buffer[:filled])
        self._end = filled
        return filled


AGAIN = "the file is not whole: download or make it again"


class CompressedStream(Stream):
    """A compressed archive. Judges, as it goes, how much comes out of how little."""

    def __init__(self, source: ByteSource, compression: str, limits: Limits) -> None:
        super().__init__(-1, 0, 0)
        self.compression = compression
        self.length = None
        self._source = source
        self._most = limits.total_bytes + (limits.entries + 2) * HEADERS_PER_ENTRY
        self._ratio = limits.ratio
        self._produced = 0
        self._ahead: ReadAhead | None = None

    def close(self) -> None:
        """End the thread that reads ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def _jump(self, count: int) -> None:
        while count > self._end - self._next:
            count -= self._end - self._next
            if not self._fill():
                raise ImageRefused(
                    Reason.TRUNCATED, "it ends in the middle of content", offset=self.position, hint=AGAIN
                )
        self._next += count

    def _fill(self) -> int:
        self.base += self._end
        self._next = self._end = 0
        # A thread only behind the first buffer: most streams are short, or no more than their beginning is wanted.
        if self._produced < BUFFER:
            self._end = self._decompress(self.buffer)
            self._refuse_nested()
            return self._end
        if self._ahead is None:
            self._ahead = ReadAhead(self._decompress, BUFFER)
        self.buffer, self._end = self._ahead.next()
        return self._end

    def _refuse_nested(self) -> None:
        try:
            nested = _compression(bytes(self.buffer[: min(8, self._end)]))
        except ImageRefused as foreign:
            nested = foreign.detail.rpartition(" ")[2]
        if nested != "none":
            raise ImageRefused(
                Reason.NESTED_COMPRESSION,
                f"there is {nested} inside the {self.compression}",
                offset=0,
                hint="compress the archive once",
            )

    def _decompress(self, target: memoryview) -> int:
        """Fill the target, but at the end of the stream; what is produced is judged before anybody sees it."""
        filled = 0
        while filled < len(target) and (got := self._source.readinto(target[filled:])):
            filled += got
        self._produced += filled
        self._judge(self._produced)
        return filled

    def _judge(self, produced: int) -> None:
        if produced > self._most:
            raise ImageRefused(
                Reason.DECOMPRESSION_BOMB, f"it expands to more than {self._most} bytes", offset=produced
            )
        if produced > RATIO_FROM and produced > self._ratio * self._source.consumed:
            raise ImageRefused(
                Reason.DECOMPRESSION_BOMB,
                f"{self._source.consumed} bytes expand to {produced}, more than {self._ratio} times as much",
                offset=produced,
            )
