"""A faithful copy of a tree: everything of each file, directories, links of both kinds, special files.

Of a large tree a second process copies a part of the files.
"""

from __future__ import annotations

import os
import stat

from holdfast_images.devices.copying_files import FileCopier
from holdfast_images.devices.crash_points import crash_point
from holdfast_images.devices.file_digest import attributes_of
from holdfast_images.devices.locking import DIRECTORY, open_below
from holdfast_images.devices.manifest import Manifest, another_name, below, entries_of, searchable, special_content
from holdfast_images.devices.protocol import Usage
from holdfast_images.devices.second_copier import Given, SecondCopier

UNFINISHED_MODE = 0o700


def copy_tree(source_parent: int, target_parent: int, name: str, *, worth_two: int) -> tuple[str, Usage]:
    """Copy a directory from one directory to another. The digest of its manifest, as it was read, and what it holds.

    With more files than `worth_two`, root has two processes copy them, where there are two processors.

    Crash: a part of the copy is left under `name`. A second process ends within moments; until then it holds the locks
    on both parents, if the descriptors given have any.
    """
    copier = _Copier(source_parent, target_parent, name, worth_two)
    try:
        there = os.stat(name, dir_fd=source_parent, follow_symlinks=False)
        copier.copy_directory(source_parent, name, there, target_parent, name, b"")
        copier.finish()
    finally:
        copier.close()
    return copier.manifest.digest(), copier.manifest.tally.usage()


class _Copier:
    def __init__(self, source_parent: int, target_parent: int, name: str, worth_two: int) -> None:
        self.manifest = Manifest()
        self._source_parent = source_parent
        self._parent = target_parent
        self._name = name
        self._files = FileCopier()
        self._second: SecondCopier | None = None
        self._open: list[int] = []
        """Places in the manifest of the files that the second process was given, in their order."""
        self._shared: set[str] = set()
        """Directories of which the second process was given files."""
        self._unfinished: list[tuple[str, os.stat_result]] = []
        # Who is not root may have to change the mode of a directory to get into it, which two cannot do at a time.
        self._may_be_two = os.geteuid() == 0 and len(os.sched_getaffinity(0)) > 1
        self._worth_two = worth_two

    def copy_directory(
        self, source_parent: int, name: str, there: os.stat_result, parent: int, path: str, known_as: bytes
    ) -> None:
        """`path` leads to it from the parent of all; the manifest knows it as a path below the top."""
        os.mkdir(name, UNFINISHED_MODE, dir_fd=parent)
        copy = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            with searchable(source_parent, name, there) as source:
                self.manifest.add(known_as, there, b"", attributes_of(source))
                for raw, entry, attributes in entries_of(source):
                    self.manifest.tally.add(attributes)
                    self._copy_entry(source, entry, attributes, copy, path, below(known_as, raw))
                crash_point("snapshot.half-copied")
                if path in self._shared:
                    self._unfinished.append((path, there))  # there may be files to come
                else:
                    self._files.finish(source, copy, there, UNFINISHED_MODE)
        finally:
            os.close(copy)

    def finish(self) -> None:
        """The second process has copied what it was given; then the directories get their modes and times."""
        if self._second is not None:
            self._second.settle()
            for place, record in zip(self._open, self._second.records, strict=True):
                self.manifest.put_in(place, record)
        for path, there in self._unfinished:
            source, copy = (open_below(parent, os.fsencode(path)) for parent in (self._source_parent, self._parent))
            try:
                self._files.finish(source, copy, there, UNFINISHED_MODE)
            finally:
                os.close(copy)
                os.close(source)

    def close(self) -> None:
        """Nobody copies any more, whether it is all done or not."""
        if self._second is not None:
            self._second.close()

    def _copy_entry(self, source: int, name: str, there: os.stat_result, copy: int, path: str, known_as: bytes) -> None:
        mode = there.st_mode
        if stat.S_ISDIR(mode):
            self.copy_directory(source, name, there, copy, f"{path}/{name}", known_as)
        elif (first := self.manifest.first_name(known_as, there)) is not None:
            self._link(first, copy, name)
            self.manifest.add(known_as, there, another_name(first))
        elif stat.S_ISREG(mode) and there.st_nlink == 1 and self._is_given(path, name, known_as):
            self._open.append(self.manifest.leave_open())
        elif stat.S_ISREG(mode):
            self.manifest.add(known_as, there, *self._files.copy(source, name, there, copy))
        else:
            self.manifest.add(known_as, there, *special_content(source, name, there))
            self._copy_special(source, name, there, copy)

    def _link(self, first: bytes, copy: int, name: str) -> None:
        path, _, first_name = first.rpartition(b"/")
        # Every directory on the way was made by us: there is no symlink to follow.
        parent = open_below(self._parent, below(os.fsencode(self._name), path) if path else os.fsencode(self._name))
        try:
            os.link(os.fsdecode(first_name), name, src_dir_fd=parent, dst_dir_fd=copy, follow_symlinks=False)
        finally:
            os.close(parent)

    def _is_given(self, path: str, name: str, known_as: bytes) -> bool:
        """Does the second process copy this file?"""
        if self._second is None:
            if not self._may_be_two or self.manifest.tally.files < self._worth_two:
                return False
            try:
                self._second = SecondCopier(self._source_parent, self._parent)
            except OSError:
                self._may_be_two = False  # there is no process to be had
                return False
        if not self._second.takes():
            return False
        self._second.add(Given(os.fsencode(path), os.fsencode(name), known_as))
        self._shared.add(path)
        return True

    def _copy_special(self, source: int, name: str, there: os.stat_result, copy: int) -> None:
        if stat.S_ISLNK(there.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=copy)
        else:
            os.mknod(name, there.st_mode, there.st_rdev, dir_fd=copy)
        if (there.st_uid, there.st_gid) != self._files.owner:
            os.chown(name, there.st_uid, there.st_gid, dir_fd=copy, follow_symlinks=False)
        origin_path, copy_path = f"/proc/self/fd/{source}/{name}", f"/proc/self/fd/{copy}/{name}"
        for attribute in os.listxattr(origin_path, follow_symlinks=False):
            value = os.getxattr(origin_path, attribute, follow_symlinks=False)
            os.setxattr(copy_path, attribute, value, follow_symlinks=False)
        if not stat.S_ISLNK(there.st_mode):
            os.chmod(name, stat.S_IMODE(there.st_mode), dir_fd=copy)
        os.utime(name, ns=(there.st_atime_ns, there.st_mtime_ns), dir_fd=copy, follow_symlinks=False)
