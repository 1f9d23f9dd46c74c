"""SHA-256 of files, fast and in flat memory, and the fingerprint that tells when it must be taken again."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import msgspec

from holdfast_images.errors import NoSpace, SourceUnavailable
from holdfast_images.model import Fingerprint

__all__ = ["Fingerprint", "fingerprint_of", "hash_file", "hash_range"]

_BUFFER_BYTES = 1 << 20


def fingerprint_of(file: Path | str | int) -> Fingerprint:
    """The fingerprint of a file, by its path or descriptor."""
    status = os.stat(file)
    return Fingerprint(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def hash_file(
    file: Path | str | int,
    check: Callable[[], None] | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> str:
    """SHA-256 of a file, from its first byte to its last, by its path or descriptor."""
    if not isinstance(file, int):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return hash_file(descriptor, check, on_progress)
        finally:
            os.close(descriptor)
    digest = hashlib.sha256()
    hash_range(file, digest, 0, os.fstat(file).st_size, check, on_progress)
    return digest.hexdigest()


def hash_range(
    descriptor: int,
    digest: hashlib._Hash,
    start: int,
    stop: int,
    check: Callable[[], None] | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Add the bytes of a file from `start` up to, not including, `stop`, or to its end if that comes before."""
    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_SEQUENTIAL)
    # Page-aligned and used again: into fresh or unaligned memory the same reads take twice as long.
    with mmap.mmap(-1, _BUFFER_BYTES) as buffer, memoryview(buffer) as view:
        done = start
        while count := os.preadv(descriptor, [view[: stop - done]], done) if done < stop else 0:
            digest.update(view[:count])
            done += count
            if check is not None:
                check()
            if on_progress is not None:
                on_progress(done, stop)


# --- A file that appears whole or not at all: written under a hidden name, locked by its writer, then renamed ---
#
# While it is written it is longer than the object: behind its end is a record of how much of it is there.

_SUFFIX = ".partial"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RECORD_BYTES = 1024


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How much of which object is in the file. Believed only if the bytes have this digest."""

    origin: str
    etag: str
    size: int
    count: int
    sha256: str


class Partial:
    """The file while it is written. Leaving the `with` block without `publish` removes it, unless it is to be kept.

    Crash: the hidden file stays, and its lock does not; who comes again with the same token goes on with it, and
    `remove_partials` collects it.
    """

    def __init__(self, target: Path, token: str | None = None) -> None:
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValueError(f"{token!r} is no token: 1 to 64 letters, digits, '_' and '-'")
        self.target = target
        self.path = target.with_name(f".{target.name}.{token or os.urandom(6).hex()}{_SUFFIX}")
        self.has_token = token is not None
        self.descriptor = self._create()
        self.is_kept = False
        """Leave it for the next who comes with the same token."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self.is_kept:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self.descriptor)

    def restart(self) -> None:
        """Forget what was written before."""
        os.ftruncate(self.descriptor, 0)

    def kept(self) -> Kept | None:
        """What somebody before has recorded; None if that cannot be understood, or is nothing."""
        length = os.fstat(self.descriptor).st_size
        if length <= _RECORD_BYTES:
            return None
        try:
            kept = msgspec.json.decode(os.pread(self.descriptor, _RECORD_BYTES, length - _RECORD_BYTES), type=Kept)
        except msgspec.MsgspecError:
            return None
        return kept if 0 < kept.count <= kept.size == length - _RECORD_BYTES else None

    def record(self, kept: Kept) -> None:
        """Note how much is there. Not synced: after a power cut the digest tells whether it is true."""
        content = msgspec.json.encode(kept).ljust(_RECORD_BYTES)
        if len(content) == _RECORD_BYTES:
            try:
                os.pwrite(self.descriptor, content, kept.size)
            except OSError as error:
                self.tell_full(error, kept.size)

    def reserve(self, size: int) -> None:
        """Take the space for all of it now; NoSpace with the numbers if it is not there."""
        try:
            os.posix_fallocate(self.descriptor, 0, size + _RECORD_BYTES)
        except OSError as error:
            if error.errno in _FULL:
                self.tell_full(error, size)
            # Another file system without fallocate: the space is found, or not, while writing.
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise

    def tell_full(self, error: OSError, size: int | None) -> NoReturn:
        """Raise NoSpace if the error says so, the error itself if not."""
        if error.errno not in _FULL:
            raise error
        room = os.statvfs(self.target.parent)
        free = room.f_bavail * room.f_frsize
        needed = f"{size} bytes are needed" if size is not None else "the size was not known before"
        raise NoSpace(
            f"no space for {self.target}: {needed}, {free} are free ({os.strerror(error.errno)})",
            hint="remove images that are not needed (gc), raise the quota, or give the disk more space",
        ) from error

    def publish(self, size: int) -> Fingerprint:
        """Make the file, of this size, durable under its own name, replacing what had it, and tell its fingerprint.

        Crash: before the rename the old file is there, after it the new one; never a part of one.
        """
        try:
            os.ftruncate(self.descriptor, size)
            os.fsync(self.descriptor)
        except OSError as error:
            self.tell_full(error, None)
        os.rename(self.path, self.target)
        _sync_directory(self.target.parent)
        # Taken last: the rename changes the time of the inode.
        return fingerprint_of(self.descriptor)

    def _create(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise SourceUnavailable(f"{self.path} is still being written by the try before") from None
            except OSError:
                os.close(descriptor)
                raise
            # Whoever collects leftovers may have locked and removed it between the two calls.
            if os.fstat(descriptor).st_nlink > 0:
                return descriptor
            os.close(descriptor)


def partials_of(target: Path) -> list[Path]:
    """The hidden files of this target, whoever writes or has left them."""
    prefix = f".{target.name}."
    try:
        names = sorted(os.listdir(target.parent))
    except FileNotFoundError:
        return []
    return [
        target.with_name(name)
        for name in names
        # A token has no dot: ".a.tar.1f.partial" is one of "a.tar", and none of "a".
        if name.startswith(prefix) and name.endswith(_SUFFIX) and "." not in name[len(prefix) : -len(_SUFFIX)]
    ]


def remove_partials(target: Path, *, but: str | None = None) -> list[Path]:
    """Remove the hidden files whose writer is dead, and tell which. One that is being written is left alone.

    `but`: the token of one that somebody wants to go on with.
    """
    kept = target.with_name(f".{target.name}.{but}{_SUFFIX}") if but is not None else None
    return [path for path in partials_of(target) if path != kept and _removed(path)]


def _removed(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP}:
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed meanwhile, and perhaps another one made: only the file that was locked is removed.
        if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            path.unlink()
            return True
        return False
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
