"""The sockets that are served: bound by ourselves, or given by the service manager; who is at the other end."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import SettingsError
from holdfast.web.credentials import Peer

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8118
SOCKET_MODE = 0o660
DIRECTORY_MODE = 0o750
BACKLOG = 512
LONGEST_PATH = 107
FIRST_GIVEN = 3
"""The first descriptor that systemd hands on."""

MOST_GROUPS = 256
_SO_PEERGROUPS = 59
_CREDENTIALS = struct.Struct("iII")


class ListenAddress(NamedTuple):
    """Where to listen: a path, or a host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """Can only this machine reach it by TCP?"""
        try:
            return self.path is None and ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def listen_address(text: str) -> ListenAddress:
    """`unix:PATH` or `HOST:PORT`."""
    hint = "unix:/run/holdfast/holdfast.sock, or 127.0.0.1:8118, or [::1]:8118"
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:").removeprefix("//"))
        if not path.name or len(os.fsencode(path.absolute())) > LONGEST_PATH - 8:
            raise SettingsError(f"--listen {text!r}: the path is missing or too long for a socket", hint=hint)
        return ListenAddress(path=path.absolute())
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"--listen {text!r} is neither unix:PATH nor HOST:PORT", hint=hint)
    return ListenAddress(host=host, port=int(port))


@contextmanager
def bound(place: ListenAddress, *, group: int | None = None) -> Iterator[socket.socket]:
    """A socket that listens there; a path goes with it. SettingsError if somebody else does already."""
    if place.path is None:
        with _bound_tcp(place) as found:
            yield found
    else:
        with _bound_unix(place.path, group) as found:
            yield found


def _bound_tcp(place: ListenAddress) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"cannot listen on {place.host}: {error.strerror or error}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        hint = "choose another --listen" if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) else None
        where = f"{place.host}:{place.port}"
        raise SettingsError(f"cannot listen on {where}: {error.strerror or error}", hint=hint) from error
    return found


@contextmanager
def _bound_unix(path: Path, group: int | None) -> Iterator[socket.socket]:
    """A socket of our own, 0660. Crash: it is left, and the next server replaces it."""
    try:
        path.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        with _locked(path):
            _refuse_foreign(path)
            hidden = path.with_name(f".{path.name}.{os.getpid()}")
            found, own = _made_privately(hidden, group), None
            try:
                # From here on it has its owner, group and mode: nobody could come in before.
                hidden.rename(path)
                own = path.stat().st_ino
                yield found
            finally:
                found.close()
                with suppress(OSError):
                    if path.stat().st_ino == own:
                        path.unlink()
    except OSError as error:
        raise SettingsError(f"cannot listen on {path}: {error.strerror or error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Ours for as long as the server lives, and free the moment that it has died."""
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise _in_use(path) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _in_use(path: Path) -> SettingsError:
    return SettingsError(f"another server listens on {path}", hint="stop it, or choose another --listen")


def _refuse_foreign(path: Path) -> None:
    """Only a socket that nobody listens on any more may be replaced."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(f"{path} is there, and is no socket", hint="remove it, or choose another --listen")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
    raise _in_use(path)


def _made_privately(path: Path, group: int | None) -> socket.socket:
    """For its owner alone until it has the group and the mode that it is to have."""
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        found.bind(str(path))
    except BaseException:
        found.close()
        raise
    finally:
        os.umask(before)
    try:
        if group is not None:
            os.chown(path, -1, group)
        os.chmod(path, SOCKET_MODE)
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        path.unlink(missing_ok=True)
        raise
    return found


def given_sockets() -> list[socket.socket]:
    """Those that systemd listens on for us (socket activation); none if it does not. Asked once."""
    count, whose = os.environ.pop("LISTEN_FDS", ""), os.environ.pop("LISTEN_PID", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if not count.isdecimal() or whose != str(os.getpid()):
        return []
    found = []
    for descriptor in range(FIRST_GIVEN, FIRST_GIVEN + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            one = socket.socket(fileno=descriptor)
            listens = one.type == socket.SOCK_STREAM and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise SettingsError(f"descriptor {descriptor} of the service manager is no socket: {error}") from error
        if not listens or one.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            raise SettingsError("the service manager gives a socket that does not listen", hint="ListenStream=")
        found.append(one)
    return found


def address_of(found: socket.socket) -> str:
    """As it is told: unix:PATH, or http://HOST:PORT."""
    name = found.getsockname()
    if found.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(name) if name else '?'}"
    return f"http://{f'[{name[0]}]' if ':' in name[0] else name[0]}:{name[1]}"


def peer_on(connection: socket.socket) -> Peer | None:
    """The process at the other end when it connected, as the kernel knows it; None if this is no unix socket."""
    if connection.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid, gid, tuple(_groups_of(connection)))


def _groups_of(connection: socket.socket) -> Sequence[int]:
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, MOST_GROUPS * 4)
    except OSError:
        return ()  # too many, or a kernel that does not know: then the first group alone counts
    return struct.unpack(f"{len(found) // 4}I", found)
