"""Who this process is, and whether another is still alive: pid, start time, boot and pid namespace together."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from holdfast.core.records import WorkerRecord, storable
from holdfast.core.values import WorkerId, parse_worker_id
from holdfast.errors import BadInput

SEEN_WITHIN_MS = 90_000


def new_worker_id() -> str:
    """An identity no other worker has, had or will have."""
    pid = os.getpid()
    nonce = os.urandom(5).hex()
    host = host_name()
    return str(WorkerId(host, pid, _own_start_time(), boot_id(), pid_namespace(), nonce))


def refuse_fork(process: int) -> None:
    """Raise BadInput in a child of that process: what it has opened there cannot be shared."""
    if os.getpid() != process:
        raise BadInput(
            f"this store was opened by process {process} and is used by its child {os.getpid()}: "
            "connections, locks and threads do not survive a fork",
            hint="open the engine in the child, after the fork",
        )


def is_dead(owner: str, *, one_machine: bool = True) -> bool:
    """Is the process that holds this lease surely gone? What cannot be known is not dead: its lease decides.

    Another boot of this machine is over; but of a store that many machines share, it may be another machine's.
    """
    worker = parse_worker_id(owner)
    if worker is None or worker.host != host_name():
        return False
    if "unknown" in (worker.boot, boot_id()):
        return False
    if worker.boot != boot_id():
        return one_machine
    if worker.namespace != pid_namespace():
        return False
    try:
        return start_time(worker.pid) != worker.start
    except OSError:
        return False


def is_running_here(owner: str) -> bool:
    """Is the process of this worker seen to be alive on this machine?"""
    worker = parse_worker_id(owner)
    here = (host_name(), boot_id(), pid_namespace())
    if worker is None or (worker.host, worker.boot, worker.namespace) != here:
        return False
    try:
        return start_time(worker.pid) == worker.start
    except OSError:
        return False


def is_live(worker: WorkerRecord, *, now: int, one_machine: bool) -> bool:
    """Is an announced worker there, as far as can be known from here?"""
    if is_dead(worker.worker_id, one_machine=one_machine):
        return False
    # Of a worker on another machine only its own word is known, which it gives every 30 seconds.
    return one_machine or now - worker.seen_at <= SEEN_WITHIN_MS


def pidfd_of(owner: str) -> int | None:
    """A descriptor that becomes readable when the owner's process ends, or None if there cannot be one."""
    worker = parse_worker_id(owner)
    if worker is None or worker.pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return None
    here = (host_name(), boot_id(), pid_namespace())
    try:
        if (worker.host, worker.boot, worker.namespace) != here or start_time(worker.pid) != worker.start:
            return None
        return os.pidfd_open(worker.pid)
    except OSError:
        return None


@cache
def host_name() -> str:
    """The name of this host, as it is written into leases."""
    return storable(os.uname().nodename).replace(":", "-") or "localhost"


@cache
def boot_id() -> str:
    """Identifies the time since the machine was started; a pid means nothing across it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return "unknown"


def _own_start_time() -> int:
    try:
        return start_time(os.getpid()) or 0
    except OSError:  # there is no /proc: then nobody else here can judge this process by it either
        return 0


def start_time(pid: int) -> int | None:
    """When the process was started, in clock ticks since boot; None if there is no such process, or it is a zombie.

    OSError if that cannot be found out.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if _is_there(pid):
            raise PermissionError(f"process {pid} is there, but /proc does not show it") from None
        return None
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def _is_there(pid: int) -> bool:
    """A process that /proc does not show may be there all the same: another user's, with the option hidepid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def pid_namespace() -> int:
    """The pid namespace of this process: the same pid in another one is another process."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
