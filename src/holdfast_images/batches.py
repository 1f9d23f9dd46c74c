"""Work for a second process: batches go through one pipe, and for each of them an answer comes back through another."""

from __future__ import annotations

import os
import select
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

Answer = TypeVar("Answer")
Item = TypeVar("Item")

TURN = 32
"""Pieces of work after which it is asked anew who does the next ones."""
LITTLE = 160
"""With so much left to do, the second process is given no more: the first does it itself."""
PIPE_BYTES = 1 << 20
"""As much as anybody may have: with less, the first process would wait for the second more often."""
_F_SETPIPE_SZ = 1031
_LENGTH = struct.Struct("=I")


class BatchGiver(ABC, Generic[Answer]):
    """The first process's end: both work, and whenever the second has little left to do, the next batch is its own.

    Subclasses know what the answers mean.
    """

    def __init__(self, batches: int, answers: int, answer_type: Any) -> None:
        self._batches = batches
        self._answers = answers
        self._decode: Callable[[bytes], Answer] = msgspec.json.Decoder(answer_type).decode
        self._pending = bytearray()
        self._counts: deque[int] = deque()
        self._failure: Exception | None = None
        self._poll = select.poll()
        self._poll.register(answers, select.POLLIN)
        self._waiting = 0
        self._batch: list[object] = []
        self._turn = 0
        self._takes = False
        os.set_blocking(answers, False)

    def takes(self) -> bool:
        """Is the next piece of work to be given, or does it have enough? Raises what has failed."""
        if not self._turn:
            self._turn = TURN
            self._give()
            while self._counts and self._take():
                pass
            self._takes = self._waiting < LITTLE
        self._turn -= 1
        return self._takes

    def add(self, item: object) -> None:
        """Have this done, some time."""
        self._batch.append(item)

    def settle(self) -> None:
        """Wait until everything given is done. Raises what has failed, each time it is asked."""
        if self._failure is not None:
            raise self._failure
        self._give()
        self._wait()

    def _give(self) -> None:
        if not self._batch:
            return
        batch = msgspec.msgpack.encode(self._batch)
        self._counts.append(len(self._batch))
        self._waiting += len(self._batch)
        self._batch = []
        rest = memoryview(_LENGTH.pack(len(batch)) + batch)
        try:
            while rest:
                rest = rest[os.write(self._batches, rest) :]
        except BrokenPipeError:
            self._wait()  # it has ended: its last words say why

    def _wait(self) -> None:
        while self._counts:
            self._poll.poll()
            self._take()

    @abstractmethod
    def _meant(self, answer: Answer) -> Exception | None:
        """What an answer says has failed."""

    @abstractmethod
    def _gone(self) -> Exception:
        """What it means that the second process has ended without a word."""

    def _take(self) -> bool:
        try:
            piece = os.read(self._answers, 1 << 16)
        except BlockingIOError:
            return False
        if not piece:
            self._fail(self._gone())
        self._pending += piece
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            failure = self._meant(self._decode(bytes(line)))
            if failure is not None:
                self._fail(failure)
            self._waiting -= self._counts.popleft()
        return True

    def _fail(self, failure: Exception) -> NoReturn:
        self._failure = failure
        raise failure


def do_batches(batches: int, answers: int, item: type[Item], work: Callable[[list[Item]], tuple[object, bool]]) -> None:
    """The second process's end: do what is given, until nothing comes any more, or `work` says that it cannot go on.

    `work` returns the answer to a batch, and whether to go on.
    """
    decoder = msgspec.msgpack.Decoder(list[item])  # type: ignore[valid-type]
    with open(batches, "rb", closefd=False) as source:
        while length := source.read(_LENGTH.size):
            answer, goes_on = work(decoder.decode(source.read(*_LENGTH.unpack(length))))
            os.write(answers, msgspec.json.encode(answer) + b"\n")
            if not goes_on:
                return


def widen(pipe: int) -> None:
    """Let a pipe hold more than it does at first."""
    import fcntl  # noqa: PLC0415 - for those who give only

    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass  # others of this user have taken all there is: a smaller one does
