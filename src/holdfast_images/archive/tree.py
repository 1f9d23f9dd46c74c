"""Writes below one directory: every name is reached by descriptors, never through a symbolic link, never outside."""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from holdfast_images.archive.entry import Reason
from holdfast_images.durable import sync_file_system
from holdfast_images.errors import ImageRefused

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_DIRECTORIES = 256
"""Descriptors of directories kept open at most."""
UNFINISHED_MODE = 0o700
"""Of a directory until everything below it is written: its own mode may forbid that."""
NOBODY = 0xFFFFFFFF
"""As a user or group, chown(2) takes it for "leave as it is"."""


class Attributes(msgspec.Struct, array_like=True, gc=False):
    """What is told about an entry besides its content."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int | None
    """None: the time of writing."""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class Tree:
    """The directory `root` and what is made below it. Paths are normalised bytes without a leading slash.

    A plain tree: nothing is written through a symbolic link, and no directory is ever replaced.
    Crash: what was written stays; nothing of it may be believed before finish() has returned.
    """

    _follows = False
    """Whether a symbolic link on the way is followed, inside the root, or refused."""

    def __init__(self, root: int, *, depth: int, keep_owner: bool) -> None:
        self._root = root
        self._depth = depth
        self._keep_owner = keep_owner
        self._uid = os.geteuid()
        self._gid = os.getegid()
        self._opened: OrderedDict[bytes, int] = OrderedDict()
        # The directory of the last entry, because the next one is mostly in the same: as asked for, as it is, opened.
        self._asked: bytes | None = None
        self._here = b""
        self._descriptor = root
        self._directories: dict[bytes, Attributes] = {}
        self.owners_lost = 0
        """Entries that belong to the user who extracts instead of to their owner."""
        self.xattrs_lost = 0
        """Extended attributes that the file system or the kernel would not take."""
        self._prepare()

    def _prepare(self) -> None:
        os.umask(0)
        mode = os.fstat(self._root).st_mode
        # Either would give everything made here another mode or group than it is told to have.
        if mode & stat.S_ISGID:
            os.fchmod(self._root, stat.S_IMODE(mode) & ~stat.S_ISGID)
        try:
            os.removexattr(self._root, "system.posix_acl_default")
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise

    # --- entries --------------------------------------------------------------------------------------------

    def add_file(
        self,
        path: bytes,
        attributes: Attributes,
        size: int,
        content: Iterable[memoryview],
        pieces: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        """A regular file with this content; `pieces` says where the content goes if the file has holes."""
        parent, name = self._place(path)
        permissions = attributes.mode & 0o777
        try:
            descriptor = os.open(name, CREATE_FILE, permissions, dir_fd=parent)
        except FileExistsError:
            self._make_room(parent, name)
            descriptor = os.open(name, CREATE_FILE, permissions, dir_fd=parent)
        try:
            if pieces is not None:
                _write_pieces(descriptor, size, content, pieces)
            elif size:
                _write_all(descriptor, size, content)
            self._set(descriptor, attributes, permissions)
        finally:
            os.close(descriptor)

    def add_directory(self, path: bytes, attributes: Attributes) -> None:
        """A directory; one that is there keeps its content. What is told about it is set by finish()."""
        if not path:
            return  # the root itself is the caller's
        parent, name = self._place(path)
        real = self._real(name)
        try:
            os.mkdir(name, UNFINISHED_MODE, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                self._make_room(parent, name)
                os.mkdir(name, UNFINISHED_MODE, dir_fd=parent)
        self._directories[real] = attributes

    def add_symlink(self, path: bytes, attributes: Attributes, target: bytes) -> None:
        """A symbolic link; where it points to is nobody's business here."""
        parent, name = self._place(path)
        try:
            os.symlink(target, name, dir_fd=parent)
        except FileExistsError:
            self._make_room(parent, name)
            os.symlink(target, name, dir_fd=parent)
        if (attributes.uid != self._uid or attributes.gid != self._gid) and self._owner_is_kept(attributes):
            os.chown(name, attributes.uid, attributes.gid, dir_fd=parent, follow_symlinks=False)
        if attributes.mtime_ns is not None:
            times = (attributes.mtime_ns, attributes.mtime_ns)
            os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)
        # There is no call that sets one on a link by descriptor, and what the rules let through cannot be set on links.
        self.xattrs_lost += len(attributes.xattrs)

    def add_hardlink(self, path: bytes, target: bytes) -> None:
        """Another name of a regular file of this tree; what its header tells besides is the first name's matter."""
        found, source = self._place(target)
        # Kept open: the way to the new name may close what was opened for the old one.
        elsewhere = path.rpartition(b"/")[0] != self._asked
        source_parent = os.dup(found) if elsewhere else found
        try:
            original = os.stat(source, dir_fd=source_parent, follow_symlinks=False)
            if not stat.S_ISREG(original.st_mode):
                raise ImageRefused(Reason.HARDLINK_TARGET, "a hard link may only lead to a regular file")
            parent, name = self._place(path)
            try:
                os.link(source, name, src_dir_fd=source_parent, dst_dir_fd=parent, follow_symlinks=False)
            except FileExistsError:
                if os.path.samestat(original, os.stat(name, dir_fd=parent, follow_symlinks=False)):
                    return
                self._make_room(parent, name)
                os.link(source, name, src_dir_fd=source_parent, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise ImageRefused(Reason.HARDLINK_TARGET, "a hard link leads to a file the image does not have") from None
        finally:
            if elsewhere:
                os.close(source_parent)

    def finish(self) -> None:
        """Everything is as told and on the disk. Crash: only after this has returned may the tree be believed."""
        # Backwards, a directory comes after everything below it: its mode may close it, and its time changes no more.
        for path in sorted(self._directories, reverse=True):
            descriptor = self._reopen(path)
            if descriptor is not None:
                self._set(descriptor, self._directories[path], UNFINISHED_MODE)
                self._forget(path)
        self.close()
        sync_file_system(self._root)

    def close(self) -> None:
        """Let go of every descriptor; the root's is the caller's."""
        self._asked = None
        while self._opened:
            os.close(self._opened.popitem()[1])

    # --- what subclasses change -----------------------------------------------------------------------------

    def _make_room(self, parent: int, name: bytes) -> None:
        """Something has this name: a file makes room for a later one. unlink never follows, nor takes directories."""
        try:
            os.unlink(name, dir_fd=parent)
        except IsADirectoryError:
            raise ImageRefused(
                Reason.DUPLICATE_TYPE_CHANGE, "a directory cannot be replaced by something else"
            ) from None

    def _reopen(self, path: bytes) -> int | None:
        """The directory once more, for finish()."""
        return self._open_real(path)

    # --- the way there --------------------------------------------------------------------------------------

    def _place(self, path: bytes) -> tuple[int, bytes]:
        """The directory an entry goes to, made if it is missing, and the entry's name in it."""
        parent, _, name = path.rpartition(b"/")
        if parent != self._asked:
            here = self._walk(parent)
            assert here is not None
            self._here, self._descriptor = here
            self._asked = parent
        return self._descriptor, name

    def _real(self, name: bytes) -> bytes:
        """The path of an entry in the directory that _place() has found, free of symbolic links."""
        return self._here + b"/" + name if self._here else name

    def _walk(self, path: bytes, *, make: bool = True) -> tuple[bytes, int] | None:
        """The real path and the descriptor of a directory; None if it is missing and shall not be made."""
        descriptor = self._opened.get(path)
        if descriptor is not None:
            self._opened.move_to_end(path)
            return path, descriptor
        here, descriptor = b"", self._root
        parts = path.split(b"/")[::-1] if path else []
        links = 0
        while parts:
            part = parts.pop()
            if part in {b"", b"."}:
                continue
            if part == b"..":  # from the target of a link; above the root is the root
                here = here.rpartition(b"/")[0]
                descriptor = self._open_real(here)
                continue
            below = here + b"/" + part if here else part
            try:
                descriptor = self._child(descriptor, part, below, make=make)
                here = below
            except FileNotFoundError:
                if make:
                    raise
                return None
            except NotADirectoryError:
                target = self._link_target(descriptor, part)
                links += 1
                if links > 40:
                    raise ImageRefused(Reason.SYMLINK_LOOP, "more than 40 symbolic links on the way") from None
                if target.startswith(b"/"):
                    here, descriptor = b"", self._root
                parts.extend(reversed(target.split(b"/")))
        if here.count(b"/") >= self._depth:
            raise ImageRefused(Reason.MAX_DEPTH, f"more than {self._depth} directories deep")
        return here, descriptor

    def _link_target(self, parent: int, name: bytes) -> bytes:
        try:
            target = os.readlink(name, dir_fd=parent)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ImageRefused(Reason.PARENT_NOT_DIRECTORY, "a file stands where a directory should be") from None
        if not self._follows:
            raise ImageRefused(Reason.WRITE_THROUGH_SYMLINK, "a symbolic link stands where a directory should be")
        return target

    def _open_real(self, path: bytes) -> int:
        """The descriptor of a directory whose path is free of links."""
        descriptor = self._root
        below = b""
        for part in path.split(b"/") if path else ():
            below = below + b"/" + part if below else part
            descriptor = self._child(descriptor, part, below, make=False)
        return descriptor

    def _child(self, parent: int, name: bytes, path: bytes, *, make: bool) -> int:
        """One directory further. The parent's descriptor is the youngest or the root: this does not close it."""
        descriptor = self._opened.get(path)
        if descriptor is not None:
            self._opened.move_to_end(path)
            return descriptor
        try:
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(name, UNFINISHED_MODE, dir_fd=parent)
            self._directories[path] = Attributes(0o755, 0, 0, None)
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:  # Linux says ENOTDIR; POSIX allows both
                raise NotADirectoryError(error.errno, error.strerror) from None
            raise
        self._opened[path] = descriptor
        if len(self._opened) > OPEN_DIRECTORIES:
            self._forget(next(iter(self._opened)))
        return descriptor

    def _forget(self, path: bytes) -> None:
        descriptor = self._opened.pop(path, None)
        if descriptor is not None:
            if descriptor == self._descriptor:
                self._asked = None
            os.close(descriptor)

    # --- what is told about an entry ------------------------------------------------------------------------

    def _set(self, descriptor: int, attributes: Attributes, mode: int) -> None:
        """Make it so, in the only order that works: chown clears setuid and capabilities, and all change the time."""
        if (attributes.uid != self._uid or attributes.gid != self._gid) and self._owner_is_kept(attributes):
            os.fchown(descriptor, attributes.uid, attributes.gid)
        for name, value in attributes.xattrs:
            self._set_xattr(descriptor, name, value)
        if attributes.mode != mode:
            os.fchmod(descriptor, attributes.mode)
        if attributes.mtime_ns is not None:
            os.utime(descriptor, ns=(attributes.mtime_ns, attributes.mtime_ns))

    def _owner_is_kept(self, attributes: Attributes) -> bool:
        if not self._keep_owner:
            self.owners_lost += 1
            return False
        if not (0 <= attributes.uid < NOBODY and 0 <= attributes.gid < NOBODY):
            raise ImageRefused(Reason.BAD_OWNER, f"{attributes.uid}:{attributes.gid} is no user and group")
        return True

    def _set_xattr(self, descriptor: int, name: bytes, value: bytes) -> None:
        try:
            os.setxattr(descriptor, name, value)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EPERM):
                raise
            self.xattrs_lost += 1


