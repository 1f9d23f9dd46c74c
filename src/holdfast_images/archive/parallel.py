"""The trees that archives become, of one layer or of many; a second process may write the small files of one."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from holdfast_images.archive.confinement import close_others, deny_system_calls, die_with, limit_file_size
from holdfast_images.archive.entry import (
    Limits,
    Reason,
    printable,
)
from holdfast_images.archive.entry_rules import CRITICAL
from holdfast_images.archive.protocol import FailedMessage, heard, meaning, told
from holdfast_images.archive.rules import OPAQUE, WHITEOUT
from holdfast_images.archive.tree import OPEN_DIRECTORY, Attributes, Tree
from holdfast_images.errors import ImageRefused, TryAgain
from holdfast_images.spawn import BatchGiver, do_batches, widen

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
        second.add(GivenFiles(self._below + path, attributes, size, memoryview(whole)))
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


# --- A second process that writes files of the same tree, as shut in as the one that has started it, and dies with
# it.


# --- Layers, one upon the other: whiteouts, opaque directories, and what a layer may do to the ones below it ---


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


# --- The second process -------------------------------------------------------------------------------------


class GivenFiles(msgspec.Struct, array_like=True, gc=False):
    """A file to be written, in a directory that is there."""

    path: bytes
    attributes: Attributes
    size: int
    content: memoryview


class Wrote(msgspec.Struct, frozen=True, tag="wrote"):
    """One more batch is written; what was lost of all of them so far."""

    owners_lost: int
    xattrs_lost: int


class SecondWriter(BatchGiver[Wrote | FailedMessage]):
    """The first process's end of it.

    Crash: it dies with the process that has started it, and as long as it lives it holds the lock on the target.
    """

    def __init__(self, process: int, batches: int, answers: int) -> None:
        super().__init__(batches, answers, Wrote | FailedMessage)
        self._process = process
        self.owners_lost = 0
        self.xattrs_lost = 0

    def close(self) -> None:
        """Let it end, and wait for that."""
        os.close(self._batches)
        os.waitpid(self._process, 0)
        os.close(self._answers)

    def _meant(self, answer: Wrote | FailedMessage) -> Exception | None:
        if isinstance(answer, FailedMessage):
            return heard(answer)
        self.owners_lost, self.xattrs_lost = answer.owners_lost, answer.xattrs_lost
        return None

    def _gone(self) -> Exception:
        hint = "it was killed, perhaps for want of memory: the kernel's log tells"
        return TryAgain("the second process that writes files has ended", hint=hint)


def start_second_writer(target: int, *, limits: Limits, keep_owner: bool) -> SecondWriter | None:
    """Start it from a process that has shut itself in but for its filter of system calls; None if there can be none."""
    here = os.getpid()
    batches, give = os.pipe()
    hear, answers = os.pipe()
    widen(give)
    try:
        process = os.fork()
    except OSError:
        for descriptor in (batches, give, hear, answers):
            os.close(descriptor)
        return None
    if process == 0:
        try:
            close_others({target, batches, answers})
            die_with(here)
            limit_file_size(limits.file_bytes)
            deny_system_calls()
            # One deeper: what is given may lie in the root of layers.
            tree = _Files(target, depth=limits.depth + 1, keep_owner=keep_owner)
            do_batches(batches, answers, GivenFiles, tree.write)
        finally:
            os._exit(0)  # without a word, the first process sees that this one is gone
    os.close(batches)
    os.close(answers)
    return SecondWriter(process, give, hear)


class _Files(Tree):
    """Makes no directories: those are the first process's, which knows what is told about them."""

    def write(self, files: list[GivenFiles]) -> tuple[Wrote | FailedMessage, bool]:
        """Write a batch."""
        path = b""
        try:
            for file in files:
                path = file.path
                self.add_file(path, file.attributes, file.size, (file.content,))
        except OSError as error:
            return told(meaning(error, printable(path), None)), False
        except ImageRefused as refused:
            located = ImageRefused(refused.code, refused.detail, entry=printable(path), hint=refused.hint)
            return told(located), False
        except Exception as error:  # whatever it is, the first process is told and can tell
            return told(TryAgain(f"{printable(path)} could not be written: {type(error).__name__}: {error}")), False
        return Wrote(self.owners_lost, self.xattrs_lost), True

    def _child(self, parent: int, name: bytes, path: bytes, *, make: bool) -> int:  # noqa: ARG002 - nothing is made
        return super()._child(parent, name, path, make=False)
