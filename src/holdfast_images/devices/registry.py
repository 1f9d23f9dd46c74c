"""Which thin devices are ours: one directory for each, with its identity and its mount points.

The pool knows numbers only. What is made is recorded under a hidden name first, and on disk, before the pool is told;
renamed when it is whole; and renamed to a hidden name again before it is deleted. So a hidden name that nobody has
locked is a leftover, its number ours to delete, and a number that no name has is somebody else's.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast_images.devices.identity import Identity, read_identity
from holdfast_images.devices.locking import DIRECTORY, is_locked, is_named, open_locked
from holdfast_images.devices.mounting import Mount, mounts
from holdfast_images.devices.removing import remove_tree
from holdfast_images.errors import DeviceBusy, DeviceLost, ImageError

MAKING = ".making-"
TRASH = ".trash-"
MOUNTS = "mounts"
MOST_NAME_BYTES = 120


class Registry:
    """The directory of records."""

    def __init__(self, home: Path, *, patience: float) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home = Path(os.path.realpath(home))
        self._patience = patience
        self._descriptor = os.open(self.home, DIRECTORY)

    def close(self) -> None:
        """Give it up."""
        os.close(self._descriptor)

    # --- looking ---

    def read(self, name: str) -> tuple[bool, Identity | None]:
        """Is there something of this name, and what is it? None if it cannot be read."""
        try:
            directory = os.open(checked(name), DIRECTORY, dir_fd=self._descriptor)
        except FileNotFoundError:
            return False, None
        except NotADirectoryError:
            return True, None
        try:
            return True, read_identity(directory)
        finally:
            os.close(directory)

    def names(self) -> list[str]:
        """Everything that is whole, or was."""
        return sorted(name for name in os.listdir(self._descriptor) if not name.startswith("."))

    def leftovers(self) -> list[str]:
        """Everything that is being made or deleted, or was when somebody died."""
        return sorted(name for name in os.listdir(self._descriptor) if name.startswith((MAKING, TRASH)))

    def leftovers_of(self, thin_id: int) -> list[str]:
        """Those of one number."""
        return [name for name in self.leftovers() if (found := self._hidden(name)) and found.id == thin_id]

    def is_locked(self, name: str) -> bool:
        """Does anybody work on it?"""
        return is_locked(self._descriptor, name)

    def _hidden(self, name: str) -> Identity | None:
        try:
            directory = os.open(name, DIRECTORY, dir_fd=self._descriptor)
        except OSError:
            return None
        try:
            return read_identity(directory)
        finally:
            os.close(directory)

    # --- changing ---

    @contextmanager
    def locked(self, name: str, *, exclusive: bool = True) -> Iterator[int]:
        """The directory of a record. Raises DeviceBusy while others work on it, DeviceLost if it is gone."""
        try:
            directory = open_locked(self._descriptor, name, exclusive=exclusive, patience=self._patience)
        except FileNotFoundError as error:
            raise DeviceLost(f"{name} has just been deleted", hint="it will be made again") from error
        try:
            yield directory
        finally:
            os.close(directory)

    @contextmanager
    def making(self, name: str) -> Iterator[int]:
        """An empty directory under a hidden name, locked. What a dead process left in the pool is gone before."""
        hidden = MAKING + checked(name)
        directory = self._make_hidden(hidden)
        try:
            yield directory
        finally:
            os.close(directory)

    def _make_hidden(self, hidden: str) -> int:
        while True:
            try:
                os.mkdir(hidden, 0o700, dir_fd=self._descriptor)
            except FileExistsError:
                pass
            try:
                return open_locked(self._descriptor, hidden, exclusive=True, patience=self._patience)
            except FileNotFoundError:
                continue  # another process has finished or collected it

    def sync(self) -> None:
        """The names are on disk."""
        os.fsync(self._descriptor)

    def reveal(self, name: str) -> None:
        """What was made is whole. Crash: it is, or is not."""
        try:
            os.rename(MAKING + name, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError as error:
            if os.path.lexists(self.home / name):
                raise DeviceBusy(f"{name} was made by another meanwhile", hint="look again") from error
            raise
        self.sync()

    def trash(self, name: str) -> str:
        """From now on it is a leftover, under the name that is given back."""
        hidden = f"{TRASH}{name}.{secrets.token_hex(4)}"
        os.rename(name, hidden, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        self.sync()
        return hidden

    def remove(self, hidden: str) -> None:
        """Remove the record of a leftover that is not in the pool any more; nothing happens if it is gone."""
        if (self.home / hidden).is_dir():
            remove_tree(self._descriptor, hidden)

    @contextmanager
    def abandoned(self, hidden: str) -> Iterator[Identity | None]:
        """A leftover, locked. Raises DeviceBusy if somebody works on it, FileNotFoundError if it is gone."""
        directory = open_locked(self._descriptor, hidden, exclusive=True, patience=0)
        try:
            yield read_identity(directory)
        finally:
            os.close(directory)

    def is_still(self, directory: int, name: str) -> bool:
        """Does the name still lead to this directory?"""
        return is_named(directory, self._descriptor, name)

    # --- mount points ---

    def point_of(self, name: str) -> Path:
        """Where this process mounts a device."""
        return self.home / checked(name) / MOUNTS / _this_process()

    def mounts_of(self, name: str) -> list[Mount]:
        """Our mounts of a device, every process's, the newest last."""
        return [mount for mount in self.all_mounts() if mount.point.startswith(f"{self.home}/{name}/")]

    def all_mounts(self) -> list[Mount]:
        """Our mounts of all devices, the newest last."""
        return [mount for mount in mounts() if re.match(rf"{re.escape(str(self.home))}/[^/]+/{MOUNTS}/", mount.point)]


def checked(name: str) -> str:
    """A plain name, for files and for the device mapper; ImageError if it is none."""
    plain = name.isascii() and name.isprintable() and not set(name) & set("/\\ \"'")
    if not name or name.startswith(".") or not plain or len(name) > MOST_NAME_BYTES:
        raise ImageError(f"{name!r} cannot be the name of a device", hint="a plain file name that begins with no dot")
    return name


def is_live(point: str) -> bool:
    """Does the process live that has mounted something here?"""
    owner = os.path.basename(point)
    return owner == _process_mark(owner.partition("-")[0])


def _this_process() -> str:
    return _process_mark(str(os.getpid()))


def _process_mark(process: str) -> str:
    """A number of a process and when it began: numbers are used again."""
    try:
        with open(f"/proc/{int(process)}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the 20th field after it is the time of its start.
            return f"{process}-{file.read().rpartition(b')')[2].split()[19].decode()}"
    except (OSError, ValueError):
        return ""
