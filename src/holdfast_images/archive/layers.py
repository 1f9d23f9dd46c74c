"""Layers, one upon the other: whiteouts, opaque directories, and what a layer may do to the ones below it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast_images.archive.attributes import CRITICAL
from holdfast_images.archive.names import printable
from holdfast_images.archive.reasons import Reason
from holdfast_images.archive.rules import OPAQUE, WHITEOUT
from holdfast_images.archive.second_writer import SecondWriter
from holdfast_images.archive.sharing import SharedTree
from holdfast_images.archive.tree import OPEN_DIRECTORY, Attributes
from holdfast_images.errors import ImageRefused


class LayeredTree(SharedTree):
    """A tree that layers are applied to in their order.

    Unlike in a plain tree, an entry may replace whatever a lower layer has put there, and a symbolic link of a lower
    layer on the way to an entry is followed as by a process whose root is this tree: component by component, absolute
    targets from the root, and never above it.
    """

    _follows = True

    def __init__(
        self, root: int, *, depth: int, keep_owner: bool, second: SecondWriter | None = None, below: bytes = b""
    ) -> None:
        super().__init__(root, depth=depth, keep_owner=keep_owner, second=second, below=below)
        self._written: set[bytes] = set()
        self._above: set[bytes] = set()

    def begin_layer(self) -> None:
        """What is there from now on belongs to the lower layers."""
        if self._written:
            # The first layer is mostly the largest. What later ones replace or hide is to be done in their order.
            self.stop_sharing()
        self._written.clear()
        self._above.clear()

    def add_file(
        self,
        path: bytes,
        attributes: Attributes,
        size: int,
        content: Iterable[memoryview],
        pieces: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        """As in a plain tree."""
        super().add_file(path, attributes, size, content, pieces)
        self._note(path, attributes.mode)

    def add_directory(self, path: bytes, attributes: Attributes) -> None:
        """As in a plain tree; the root itself may be told about too."""
        if not path:
            self._directories[b""] = attributes
            return
        super().add_directory(path, attributes)
        self._note(path, attributes.mode)

    def add_symlink(self, path: bytes, attributes: Attributes, target: bytes) -> None:
        """As in a plain tree."""
        super().add_symlink(path, attributes, target)
        self._note(path, 0)

    def add_hardlink(self, path: bytes, target: bytes) -> None:
        """As in a plain tree; the file may be a lower layer's."""
        super().add_hardlink(path, target)
        parent, name = self._place(path)
        self._note(path, os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)

    def hide(self, path: bytes) -> None:
        """Take away what lower layers have; the path is that of a whiteout, or of the mark of an opaque directory."""
        directory, _, mark = path.rpartition(b"/")
        found = self._walk(directory, make=False)
        if found is None:
            return
        here, descriptor = found
        if mark == OPAQUE:
            self._remove_lower_content(descriptor, here)
        else:
            name = mark.removeprefix(WHITEOUT)
            self._remove_lower(descriptor, name, here + b"/" + name if here else name)

    # --- hiding ---------------------------------------------------------------------------------------------

    def _remove_lower_content(self, descriptor: int, here: bytes) -> None:
        for name in _names(descriptor):
            self._remove_lower(descriptor, name, here + b"/" + name if here else name)

    def _remove_lower(self, parent: int, name: bytes, real: bytes) -> None:
        """Remove what lower layers have there; what this layer has written before its whiteout stays."""
        if real not in self._written and real not in self._above:
            self._remove(parent, name, real)
            return
        try:
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        except (NotADirectoryError, FileNotFoundError):
            return  # this layer's own, or what this layer itself has replaced by another name
        try:
            self._remove_lower_content(descriptor, real)
        finally:
            os.close(descriptor)

    def _remove(self, parent: int, name: bytes, real: bytes) -> None:
        """Remove it and everything below, by descriptors: a symbolic link is removed, never followed."""
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
            try:
                for inner in _names(descriptor):
                    self._remove(descriptor, inner, real + b"/" + inner)
            finally:
                os.close(descriptor)
            self._forget(real)
            os.rmdir(name, dir_fd=parent)
        self._asked = None

    # --- what a layered tree does differently ---------------------------------------------------------------

    def _make_room(self, parent: int, name: bytes) -> None:
        # _asked and _here stay right: what is replaced lies in that directory, not above it.
        asked = self._asked
        self._remove(parent, name, self._real(name))
        self._asked = asked

    def _reopen(self, path: bytes) -> int | None:
        try:
            return self._open_real(path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # a later layer has removed or replaced it

    def _note(self, path: bytes, mode: int) -> None:
        """Remember the entry just written as this layer's own."""
        here = self._here
        real = self._real(path.rpartition(b"/")[2])
        # The rules have judged the name in the layer; links of lower layers may have led it elsewhere.
        if mode & 0o002 and real in CRITICAL:
            raise ImageRefused(Reason.WORLD_WRITABLE_CRITICAL, f"everybody may write to {printable(real)}")
        self._written.add(real)
        while here not in self._above:
            self._above.add(here)
            if not here:
                break
            here = here.rpartition(b"/")[0]


def _names(descriptor: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(descriptor)]


def make_root(target: int, name: bytes) -> int:
    """The directory the layers are applied to; it must not be there yet."""
    os.mkdir(name, 0o755, dir_fd=target)
    return os.open(name, OPEN_DIRECTORY, dir_fd=target)
