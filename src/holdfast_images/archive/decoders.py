"""The digest of a part of a file, taken of the very bytes that others make use of, as they are read."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Generator
from typing import Any, Protocol

import zstandard
from isal import igzip_lib

from holdfast_images.archive.entry import Reason
from holdfast_images.errors import ChecksumMismatch, ImageRefused

HASH_PIECE = 256 << 10


class FileHash:
    """Hashes what is read of a window, front to back, and by itself what the readers leave out."""

    def __init__(self, fd: int, start: int, length: int, algorithm: str = "sha256") -> None:
        self._fd = fd
        self._at = start
        self._end = start + length
        self._algorithm = algorithm
        self._hash = hashlib.new(algorithm)

    @classmethod
    def of_file(cls, fd: int) -> FileHash:
        """Of all of it."""
        return cls(fd, 0, os.fstat(fd).st_size)

    def saw(self, offset: int, read: bytes | memoryview) -> None:
        """These bytes were read there. Nobody goes back: what came before has been hashed."""
        self._hash_up_to(offset)
        assert offset == self._at, "a part of the archive was read twice"
        self._hash.update(read)
        self._at += len(read)

    def refuse_other(self, expected: str, what: str) -> None:
        """Raise ChecksumMismatch unless the window has this digest, whose algorithm is in front of it."""
        self._hash_up_to(self._end)
        found = f"{self._algorithm}:{self._hash.hexdigest()}"
        if found != expected:
            raise ChecksumMismatch(
                f"{what} changed while it was unpacked: it has {found}, and {expected} was verified",
                hint="process the image again: it will be downloaded",
            )

    def _hash_up_to(self, offset: int) -> None:
        if self._at >= min(offset, self._end):
            return
        with mmap.mmap(-1, HASH_PIECE) as memory, memoryview(memory) as buffer:
            while self._at < min(offset, self._end):
                got = os.preadv(self._fd, [buffer[: min(HASH_PIECE, min(offset, self._end) - self._at)]], self._at)
                if not got:
                    return  # it has become shorter: another digest
                self._hash.update(buffer[:got])
                self._at += got


# --- The skeleton of a zstd stream (RFC 8878): frames and blocks without their content. Pure ------------
#
# The decompressor takes a stream that ends too early for one that has ended, and tells of a window only by its memory.

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


# --- gzip, xz and zstd, piece by piece, strictly: every byte belongs to a complete, verified stream -----

# Some builds of Python lack it. Imported here, because the process that reads archives may open nothing later.
lzma: Any
try:
    import lzma
except ImportError:
    lzma = None

XZ_MAGIC = b"\xfd7zXZ\0"
PIECE = 64 << 10
"""Compressed bytes read at a time. What follows the end of a gzip member is copied once per member, so not too many."""
MEMBERS = 1 << 20
"""bgzip makes one member per 64 KiB; a million empty ones only cost time."""
FLAGS = 3
"""Where the flags are in the header of a gzip member."""
XZ_MEMORY = 96 << 20
"""xz -9 takes 65 MiB to decompress."""
ZSTD_WINDOW = 32 << 20
"""What zstd --ultra -20 makes, and less than xz takes: together with all names that is the memory of a reader."""

AGAIN = "the file is not whole: download or make it again"


class ByteSource(Protocol):
    """Decompressed bytes."""

    @property
    def consumed(self) -> int:
        """How many compressed bytes were read for them."""

    def readinto(self, target: memoryview) -> int:
        """Some more bytes; 0 when the compressed stream has ended as it should."""


class Window:
    """A part of a file, read from its beginning to its end."""

    def __init__(self, fd: int, start: int, length: int, hashed: FileHash | None = None) -> None:
        self._fd = fd
        self._start = start
        self._length = length
        self._hashed = hashed
        self.consumed = 0

    def read(self, size: int) -> bytes:
        """The next bytes; none at the end."""
        wanted = min(size, self._length - self.consumed)
        piece = os.pread(self._fd, wanted, self._start + self.consumed) if wanted > 0 else b""
        if wanted > 0 and not piece:
            raise ImageRefused(Reason.TRUNCATED, "the file became shorter while it was read", hint=AGAIN)
        if self._hashed is not None:
            self._hashed.saw(self._start + self.consumed, piece)
        self.consumed += len(piece)
        return piece


class GzipSource:
    """gzip, of any number of members; zeros may follow the last, nothing else."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        self._members = 1
        self._input = self._checked(b"")

    @property
    def consumed(self) -> int:
        """How many compressed bytes were read."""
        return self._window.consumed

    def readinto(self, target: memoryview) -> int:
        """Some more decompressed bytes; 0 at the end."""
        while True:
            if self._member.eof and not self._next_member():
                return 0
            if self._member.needs_input and not self._input:
                self._input = self._window.read(PIECE)
                if not self._input:
                    raise ImageRefused(Reason.TRUNCATED, "the gzip stream is cut off", offset=self.consumed, hint=AGAIN)
            piece, self._input = self._input, b""
            produced = self._inflate(piece, len(target))
            if produced:
                target[: len(produced)] = produced
                return len(produced)

    def _inflate(self, piece: bytes, size: int) -> bytes:
        try:
            return self._member.decompress(piece, size)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # declared as an instance
            raise ImageRefused(
                Reason.BAD_COMPRESSION, f"the gzip stream is damaged: {error}", offset=self.consumed, hint=AGAIN
            ) from None

    def _next_member(self) -> bool:
        rest = self._member.unused_data or self._window.read(PIECE)
        if len(rest) == 1:
            rest += self._window.read(PIECE)
        if rest[:1] == b"\0":
            self._skip_zeros(rest)
            return False
        if not rest:
            return False
        if not rest.startswith(b"\x1f\x8b"):
            raise self._trailing()
        rest = self._checked(rest)
        self._members += 1
        if self._members > MEMBERS:
            raise ImageRefused(Reason.DECOMPRESSION_BOMB, f"the gzip stream has more than {MEMBERS} members")
        self._member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        self._input = rest
        return True

    def _checked(self, beginning: bytes) -> bytes:
        """The beginning of a member, with so much of it that its flags are there; RFC 1952 forbids unknown ones."""
        while len(beginning) <= FLAGS and (more := self._window.read(PIECE)):
            beginning += more
        if beginning[FLAGS:][:1] > b"\x1f":
            raise ImageRefused(
                Reason.BAD_COMPRESSION,
                f"the gzip header has the reserved flags {beginning[FLAGS]:#04x}",
                offset=self.consumed,
                hint="compress the archive once more, by gzip",
            )
        return beginning

    def _skip_zeros(self, rest: bytes) -> None:
        while rest:
            if rest.strip(b"\0"):
                raise self._trailing()
            rest = self._window.read(PIECE)

    def _trailing(self) -> ImageRefused:
        return ImageRefused(
            Reason.TRAILING_DATA, "something that is not gzip follows the gzip stream", offset=self.consumed
        )


