"""A second process that writes files of the same tree, as shut in as the one that has started it, and dies with it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
from collections import deque
from collections.abc import Sequence

import msgspec

from holdfast_images.archive.confining import close_others, die_with, limit_file_size
from holdfast_images.archive.entry import Limits
from holdfast_images.archive.failing import heard, meaning, told
from holdfast_images.archive.lines import Failed
from holdfast_images.archive.names import printable
from holdfast_images.archive.seccomp import deny_system_calls
from holdfast_images.archive.tree import Attributes, Tree
from holdfast_images.errors import ImageError, ImageRefused, TryAgain

F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 20
"""As much as anybody may have: with less, the first process would wait for the second more often."""
_LENGTH = struct.Struct("=I")


class Given(msgspec.Struct, array_like=True, gc=False):
    """A file to be written."""

    path: bytes
    attributes: Attributes
    size: int
    content: memoryview


class Wrote(msgspec.Struct, frozen=True, tag="wrote"):
    """One more batch is written; what was lost of all of them so far."""

    owners_lost: int
    xattrs_lost: int


class SecondWriter:
    """The first process's end of it: gives batches of files, and hears of each that it is written.

    Crash: it dies with the process that has started it, and as long as it lives it holds the lock on the target.
    """

    def __init__(self, process: int, batches: int, answers: int) -> None:
        self._process = process
        self._batches = batches
        self._answers = answers
        self._pending = bytearray()
        self._counts: deque[int] = deque()
        self._failure: ImageError | None = None
        self.waiting = 0
        """How many of the files given are not known to be written."""
        self.owners_lost = 0
        self.xattrs_lost = 0
        os.set_blocking(answers, False)

    def give(self, files: Sequence[Given]) -> None:
        """Have these files written, some time. Their directories are there."""
        batch = msgspec.msgpack.encode(files)
        self._counts.append(len(files))
        self.waiting += len(files)
        rest = memoryview(_LENGTH.pack(len(batch)) + batch)
        try:
            while rest:
                rest = rest[os.write(self._batches, rest) :]
        except BrokenPipeError:
            self.settle()  # it has ended: its last words say why

    def hear(self) -> None:
        """Take the answers that are there."""
        while self._counts and self._take():
            pass

    def settle(self) -> None:
        """Wait until everything given is written. Raises what has failed, each time it is asked."""
        if self._failure is not None:
            raise self._failure
        while self._counts:
            select.select([self._answers], [], [])
            self._take()

    def close(self) -> None:
        """Let it end, and wait for that."""
        os.close(self._batches)
        os.waitpid(self._process, 0)
        os.close(self._answers)

    def _take(self) -> bool:
        try:
            piece = os.read(self._answers, 1 << 16)
        except BlockingIOError:
            return False
        if not piece:
            self._fail(TryAgain("the second process that writes files has ended", hint="look at the kernel's log"))
        self._pending += piece
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            answer = msgspec.json.decode(line, type=Wrote | Failed)
            if isinstance(answer, Failed):
                self._fail(heard(answer))
            else:
                self.owners_lost, self.xattrs_lost = answer.owners_lost, answer.xattrs_lost
                self.waiting -= self._counts.popleft()
        return True

    def _fail(self, error: ImageError) -> None:
        self._failure = error
        raise error


class _Files(Tree):
    """Makes no directories: those are the first process's, which knows what is told about them."""

    def _child(self, parent: int, name: bytes, path: bytes, *, make: bool) -> int:  # noqa: ARG002 - nothing is made
        return super()._child(parent, name, path, make=False)


def start_second_writer(target: int, *, limits: Limits, keep_owner: bool) -> SecondWriter | None:
    """Start it from a process that has shut itself in but for its filter of system calls; None if there can be none."""
    here = os.getpid()
    batches, give = os.pipe()
    hear, answers = os.pipe()
    try:
        fcntl.fcntl(give, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass  # others of this user have taken them all: smaller ones do
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
            _write_given(_Files(target, depth=limits.depth + 1, keep_owner=keep_owner), batches, answers)
        finally:
            os._exit(0)  # whatever it was, it was told, or the first process sees that this one is gone
    os.close(batches)
    os.close(answers)
    return SecondWriter(process, give, hear)


def _write_given(tree: Tree, batches: int, answers: int) -> None:
    decoder = msgspec.msgpack.Decoder(list[Given])
    with open(batches, "rb") as source:
        while length := source.read(_LENGTH.size):
            batch = source.read(*_LENGTH.unpack(length))
            answer = _write_batch(tree, decoder.decode(batch))
            os.write(answers, msgspec.json.encode(answer) + b"\n")
            if isinstance(answer, Failed):
                return


def _write_batch(tree: Tree, files: list[Given]) -> Wrote | Failed:
    path = b""
    try:
        for file in files:
            path = file.path
            tree.add_file(path, file.attributes, file.size, (file.content,))
    except OSError as error:
        return told(meaning(error, printable(path), None))
    except ImageRefused as refused:
        return told(ImageRefused(refused.code, refused.detail, entry=printable(path), hint=refused.hint))
    return Wrote(tree.owners_lost, tree.xattrs_lost)
