"""Is something mounted in a directory, or the directory mounted somewhere else? Answered from mountinfo. Pure."""

from __future__ import annotations

import fcntl
import os
import os.path
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast_images.errors import DeviceBusy

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Place(msgspec.Struct, frozen=True):
    """Where a directory is, whatever namespace it is looked at from: in which file system, and where in that."""

    device: str
    inner: str


class Line(msgspec.Struct, frozen=True):
    """One line of mountinfo."""

    number: str
    parent: str
    device: str
    root: str
    point: str
    source: str
    options: str

    def place_of(self, path: str) -> Place:
        """Of a path that is seen through this mount."""
        return Place(self.device, _join(self.root, path[len(self.point.rstrip("/")) :]))

    def named(self) -> Iterator[str]:
        """Every path in its options and its source: layers, upper and work directories, files shown as disks."""
        for part in (self.source, *re.split(r"[,:=]", self.options)):
            if "/" in part:
                yield part


def parse_lines(mountinfo: str) -> list[Line]:
    """Every mount, the newest last."""
    return [_parse(line) for line in mountinfo.splitlines() if " - " in line]


def place_of(path: str, lines: list[Line]) -> Place | None:
    """Of a path of the namespace that has these mounts."""
    # The last of the deepest mounts that hold the path is the one it is seen through.
    above = [line for line in lines if is_within(path, line.point)]
    home = max(above, key=lambda line: len(line.point), default=None)
    return home.place_of(path) if home is not None else None


def mounts_on(path: str, mountinfo: str, place: Place | None = None) -> list[str]:
    """The mount points that lie in `path`, show a part of it elsewhere, or use it as a layer.

    `place`: that of the path, where mountinfo is another namespace's, in which the path means nothing.
    """
    lines = parse_lines(mountinfo)
    own = place is None
    place = place or place_of(path, lines)
    numbers = {line.number: line for line in lines}
    found = []
    for line in lines:
        shown = place is not None and line.device == place.device and is_within(line.root, place.inner)
        if own and is_within(path, line.point):
            shown = False  # the mount that it is seen through
        above = numbers.get(line.parent)
        inside = False
        if above is not None and place is not None and is_within(line.point, above.point):
            where = above.place_of(line.point)
            inside = where.device == place.device and is_within(where.inner, place.inner)
        if (own and is_within(line.point, path)) or inside or shown or uses(line, path):
            found.append(line.point)
    return found


def uses(line: Line, path: str) -> bool:
    """Does a mount name a part of the path, or something that may be one, seen from a directory above it?"""
    for part in line.named():
        if part.startswith("/"):
            if is_within(os.path.normpath(part), path):
                return True
        elif any(is_within(os.path.normpath(f"{above}/{part}"), path) for above in _above(path)):
            return True
    return False


