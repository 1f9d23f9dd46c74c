"""A tree that two processes write: the second one small files, the first one everything else."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast_images.archive.second_writer import Given, SecondWriter
from holdfast_images.archive.tree import Attributes, Tree

SMALL = 64 << 10
"""Larger files are written where they are read: to hand over their content would cost more than it gains."""
REMEMBERED = 10_000
"""Paths given at most without having heard that they are written."""


class SharedTree(Tree):
    """Makes the same tree as one process would; without a second process, it is any tree.

    Directories are made here, and never replaced, so that files of different names can be written in any order. To a
    name that was given to the second process nothing is done here until it is known to be written.
    """

    def __init__(
        self, root: int, *, depth: int, keep_owner: bool, second: SecondWriter | None = None, below: bytes = b""
    ) -> None:
        super().__init__(root, depth=depth, keep_owner=keep_owner)
        self._second = second
        self._below = below
        """What leads to the root of this tree from that of the second process."""
        self._given: set[bytes] = set()

    def add_file(
        self,
        path: bytes,
        attributes: Attributes,
        size: int,
        content: Iterable[memoryview],
        pieces: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        """As in any tree; perhaps later, by the other process."""
        self._await(path)
        second = self._second
        if second is None or not second.takes() or size > SMALL or pieces is not None or self._is_behind_a_link(path):
            super().add_file(path, attributes, size, content, pieces)
            return
        # Each piece is copied before the next is asked for: they lie in the same buffer.
        whole = b"".join(map(bytes, content))
        second.add(Given(self._below + path, attributes, size, memoryview(whole)))
        self._given.add(path)
        if len(self._given) > REMEMBERED:
            self.settle()

    def add_directory(self, path: bytes, attributes: Attributes) -> None:
        """As in any tree."""
        self._await(path)
        super().add_directory(path, attributes)

    def add_symlink(self, path: bytes, attributes: Attributes, target: bytes) -> None:
        """As in any tree."""
        self._await(path)
        super().add_symlink(path, attributes, target)

    def add_hardlink(self, path: bytes, target: bytes) -> None:
        """As in any tree."""
        self._await(path)
        self._await(target)
        super().add_hardlink(path, target)

    def settle(self) -> None:
        """Everything that was added is written, or what has failed is raised."""
        if self._second is not None:
            self._second.settle()
            self._given.clear()

    def stop_sharing(self) -> None:
        """The second process has written everything given, and ends; the rest is written here."""
        self.settle()
        if self._second is not None:
            self._second.close()
            self.owners_lost += self._second.owners_lost
            self.xattrs_lost += self._second.xattrs_lost
        self._second = None

    def finish(self) -> None:
        """As in any tree."""
        self.stop_sharing()
        super().finish()

    def _child(self, parent: int, name: bytes, path: bytes, *, make: bool) -> int:
        self._await(path)
        return super()._child(parent, name, path, make=make)

    def _is_behind_a_link(self, path: bytes) -> bool:
        """Makes the directory of a file, if it is missing; the second process follows no link to it."""
        self._place(path)
        return self._here != self._asked

    def _await(self, path: bytes) -> None:
        if path in self._given:
            self.settle()
