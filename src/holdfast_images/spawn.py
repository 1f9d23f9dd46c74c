"""Processes of our own that start with as little as can be."""

from __future__ import annotations

import os
import select
import struct
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import msgspec

from holdfast_images.errors import NotInstalled

if TYPE_CHECKING:
    import subprocess


START = """
import gc, os, sys
gc.disable()
sys.path += sys.argv[3:]
sys.modules["typing_extensions"] = None
__import__(sys.argv[1], fromlist=["main"]).main(sys.argv[2])
os._exit(0)
"""
"""Its program. Where its packages are, it is told, and does not look for them.

Half of its start and its end is spared: msgspec takes from `typing` what it would take from typing_extensions, which
imports a good part of the standard library; what is imported holds no garbage, and need not be taken apart.
"""
PACKAGES = ("holdfast", "holdfast_images", "isal", "msgspec", "zstandard")
"""Besides the standard library, and after it: all that such a process imports."""


def start_python(
    module: str,
    argument: str,
    *,
    descriptors: Sequence[int],
    listens: bool = False,
) -> subprocess.Popen[bytes]:
    """A process that calls main() of a module, with nothing of ours but these descriptors and a pipe for its words.

    One that listens has a pipe for its input too, and shares this process's errors. It is in a session of its own: what
    a terminal sends to this process is not for it.
    """
    import subprocess  # noqa: PLC0415 - a re-run only asks where the packages are, and starts nothing

    return subprocess.Popen(  # noqa: S603 - this program, no shell
        [sys.executable, "-I", "-S", "-c", START, module, argument, *import_paths()],
        stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if listens else subprocess.STDOUT,
        pass_fds=descriptors,
        start_new_session=True,
        cwd="/",
        env={},
        bufsize=0,
    )


def import_paths() -> list[str]:
    """Where this process has these packages from, and nothing else of where it looks for modules.

    Raises NotInstalled if it does not have them all.
    """
    from importlib.util import find_spec  # noqa: PLC0415 - a child that is given work needs none of it

    specs = {name: find_spec(name) for name in PACKAGES}
    missing = [name for name, spec in specs.items() if spec is None]
    if missing:
        raise NotInstalled(
            f"images need packages that are not installed: {', '.join(missing)}", hint="pip install 'holdfast[images]'"
        )
    places = [place for spec in specs.values() if spec is not None for place in spec.submodule_search_locations or ()]
    return list(dict.fromkeys(os.path.dirname(os.path.abspath(place)) for place in places))


# --- Work for a second process: batches go through one pipe, and for each of them an answer comes back through
# another.

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