def unescaped(text: str) -> str:
    """A field as the kernel means it."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def is_within(path: str, directory: str) -> bool:
    """Is it the directory, or below it?"""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _above(path: str) -> Iterator[str]:
    while len(path) > 1:
        path = os.path.dirname(path)
        yield path


def _parse(line: str) -> Line:
    before, _, after = line.partition(" - ")
    fields, rest = before.split(), after.split()
    return Line(
        number=fields[0],
        parent=fields[1],
        device=fields[2],
        root=unescaped(fields[3]),
        point=unescaped(fields[4]),
        source=unescaped(rest[1]) if len(rest) > 1 else "",
        options=unescaped(rest[2]) if len(rest) > 2 else "",
    )


def _join(root: str, rest: str) -> str:
    return (root.rstrip("/") + "/" + rest.strip("/")).rstrip("/") or "/"


# --- Who uses what lies in a directory, in whatever mount namespace: open, mapped, run, worked in, or mounted ---
#
# Everything that /proc shows is asked. Not to be seen are processes outside of this PID namespace, and, without root,
# those of others, who cannot come into the directory either.

PROC = Path("/proc")
LOOP_STATUS = 0x4C05
_LOOP_INFO = struct.Struct("=QQ216x")
Inode = tuple[int, int]


def refuse_used(content: Path, name: str) -> None:
    """Raise DeviceBusy if anybody uses anything below `content`, the content of a device."""
    for use in uses_of(content):
        raise DeviceBusy(f"{name} is in use: {use}", hint="end that process, or unmount it; then try again")


def uses_of(content: Path) -> Iterator[str]:
    """Each way in which something below it is used, in words."""
    inodes = _inodes(content)
    if not inodes:
        return
    yield from _mounts(content, inodes)
    numbers = {number for _, number in inodes}
    for process in _processes():
        for what in _uses_by(process, inodes, numbers):
            yield f"process {process} ({_name_of(process)}) {what}"
    yield from _loop_devices(inodes)


def _inodes(content: Path) -> set[Inode]:
    """Of everything that is there, itself included."""
    found: set[Inode] = set()
    try:
        there = os.lstat(content)
    except OSError:
        return found
    found.add((there.st_dev, there.st_ino))
    waiting = [os.fspath(content)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    there = entry.stat(follow_symlinks=False)
                    found.add((there.st_dev, there.st_ino))
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue  # removed meanwhile, or closed to us: then also to whoever is not root
    return found


# --- processes --------------------------------------------------------------------------------------------------


def _processes() -> list[str]:
    return [name for name in os.listdir(PROC) if name.isdecimal()]


def _name_of(process: str) -> str:
    try:
        return (PROC / process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def _uses_by(process: str, inodes: set[Inode], numbers: set[int]) -> Iterator[str]:
    for link, what in (("cwd", "works in it"), ("root", "has its root in it")):
        if _inode(f"{PROC}/{process}/{link}") in inodes:
            yield what
    try:
        descriptors = os.listdir(f"{PROC}/{process}/fd")
    except OSError:
        descriptors = []  # it has ended, or is not ours to look at
    for descriptor in descriptors:
        number = _number_of(process, descriptor)
        if (number is None or number in numbers) and _inode(f"{PROC}/{process}/fd/{descriptor}") in inodes:
            yield f"has {_shown(process, descriptor)} open"
    if any(inode in inodes for inode in _mapped(process, numbers)):
        yield "runs or has mapped a file of it"


def _inode(path: str) -> Inode | None:
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _number_of(process: str, descriptor: str) -> int | None:
    """The inode's number, without a question to its file system, which may not answer; None if it is not told."""
    try:
        with open(f"{PROC}/{process}/fdinfo/{descriptor}", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("ino:"):
                    return int(line[4:])
    except (OSError, ValueError):
        pass
    return None


def _shown(process: str, descriptor: str) -> str:
    try:
        return os.readlink(f"{PROC}/{process}/fd/{descriptor}")
    except OSError:
        return f"descriptor {descriptor}"


def _mapped(process: str, numbers: set[int]) -> Iterator[Inode]:
    """Files that it has in its memory, of those whose inodes have these numbers."""
    try:
        with open(f"{PROC}/{process}/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                area, _, _, device, number, *_ = line.split(None, 5)
                if number != "0" and int(number) in numbers:
                    start, end = (part.lstrip("0") or "0" for part in area.split("-"))
                    major, minor = (int(part, 16) for part in device.split(":"))
                    # Some file systems tell another device here than stat does; only root may ask that of the file.
                    found = _inode(f"{PROC}/{process}/map_files/{start}-{end}")
                    yield found or (os.makedev(major, minor), int(number))
    except (OSError, ValueError):
        return


# --- mounts and loop devices ------------------------------------------------------------------------------------


def _mounts(content: Path, inodes: set[Inode]) -> Iterator[str]:
    """In any mount namespace that some process is in."""
    path = os.path.realpath(content)
    own = _mountinfo("self")
    for point in mounts_on(path, own):
        yield f"the mount on {point}"
    place = place_of(path, parse_lines(own))
    seen = {_namespace("self")}
    for process in _processes():
        namespace = _namespace(process)
        if place is None or not namespace or namespace in seen:
            continue
        seen.add(namespace)
        mountinfo = _mountinfo(process)
        points = mounts_on(path, mountinfo, place)
        points += [line.point for line in parse_lines(mountinfo) if _names_one_of(line, process, inodes)]
        for point in points:
            yield f"mounted on {point} as process {process} ({_name_of(process)}) sees it"


def _names_one_of(line: Line, process: str, inodes: set[Inode]) -> bool:
    """Does a mount name one of them, by a path as that process has it?"""
    return any(part.startswith("/") and _inode(f"{PROC}/{process}/root{part}") in inodes for part in line.named())


def _namespace(process: str) -> str:
    try:
        return os.readlink(f"{PROC}/{process}/ns/mnt")
    except OSError:
        return ""


def _mountinfo(process: str) -> str:
    try:
        return (PROC / process / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _loop_devices(inodes: set[Inode]) -> Iterator[str]:
    for backing in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        node = f"/dev/{backing.parts[3]}"
        try:
            descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            device, number = _LOOP_INFO.unpack(fcntl.ioctl(descriptor, LOOP_STATUS, bytes(_LOOP_INFO.size)))
        except OSError:
            continue  # detached meanwhile
        finally:
            os.close(descriptor)
        if (_decoded(device), number) in inodes:
            yield f"{node} shows a file of it"


def _decoded(device: int) -> int:
    """As stat has it, from the kernel's huge_encode_dev."""
    return os.makedev((device >> 8) & 0xFFF, (device & 0xFF) | ((device >> 12) & 0xFFF00))
