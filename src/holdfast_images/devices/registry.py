"""Which devices are ours: one directory for each, with its identity in it.

What is made is made under a hidden name first; renamed when it is whole; and renamed to a hidden name again before it
is deleted. So what has a visible name is never half-made by us, and a hidden name that nobody has locked is a leftover.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast_images.devices.identity import Identity, read_identity
from holdfast_images.devices.locking import DIRECTORY, is_locked, is_named, open_locked
from holdfast_images.devices.removing import remove_tree
from holdfast_images.errors import DeviceBusy, DeviceLost, ImageError

MAKING = ".making-"
TRASH = ".trash-"
MOST_NAME_BYTES = 127
"""As many as the device mapper takes."""


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
            with self.opened(name) as directory:
                return True, read_identity(directory)
        except FileNotFoundError:
            return False, None
        except NotADirectoryError:
            return True, None

    def names(self) -> list[str]:
        """Everything that is whole, or was."""
        return sorted(name for name in os.listdir(self._descriptor) if not name.startswith("."))

    def leftovers(self) -> list[str]:
        """Everything that is being made or deleted, or was when somebody died."""
        return sorted(name for name in os.listdir(self._descriptor) if name.startswith((MAKING, TRASH)))

    def leftovers_of(self, thin_id: int) -> list[str]:
        """Those of one number."""
        return [name for name in self.leftovers() if (found := self._hidden(name)) and found.id == thin_id]

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """The directory of a record, to be looked at."""
        directory = os.open(checked(name), DIRECTORY, dir_fd=self._descriptor)
        try:
            yield directory
        finally:
            os.close(directory)

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

    def hold(self, name: str, *, exclusive: bool = False) -> int:
        """The directory of a record, locked until it is closed.

        Raises DeviceBusy while others work on it, DeviceLost if it is gone.
        """
        try:
            return open_locked(self._descriptor, name, exclusive=exclusive, patience=self._patience)
        except FileNotFoundError as error:
            raise DeviceLost(f"{name} has just been deleted", hint="it will be made again") from error

    @contextmanager
    def locked(self, name: str, *, exclusive: bool = True) -> Iterator[int]:
        """The same for as long as the block lasts."""
        directory = self.hold(name, exclusive=exclusive)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextmanager
    def making(self, name: str) -> Iterator[int]:
        """A directory under a hidden name, locked; what a dead process has left in it is still there."""
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
        hidden = f"{TRASH}{name}.{os.urandom(4).hex()}"
        os.rename(name, hidden, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        self.sync()
        return hidden

    def take_back(self, hidden: str, name: str) -> None:
        """It is no leftover after all. Crash: it is one, or is not."""
        os.rename(hidden, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        self.sync()

    def remove(self, hidden: str) -> None:
        """Remove a leftover and everything in it; nothing happens if it is gone."""
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


def checked(name: str) -> str:
    """A plain name, for files and for the device mapper; ImageError if it is none."""
    plain = name.isascii() and name.isprintable() and not set(name) & set("/\\ \"'")
    if not name or name.startswith(".") or not plain or len(name) > MOST_NAME_BYTES:
        raise ImageError(f"{name!r} cannot be the name of a device", hint="a plain file name that begins with no dot")
    return name
