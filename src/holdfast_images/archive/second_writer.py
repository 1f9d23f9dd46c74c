"""A second process that writes files of the same tree, as shut in as the one that has started it, and dies with it."""

from __future__ import annotations

import os

import msgspec

from holdfast_images.archive.confining import close_others, die_with, limit_file_size
from holdfast_images.archive.entry import Limits
from holdfast_images.archive.failing import heard, meaning, told
from holdfast_images.archive.lines import Failed
from holdfast_images.archive.names import printable
from holdfast_images.archive.seccomp import deny_system_calls
from holdfast_images.archive.tree import Attributes, Tree
from holdfast_images.batches import BatchGiver, do_batches, widen
from holdfast_images.errors import ImageRefused, TryAgain


class Given(msgspec.Struct, array_like=True, gc=False):
    """A file to be written, in a directory that is there."""

    path: bytes
    attributes: Attributes
    size: int
    content: memoryview


class Wrote(msgspec.Struct, frozen=True, tag="wrote"):
    """One more batch is written; what was lost of all of them so far."""

    owners_lost: int
    xattrs_lost: int


class SecondWriter(BatchGiver[Wrote | Failed]):
    """The first process's end of it.

    Crash: it dies with the process that has started it, and as long as it lives it holds the lock on the target.
    """

    def __init__(self, process: int, batches: int, answers: int) -> None:
        super().__init__(batches, answers, Wrote | Failed)
        self._process = process
        self.owners_lost = 0
        self.xattrs_lost = 0

    def close(self) -> None:
        """Let it end, and wait for that."""
        os.close(self._batches)
        os.waitpid(self._process, 0)
        os.close(self._answers)

    def _meant(self, answer: Wrote | Failed) -> Exception | None:
        if isinstance(answer, Failed):
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
            do_batches(batches, answers, Given, tree.write)
        finally:
            os._exit(0)  # without a word, the first process sees that this one is gone
    os.close(batches)
    os.close(answers)
    return SecondWriter(process, give, hear)


class _Files(Tree):
    """Makes no directories: those are the first process's, which knows what is told about them."""

    def write(self, files: list[Given]) -> tuple[Wrote | Failed, bool]:
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