class XzSource:
    """xz, of any number of streams; zeros may follow each, four at a time."""

    def __init__(self, window: Window) -> None:
        if lzma is None:
            raise ImageRefused(
                Reason.UNSUPPORTED_COMPRESSION,
                "it is compressed by xz, and this Python was built without it",
                hint="compress the archive by gzip or zstd, or use a Python with the module lzma",
            )
        self._window = window
        self._stream: Any = None
        self._new_stream()
        self._has_ended = False
        self._input = b""

    @property
    def consumed(self) -> int:
        """How many compressed bytes were read."""
        return self._window.consumed

    def readinto(self, target: memoryview) -> int:
        """Some more decompressed bytes; 0 at the end."""
        while not self._has_ended:
            if self._stream.eof and not self._next_stream():
                # Its memory is as much as all names take; what is judged in the end needs some.
                self._has_ended, self._stream = True, None
                break
            if self._stream.needs_input and not self._input:
                self._input = self._window.read(PIECE)
                if not self._input:
                    raise ImageRefused(Reason.TRUNCATED, "the xz stream is cut off", offset=self.consumed, hint=AGAIN)
            piece, self._input = self._input, b""
            produced = self._inflate(piece, len(target))
            if produced:
                target[: len(produced)] = produced
                return len(produced)
        return 0

    def _new_stream(self) -> None:
        self._stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def _inflate(self, piece: bytes, size: int) -> bytes:
        try:
            produced: bytes = self._stream.decompress(piece, size)
        except lzma.LZMAError as error:
            reason = Reason.WINDOW_TOO_LARGE if "emory usage limit" in str(error) else Reason.BAD_COMPRESSION
            raise ImageRefused(
                reason, f"the xz stream cannot be read: {error}", offset=self.consumed, hint=AGAIN
            ) from None
        if self._stream.check == lzma.CHECK_UNKNOWN:
            return produced  # not known before the header is there
        if not lzma.is_check_supported(self._stream.check):
            raise ImageRefused(Reason.BAD_COMPRESSION, "the xz stream has a checksum of an unknown kind", offset=0)
        return produced

    def _next_stream(self) -> bool:
        rest = self._stream.unused_data
        zeros = 0
        while True:
            rest = rest or self._window.read(PIECE)
            left = rest.lstrip(b"\0")
            zeros += len(rest) - len(left)
            if left or not rest:
                break
            rest = b""
        if zeros % 4:
            raise self._trailing()
        if not left:
            return False
        while len(left) < len(XZ_MAGIC) and (more := self._window.read(PIECE)):
            left += more
        if not left.startswith(XZ_MAGIC):
            raise self._trailing()
        self._new_stream()
        self._input = left
        return True

    def _trailing(self) -> ImageRefused:
        return ImageRefused(
            Reason.TRAILING_DATA, "something that is not xz follows the xz stream", offset=self.consumed
        )


class ZstdSource:
    """zstd, of any number of frames, skippable ones too."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._walker = FrameWalker(ZSTD_WINDOW)
        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._reader = decompressor.stream_reader(self, read_size=PIECE, read_across_frames=True)  # type: ignore[arg-type]

    @property
    def consumed(self) -> int:
        """How many compressed bytes were read."""
        return self._window.consumed

    def read(self, size: int) -> bytes:
        """The compressed bytes, for the decompressor; looked at on their way."""
        piece = self._window.read(size)
        self._walker.feed(piece)
        return piece

    def readinto(self, target: memoryview) -> int:
        """Some more decompressed bytes; 0 at the end."""
        try:
            produced = self._reader.readinto(target)
        except zstandard.ZstdError as error:
            raise ImageRefused(
                Reason.BAD_COMPRESSION, f"the zstd stream is damaged: {error}", offset=self.consumed, hint=AGAIN
            ) from None
        if not produced and not self._walker.is_complete:
            raise ImageRefused(Reason.TRUNCATED, "the zstd stream is cut off", offset=self.consumed, hint=AGAIN)
        return produced