def _write_all(descriptor: int, size: int, content: Iterable[memoryview]) -> None:
    left = size
    for chunk in content:
        left -= len(chunk)
        if left < 0:
            raise ImageRefused(Reason.BAD_SIZE, "more content than the header says")
        written = os.write(descriptor, chunk)
        while written < len(chunk):
            written += os.write(descriptor, chunk[written:])
    if left:
        raise ImageRefused(Reason.TRUNCATED, "less content than the header says")


def _write_pieces(
    descriptor: int, size: int, content: Iterable[memoryview], pieces: tuple[tuple[int, int], ...]
) -> None:
    """Content goes into the pieces one after the other; what lies between them stays a hole."""
    os.ftruncate(descriptor, size)
    remaining = iter(pieces)
    offset = left = 0
    for chunk in content:
        view = chunk
        while len(view):
            while not left:
                offset, left = next(remaining, (-1, 0))
                if offset < 0:
                    raise ImageRefused(Reason.BAD_SPARSE, "more content than the sparse map has place for")
            if offset + left > size:
                raise ImageRefused(Reason.BAD_SPARSE, "a piece of a sparse file ends behind the file")
            written = os.pwrite(descriptor, view[:left], offset)
            offset += written
            left -= written
            view = view[written:]
    if left or any(length for _, length in remaining):
        raise ImageRefused(Reason.BAD_SPARSE, "less content than the sparse map says")
