"""Whose data directory it is: a file in it names the state that its files and devices belong to.

The catalog of one state knows nothing of what another has put there, and would collect it as left over. So a data
directory belongs to one state; a second one is refused before it reads or removes anything.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import msgspec

from holdfast_images.errors import ForeignData

FILE = "owner.json"
ASIDE = "owner.json.new"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. Fields are only ever added; what is not known is empty."""

    store: str
    """The id that the catalog's database was given when it was made."""
    database: str = ""
    """The path of a SQLite file."""
    directory: str = ""
    """Where the data directory was when this was written: elsewhere, it has been moved or copied as a whole."""
    host: str = ""
    """The host's name in a store that hosts share."""
    machine: str = ""
    """What tells the machine itself from others, whatever it is called."""
    id: str = ""
    """Of the directory itself: drawn by chance when it was first marked."""


class Claim(Enum):
    """What an owner may do with a directory."""

    OWN = "own"
    ADOPT = "adopt"
    """Nobody else can have it: it was never marked, was moved with its state, or its database was replaced."""
    FOREIGN = "foreign"


def judge(marked: Owner | None, own: Owner, *, is_another: bool) -> Claim:
    """Pure. `is_another`: the marked database is there, and is not the one that asks."""
    if marked is None:
        return Claim.ADOPT
    if (marked.store, marked.host) != (own.store, own.host):
        # A database that was deleted and made anew at the same path has the data of the one before.
        replaced = marked.host == own.host and marked.database != "" and marked.database == own.database
        return Claim.ADOPT if replaced else Claim.FOREIGN
    if own.host and marked.machine and own.machine and marked.machine != own.machine:
        # On a server, what the other machine makes here is in the same rows.
        return Claim.FOREIGN
    if own.host and not (marked.id and marked.machine == own.machine):
        return Claim.ADOPT
    if (marked.database, marked.directory) == (own.database, own.directory):
        return Claim.OWN
    # A copy of a state has a copy of its data; a copy of a database alone would share the data of the original.
    return Claim.FOREIGN if marked.directory == own.directory and is_another else Claim.ADOPT


def check_owner(data: Path, own: Owner) -> None:
    """Raise ForeignData if the directory belongs to another state. Changes nothing."""
    _refuse_foreign(data, own, read_owner(data))


def claim_data(data: Path, own: Owner, *, by_order: bool = False) -> Owner:
    """Make the directory this owner's, or raise ForeignData if it belongs to another; what it is marked with now.

    `by_order`: of an operator, who knows that nobody else has it any more.
    Crash: marked or not; what is not marked belongs to whoever asks next.
    """
    marked = read_owner(data)
    if (
        not by_order
        and marked is not None
        and marked == msgspec.structs.replace(own, id=marked.id)
        and (marked.id or not own.host)
    ):
        return marked
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(data) as directory:
        marked = read_owner(data)
        claim = Claim.ADOPT if by_order else _refuse_foreign(data, own, marked)
        if marked is not None and claim is Claim.OWN:
            return marked
        # Another id by order: the directory may be a copy of one that somebody else still has.
        kept = marked.id if marked is not None and not by_order else ""
        own = msgspec.structs.replace(own, id=kept or os.urandom(16).hex())
        _write(directory, own)
        return own


def forget_mark(data: Path, marked: Owner) -> None:
    """Take the mark away again, if it is this one."""
    with _alone(data):
        if read_owner(data) == marked:
            (data / FILE).unlink()


def is_marked(directory: str, mark_id: str) -> bool:
    """Is there a directory with this mark?"""
    try:
        marked = read_owner(Path(directory))
    except ForeignData:
        return False
    return marked is not None and marked.id == mark_id


def machine_id() -> str:
    """What tells this machine from others, as far as it has been told; not the id itself, which is to stay on it."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text and text != "uninitialized":
            return hashlib.sha256(f"holdfast {text}".encode()).hexdigest()[:32]
    return ""


def read_owner(data: Path) -> Owner | None:
    """What the directory is marked with; ForeignData if that cannot be read."""
    try:
        return msgspec.json.decode((data / FILE).read_bytes(), type=Owner)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ForeignData(
            f"whose data is in {data} cannot be told: {FILE}: {error}",
            hint=f"if no other state uses it, remove {data / FILE}",
        ) from error


def _refuse_foreign(data: Path, own: Owner, marked: Owner | None) -> Claim:
    claim = judge(marked, own, is_another=marked is not None and _is_another(marked, own))
    if marked is None or claim is not Claim.FOREIGN:
        return claim
    if marked.store == own.store and marked.host != own.host:
        raise ForeignData(
            f"{data} holds the files and devices of host {marked.host}, and this host is called {own.host}",
            hint=f"if this host was renamed, let it keep its name here: HOLDFAST_HOST={marked.host};"
            " if hosts share the directory, give each its own --data",
        )
    if marked.store == own.store and marked.host:
        raise ForeignData(
            f"{data} holds the files and devices of another machine that is called {marked.host}, too",
            hint="give this machine a name of its own (HOLDFAST_HOST) and its own --data;"
            " if it has taken the place of that one for good: holdfast host adopt",
        )
    whose = marked.database or f"store {marked.store}"
    whose += f", host {marked.host}" if marked.host else ""
    raise ForeignData(
        f"{data} holds the files and devices of another state: {whose}",
        hint=f"give each state its own --data; if that state is gone for good, remove {data / FILE}",
    )


def _is_another(marked: Owner, own: Owner) -> bool:
    """Is what is marked still there, and something else than what asks?"""
    try:
        return not os.path.samefile(marked.database, own.database)
    except OSError:
        return False


@contextmanager
def _alone(data: Path) -> Iterator[int]:
    directory = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(directory)


def _write(directory: int, own: Owner) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(ASIDE, flags, 0o600, dir_fd=directory)
    try:
        os.write(descriptor, msgspec.json.encode(own) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(ASIDE, FILE, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
