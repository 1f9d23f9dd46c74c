"""What a stranger, or a disk, can do to a sealed device: each must be found by whoever reads all of it."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast_images.devices.manifest import GET_FLAGS, IMMUTABLE, SET_FLAGS

SIZE = 200_000
CAPABILITY = bytes.fromhex("0100000280000000000000000000000000000000")
ACCESS_LIST = bytes.fromhex("0200000001000700ffffffff02000700e803000004000500ffffffff10000700ffffffff20000500ffffffff")
DEFAULT_LIST = bytes.fromhex("0200000001000700ffffffff04000500ffffffff20000500ffffffff")


def fill_for_tampering(content: Path) -> None:
    """Something of every kind that can be tampered with."""
    usr = content / "rootfs/usr"
    usr.mkdir(parents=True)
    (usr / "program").write_bytes(os.urandom(SIZE))
    for name in ("one", "two"):
        (usr / name).write_text(name)
        os.link(usr / name, usr / f"{name}-again")
        os.utime(usr / name, ns=(1, 1))
    (usr / "labelled").write_text("x")
    os.setxattr(usr / "labelled", "user.some", b"1")
    (usr / "link").symlink_to("program")
    (usr / "empty").mkdir()
    (usr / "zeros").write_bytes(bytes(1 << 20))
    os.mkfifo(usr / "pipe", 0o600)


@contextmanager
def unnoticed(path: Path) -> Iterator[None]:
    """The times stay what they were, as they do when a disk rots."""
    there, above = path.lstat(), path.parent.lstat()
    yield
    if os.path.lexists(path):
        os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns), follow_symlinks=False)
    os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))


def flip(path: Path) -> None:
    with unnoticed(path), path.open("r+b") as file:
        file.seek(SIZE // 2)
        byte = file.read(1)[0]
        file.seek(SIZE // 2)
        file.write(bytes([byte ^ 1]))


def replace_content(path: Path) -> None:
    with unnoticed(path), path.open("r+b") as file:
        file.write(b"E" * SIZE)


def swap_links(usr: Path) -> None:
    """Each has as many names as before, and the same size and times: only the groups are others."""
    with unnoticed(usr / "one-again"):
        for name, other in (("one-again", "two"), ("two-again", "one")):
            (usr / name).unlink()
            os.link(usr / other, usr / name)


def dig_hole(path: Path) -> None:
    with unnoticed(path):
        os.truncate(path, 0)
        os.truncate(path, 1 << 20)


def make_immutable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flags = int.from_bytes(fcntl.ioctl(descriptor, GET_FLAGS, bytes(8)), "little")
        fcntl.ioctl(descriptor, SET_FLAGS, (flags | IMMUTABLE).to_bytes(8, "little"))
    finally:
        os.close(descriptor)


def add_unnoticed(path: Path) -> None:
    above = path.parent.stat()
    path.touch()
    os.utime(path.parent, ns=(above.st_atime_ns, above.st_mtime_ns))


def redirect(path: Path) -> None:
    with unnoticed(path):
        path.unlink()
        path.symlink_to("/etc/shadow")


def turn_into_link(path: Path) -> None:
    with unnoticed(path):
        path.unlink()
        path.symlink_to("labelled")


def cut(path: Path) -> None:
    with unnoticed(path):
        os.truncate(path, 5)


def link_from_elsewhere(path: Path) -> None:
    """From outside of everything that the image has."""
    above = path.parents[2].stat()
    os.link(path, path.parents[2] / "outside")
    os.utime(path.parents[2], ns=(above.st_atime_ns, above.st_mtime_ns))


Tamper = Callable[[Path], object]

_IN_USR: dict[str, Tamper] = {
    "one bit flipped": lambda usr: flip(usr / "program"),
    "content replaced": lambda usr: replace_content(usr / "program"),
    "written to": lambda usr: (usr / "program").write_bytes(bytes(SIZE)),
    "xattr removed": lambda usr: os.removexattr(usr / "labelled", "user.some"),
    "xattr changed": lambda usr: os.setxattr(usr / "labelled", "user.some", b"2"),
    "xattr added": lambda usr: os.setxattr(usr / "program", "user.evil", b""),
    "xattr of a directory": lambda usr: os.setxattr(usr / "empty", "user.evil", b"2"),
    "links between two groups swapped": swap_links,
    "a hole where zeros were": lambda usr: dig_hole(usr / "zeros"),
    "setuid": lambda usr: (usr / "program").chmod(0o4755),
    "mode of a directory": lambda usr: usr.chmod(0o777),
    "mtime by a nanosecond": lambda usr: os.utime(usr / "program", ns=(0, (usr / "program").stat().st_mtime_ns + 1)),
    "file added": lambda usr: (usr / "evil").touch(),
    "directory added": lambda usr: (usr / "evil").mkdir(),
    "file added unnoticed": lambda usr: add_unnoticed(usr / "evil"),
    "file removed": lambda usr: (usr / "program").unlink(),
    "renamed": lambda usr: (usr / "program").rename(usr / "program2"),
    "link leads elsewhere": lambda usr: redirect(usr / "link"),
    "file became a link": lambda usr: turn_into_link(usr / "program"),
    "cut off": lambda usr: cut(usr / "program"),
    "one more name": lambda usr: link_from_elsewhere(usr / "program"),
    "mode of a pipe": lambda usr: (usr / "pipe").chmod(0o666),
}
if os.geteuid() == 0:
    _IN_USR |= {
        "capability added": lambda usr: os.setxattr(usr / "program", "security.capability", CAPABILITY),
        "access list": lambda usr: os.setxattr(usr / "program", "system.posix_acl_access", ACCESS_LIST),
        "default access list": lambda usr: os.setxattr(usr / "empty", "system.posix_acl_default", DEFAULT_LIST),
        "trusted xattr of a link": lambda usr: os.setxattr(usr / "link", "trusted.x", b"", follow_symlinks=False),
        "immutable": lambda usr: make_immutable(usr / "program"),
        "immutable directory": lambda usr: make_immutable(usr / "empty"),
        "owner": lambda usr: os.chown(usr / "program", 1000, -1),
        "group": lambda usr: os.chown(usr / "program", -1, 1000),
        "device node": lambda usr: os.mknod(usr / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
    }


def _tamper(how: Tamper) -> Tamper:
    return lambda content: how(content / "rootfs/usr")


TAMPERINGS = {name: _tamper(how) for name, how in _IN_USR.items()}
