"""Images that are files of this host already."""

from __future__ import annotations

import os
import stat

from holdfast_images.errors import AccessDenied, ObjectNotFound, Permanent, SourceChanged, SourceUnavailable
from holdfast_images.source.answers import Answer, Question
from holdfast_images.source.locations import FileObject


class FileReader:
    """Reads a regular file by the same questions as an object; a change of it while it is read is noticed."""

    def __init__(self, location: FileObject) -> None:
        self.at: int | None = None
        self._where = str(location)
        self._path = location.path
        self._descriptor: int | None = None
        self._stop = 0
        self._etag: str | None = None

    def ask(self, question: Question) -> Answer:
        """Begin to read the bytes that are asked for."""
        if self._descriptor is None:
            self._descriptor = self._open()
        status = os.fstat(self._descriptor)
        size = status.st_size
        self._etag = question.etag or _etag(status)
        self._refuse_change()
        self.at = question.start
        self._stop = size if question.stop is None else min(question.stop, size)
        return Answer(length=self._stop - self.at, size=size, etag=self._etag, ranged=True)

    def read_into(self, view: memoryview) -> int:
        """Read on; 0 at the end."""
        if self.at is None or self._descriptor is None or self.at >= self._stop:
            self.at = None
            return 0
        try:
            count = os.preadv(self._descriptor, [view[: self._stop - self.at]], self.at)
        except OSError as error:
            raise SourceUnavailable(f"{self._where}: {error.strerror}") from error
        # After reading, so that what was read is known to be of the file that was asked for.
        self._refuse_change()
        self.at = self.at + count if self.at + count < self._stop else None
        return count

    def watch(self, now: float) -> None:
        """A file does not stall, or nothing can be done about it."""

    def interrupt(self, reason: str) -> None:
        """A read from a disk cannot be interrupted, and is soon over."""

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self.at = None

    def _open(self) -> int:
        try:
            # Without blocking, so that a pipe that nobody writes to is not waited for.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFound(f"there is no file {self._where}") from None
        except PermissionError:
            raise AccessDenied(f"{self._where} may not be read by this user") from None
        except OSError as error:
            raise SourceUnavailable(f"{self._where}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Permanent(f"{self._where} is no regular file", hint="give the path of the archive itself")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return descriptor

    def _refuse_change(self) -> None:
        assert self._descriptor is not None
        if _etag(os.fstat(self._descriptor)) != self._etag:
            raise SourceChanged(f"{self._where} was changed while it was read")


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'
