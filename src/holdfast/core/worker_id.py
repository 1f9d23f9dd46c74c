"""Who holds a lease: an identity that cannot be mistaken for another process, not even one with the same pid."""

from __future__ import annotations

import msgspec


class WorkerId(msgspec.Struct, frozen=True):
    """A process: host, boot, pid namespace, pid and its start time; `nonce` tells workers of one process apart."""

    host: str
    pid: int
    start: int
    boot: str
    namespace: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}:{self.boot}:{self.namespace}:{self.nonce}"

    @property
    def label(self) -> str:
        """For people."""
        return f"pid {self.pid} on {self.host}"


def parse_worker_id(text: str) -> WorkerId | None:
    """The identity in a lease's owner, or None if it is not a worker's (an operator's, say)."""
    parts = text.rsplit(":", 5)
    if len(parts) != 6 or not all(parts[i].isdecimal() for i in (1, 2, 4)):
        return None
    return WorkerId(parts[0], int(parts[1]), int(parts[2]), parts[3], int(parts[4]), parts[5])


def label_of(owner: str) -> str:
    """A lease owner for people: the process, or the text as it is."""
    worker = parse_worker_id(owner)
    return worker.label if worker else owner
