"""Removal of a tree that anybody may have filled: by descriptors, through no symlink, over no mount."""

from __future__ import annotations

import errno
import os
import stat

from holdfast_images.devices.crash_points import crash_point
from holdfast_images.devices.file_digest import clear_flags
from holdfast_images.devices.locking import DIRECTORY
from holdfast_images.errors import DeviceBusy

DEEPEST = 64


def remove_tree(parent: int, name: str) -> None:
    """Remove a directory and everything in it. Crash: less is left of it; to be repeated.

    However deep it is: what is deeper than so many levels is moved up first, so few descriptors are open at once.
    """
    _allow(parent, name)
    top = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        clear_flags(top)
        device = os.fstat(top).st_dev
        moved = 0
        while True:
            remover = _Remover(top, device, moved)
            remover.empty(top, 0)
            if remover.moved == moved:
                break
            moved = remover.moved
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


class _Remover:
    def __init__(self, top: int, device: int, moved: int) -> None:
        self._top = top
        self._device = device
        self.moved = moved

    def empty(self, directory: int, depth: int) -> None:
        # The names first: a directory that changes while it is read may leave some out.
        with os.scandir(directory) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in names:
            if not is_directory:
                _unlink(directory, name)
            elif depth == DEEPEST:
                self._move_up(directory, name)
            else:
                self._remove(directory, name, depth)

    def _remove(self, parent: int, name: str, depth: int) -> None:
        _allow(parent, name)
        directory = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            if os.fstat(directory).st_dev != self._device:
                raise DeviceBusy(f"something is mounted on {name}", hint="unmount it; what it holds was not touched")
            clear_flags(directory)
            self.empty(directory, depth + 1)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=parent)
        crash_point("delete.half-removed")

    def _move_up(self, parent: int, name: str) -> None:
        _allow(parent, name)
        while True:
            self.moved += 1
            try:
                os.rename(name, f".deep-{self.moved}", src_dir_fd=parent, dst_dir_fd=self._top)
            except OSError as error:
                # The name is taken: by a file, or by a directory with something in it.
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                return


def _unlink(directory: int, name: str) -> None:
    """Also what somebody has made immutable (chattr +i)."""
    try:
        os.unlink(name, dir_fd=directory)
    except PermissionError:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            if not clear_flags(file):
                raise
        finally:
            os.close(file)
        os.unlink(name, dir_fd=directory)


def _allow(parent: int, name: str) -> None:
    """Give ourselves the right to empty a directory that forbids it; root needs none."""
    if os.geteuid() == 0:
        return
    there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(there.st_mode) and there.st_mode & 0o700 != 0o700:
        change_mode(parent, name, 0o700)


def change_mode(parent: int, name: str, mode: int) -> None:
    """chmod of a name that may be unreadable, and is never followed if it is a symlink."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)
