"""Is something mounted in a directory, or the directory mounted somewhere else? Answered from mountinfo. Pure."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator

import msgspec

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
