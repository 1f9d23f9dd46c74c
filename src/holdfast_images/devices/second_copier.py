"""A second process that copies files of the same tree."""

from __future__ import annotations

import os

import msgspec

from holdfast_images.batches import BatchGiver, do_batches, widen
from holdfast_images.devices.copying_files import FileCopier
from holdfast_images.devices.locking import open_below
from holdfast_images.devices.manifest import record_of
from holdfast_images.errors import DeviceBusy


class Given(msgspec.Struct, array_like=True, gc=False):
    """A file to be copied, in directories that are there, under the same path in both trees."""

    path: bytes
    name: bytes
    known_as: bytes
    """Its path in the manifest."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """One more batch is copied; the records of its files, for the manifest."""

    records: list[bytes] = []


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot go on: by an error of the system, or, with none, because of what it found."""

    errno: int
    message: str


class SecondCopier(BatchGiver[Copied | Failed]):
    """The first process's end of it.

    Crash: it ends when nobody can give it anything any more, and holds both directories, with their locks, until then.
    """

    def __init__(self, source: int, target: int) -> None:
        # The second process itself has no use for it.
        from holdfast_images.bare_python import start_python  # noqa: PLC0415

        self._process = start_python(__name__, f"{source} {target}", descriptors=(source, target), listens=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        widen(self._process.stdin.fileno())
        self.records: list[bytes] = []
        """Of everything that it has copied so far, in the order in which it was given."""
        super().__init__(self._process.stdin.fileno(), self._process.stdout.fileno(), Copied | Failed)

    def close(self) -> None:
        """End it, and wait for that; what it was given and has not done is not done."""
        self._process.kill()
        self._process.communicate()

    def _meant(self, answer: Copied | Failed) -> Exception | None:
        if isinstance(answer, Copied):
            self.records += answer.records
            return None
        if answer.errno:
            return OSError(answer.errno, answer.message)
        return DeviceBusy(answer.message, hint="it will be tried again")

    def _gone(self) -> Exception:
        return DeviceBusy("the second process that copies has ended", hint="it will be tried again")


def main(argument: str) -> None:
    """The second process: its words are the descriptors of both directories."""
    source, target = map(int, argument.split())
    do_batches(0, 1, Given, _Copier(source, target).copy)


class _Copier:
    def __init__(self, source: int, target: int) -> None:
        self._parents = (source, target)
        self._files = FileCopier()
        self._path = b""
        self._here = self._parents

    def copy(self, files: list[Given]) -> tuple[Copied | Failed, bool]:
        """Copy a batch."""
        records = []
        try:
            for file in files:
                if file.path != self._path:
                    self._go_to(file.path)
                source, target = self._here
                name = os.fsdecode(file.name)
                there = os.stat(name, dir_fd=source, follow_symlinks=False)
                records.append(record_of(file.known_as, there, *self._files.copy(source, name, there, target)))
        except DeviceBusy as error:
            return Failed(0, str(error)), False
        except OSError as error:
            return Failed(error.errno or 0, error.strerror or str(error)), False
        return Copied(records), True

    def _go_to(self, path: bytes) -> None:
        if self._here is not self._parents:
            for descriptor in self._here:
                os.close(descriptor)
        source, target = (open_below(parent, path) for parent in self._parents)
        self._path, self._here = path, (source, target)
