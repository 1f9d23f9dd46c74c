"""Wake-up without polling: every listener has a FIFO beside the database, and a change writes a byte into each."""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from pathlib import Path

log = logging.getLogger("holdfast.wakeup")


class FifoListener:
    """Waits for somebody to notify. A listener that died leaves a FIFO without a reader, which is removed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        name = f"{os.getpid()}-{os.urandom(5).hex()}"
        self._path = directory / name
        # Opened under a hidden name: notifiers remove a FIFO that nobody reads, and this one would be, for a moment.
        hidden = directory / f".{name}"
        os.mkfifo(hidden, 0o600)
        # Read and write, so that the FIFO never reports the end of file when the last notifier closes it.
        self._descriptor = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        hidden.rename(self._path)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._watched: set[int] = set()
        self._woken = False
        self._process = os.getpid()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until notified, a watched descriptor is ready, or the time is up; True unless it was the time."""
        ready = self._poll.poll(None if timeout is None else max(0.0, timeout) * 1000)
        if any(descriptor == self._descriptor for descriptor, _ in ready):
            try:
                os.read(self._descriptor, 4096)
            except BlockingIOError:
                pass
            # After reading, or the byte that was read could be taken for one that is still there. Whoever relied on it
            # until now has changed what the caller looks at next.
            self._woken = False
        return bool(ready)

    def watch(self, descriptors: set[int]) -> None:
        """Also wake when one of these descriptors (of processes, say) becomes readable."""
        for gone in self._watched - descriptors:
            self._poll.unregister(gone)
        for new in descriptors - self._watched:
            self._poll.register(new, select.POLLIN)
        self._watched = set(descriptors)

    def wake(self) -> None:
        """Make wait() return."""
        if self._woken:
            return  # a byte is there already, and one is enough
        self._woken = True
        try:
            os.write(self._descriptor, b".")
        except (BlockingIOError, OSError):
            pass  # full: it will wake anyway

    def close(self) -> None:
        """Stop listening."""
        if os.getpid() == self._process:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class FifoNotifier:
    """Notifies all listeners of a directory; their FIFOs are kept open from one time to the next."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def notify(self) -> None:
        """Wake every listener, in this process and in others."""
        with self._lock:
            try:
                self._refresh()
            except OSError as error:
                # What was written is durable all the same, and listeners look by themselves now and then.
                log.warning("cannot look for listeners: %s", error)
            for name, descriptor in list(self._open.items()):
                try:
                    os.write(descriptor, b".")
                except BlockingIOError:
                    pass  # full: it will wake anyway
                except OSError:
                    self._forget(name, gone=True)

    def close(self) -> None:
        """Let go of all listeners."""
        with self._lock:
            for name in list(self._open):
                self._forget(name, gone=False)

    def _refresh(self) -> None:
        try:
            names = {name for name in os.listdir(self._directory) if not name.startswith(".")}
        except FileNotFoundError:
            return
        for name in set(self._open) - names:
            self._forget(name, gone=False)
        for name in names - set(self._open):
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._open[name] = os.open(self._directory / name, flags)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    (self._directory / name).unlink(missing_ok=True)

    def _forget(self, name: str, *, gone: bool) -> None:
        os.close(self._open.pop(name))
        if gone:
            (self._directory / name).unlink(missing_ok=True)
