"""What the entries of one archive have made so far: the tree against which the next one is judged. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_images.archive.attributes import CRITICAL, Remark, error
from holdfast_images.archive.entry import Kind
from holdfast_images.archive.names import folded, printable
from holdfast_images.archive.reasons import Reason

IMAGE_ROOT = b"rootfs"
"""The directory of a plain image that becomes the root file system."""
LINKS_FOLLOWED = 40
"""As many as Linux follows."""
STEPS_PER_ENTRY = 40
"""Components on the way of a link, on average: honest links have a handful."""
STEPS_AT_LEAST = 200_000
STICKY, WORLD_WRITABLE = 0o1000, 0o002
TWINS_AT_ONCE = 512
"""They are copied for it, and may be long."""

Stamp = tuple[int, int, int, int, int, int]
"""Mode, uid, gid, time, size and the hash of the extended attributes, as a header gives them, which may be large.

All names of one file share one.
"""


class Seen:
    """Names, their kinds and the targets of links. Only what was accepted is kept, so a directory stays one."""

    def __init__(self, *, layer: bool) -> None:
        self._layer = layer
        self.kinds: dict[bytes, Kind] = {}
        self.symlinks: dict[bytes, bytes] = {}
        self.stamps: dict[bytes, Stamp] = {}
        """Of directories, and of every name of a file: a hard link has that of the file it is another name of."""
        self.origins: dict[bytes, bytes] = {}
        """Hard link -> the file it is another name of."""
        self.names_of: dict[bytes, int] = {}
        """File -> how many hard links it has."""
        self.open_to_all: dict[bytes, int] = {}
        """Files and directories that everybody may write to -> their modes."""
        self.steps = 0
        """Components that were gone through to see where links lead."""

    def obstacle(self, parts: list[bytes]) -> tuple[bytes, Kind] | None:
        """The first thing on the way to a name that is no directory."""
        path = b""
        for part in parts[:-1]:
            path = path + b"/" + part if path else part
            kind = self.kinds.get(path)
            if kind is not None and kind is not Kind.DIRECTORY:
                return path, kind
        return None

    def add_parents(self, path: bytes) -> list[bytes]:
        """Directories that no entry has named are there as well; returns those that were not known."""
        added = []
        path = path.rpartition(b"/")[0]
        while path and path not in self.kinds:
            self.kinds[path] = Kind.DIRECTORY
            added.append(path)
            path = path.rpartition(b"/")[0]
        return added

    def set_mode(self, path: bytes, mode: int) -> None:
        """Remember whether everybody may write to it; what was told last counts."""
        if mode & WORLD_WRITABLE:
            self.open_to_all[path] = mode
        else:
            self.open_to_all.pop(path, None)

    def root_of(self, parts: list[bytes]) -> int:
        """How many components lead to the root of the image that a name lies in."""
        return int(not self._layer and len(parts) > 1 and parts[0] == IMAGE_ROOT)

    def inside(self, path: bytes) -> bytes:
        """The path as seen from the root of the image."""
        if self._layer or not (path + b"/").startswith(IMAGE_ROOT + b"/"):
            return path
        return path[len(IMAGE_ROOT) + 1 :]

    def climbs_out(self, path: bytes, target: bytes) -> bool:
        """Does following this symbolic link, and the links on its way, lead above the root of the image?"""
        parts = path.split(b"/")
        root = self.root_of(parts)
        at = parts[:root] if target.startswith(b"/") else parts[:-1]
        return self._follow(at, target, root)

    def is_winding(self) -> bool:
        """Have the links taken more steps than honest ones do?"""
        return self.steps > max(STEPS_AT_LEAST, len(self.kinds) * STEPS_PER_ENTRY)

    def trusted_but_open(self) -> Iterator[tuple[bytes, Remark]]:
        """What the system trusts and everybody may write to, by whatever links it is reached."""
        roots = ([],) if self._layer else ([], [IMAGE_ROOT])
        for root in roots:
            for inside in sorted(CRITICAL):
                at = list(root)
                if inside and not self._follow(at, inside, len(root)):
                    path = b"/".join([*root, inside])
                    found = self._open_on_the_way(at)
                    if found is not None and found != path:
                        detail = f"everybody may write to {printable(found)}, where it leads"
                        yield path, error(Reason.WORLD_WRITABLE_CRITICAL, detail)

    def _open_on_the_way(self, at: list[bytes]) -> bytes | None:
        """The thing itself, if everybody may write to it, or a directory above it in which anybody could replace it."""
        path = b"/".join(at)
        if self.origins.get(path, path) in self.open_to_all:
            return path
        while at := at[:-1]:
            path = b"/".join(at)
            if self.open_to_all.get(path, STICKY) & STICKY == 0:
                return path
        return None

    def _follow(self, at: list[bytes], target: bytes, root: int) -> bool:
        """Go from a directory along a path, changing `at`; True if that leads above the root."""
        left = target.split(b"/")[::-1]
        followed = 0
        while left:
            part = left.pop()
            self.steps += 1
            if part in {b"", b"."}:
                continue
            if part == b"..":
                if len(at) <= root:
                    return True
                at.pop()
                continue
            at.append(part)
            link = self.symlinks.get(b"/".join(at))
            if link is not None:
                followed += 1
                if followed > LINKS_FOLLOWED:
                    return False  # it leads nowhere
                del at[root if link.startswith(b"/") else -1 :]
                left.extend(link.split(b"/")[::-1])
        return False

    def twins(self) -> tuple[int, str]:
        """How many names differ from another only in case or Unicode form, and one such pair for people."""
        # Many at once: no name has a NUL, and most archives are plain ASCII.
        # By their hashes, which take no more memory for a long name; two that are equal by chance are looked at.
        different: set[int] = set()
        names = list(self.kinds)
        for start in range(0, len(names), TWINS_AT_ONCE):
            lowered = b"\0".join(names[start : start + TWINS_AT_ONCE]).lower().split(b"\0")
            different.update(hash(name if name.isascii() else folded(name)) for name in lowered)
        if len(different) == len(names):
            return 0, ""
        del different, names
        first: dict[int, bytes] = {}
        count, example = 0, ""
        for path in self.kinds:
            other = first.setdefault(hash(folded(path)), path)
            if other is not path and folded(other) == folded(path):
                count += 1
                example = example or f"{printable(other)} and {printable(path)}"
        return count, example
