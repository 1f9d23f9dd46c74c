"""What the entries of one archive have made so far: the tree against which the next one is judged. Pure."""

from __future__ import annotations

from holdfast_images.archive.entry import Kind
from holdfast_images.archive.names import folded, printable

IMAGE_ROOT = b"rootfs"
"""The directory of a plain image that becomes the root file system."""
LINKS_FOLLOWED = 40
"""As many as Linux follows."""


class Seen:
    """Names, their kinds and the targets of links. Only what was accepted is kept, so a directory stays one."""

    def __init__(self, *, layer: bool) -> None:
        self._layer = layer
        self.kinds: dict[bytes, Kind] = {}
        self.symlinks: dict[bytes, bytes] = {}
        self.origins: dict[bytes, bytes] = {}
        """Hard link -> the file it is another name of."""
        self.names_of: dict[bytes, int] = {}
        """File -> how many hard links it has."""
        self.world_writable: set[bytes] = set()
        """Files that everybody may write to, whatever the headers of their hard links say."""
        self.steps = 0
        """Components that climbs_out() has gone through."""

    def obstacle(self, parts: list[bytes]) -> tuple[bytes, Kind] | None:
        """The first thing on the way to a name that is no directory."""
        path = b""
        for part in parts[:-1]:
            path = path + b"/" + part if path else part
            kind = self.kinds.get(path)
            if kind is not None and kind is not Kind.DIRECTORY:
                return path, kind
        return None

    def add_parents(self, parts: list[bytes]) -> None:
        """Directories that no entry has named are there as well."""
        path = b"/".join(parts[:-1])
        while path and path not in self.kinds:
            self.kinds[path] = Kind.DIRECTORY
            path = path.rpartition(b"/")[0]

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
        at = parts[:-1]
        left = target.split(b"/")[::-1]
        followed = 0
        if target.startswith(b"/"):
            at = at[:root]
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
                at = at[:root] if link.startswith(b"/") else at[:-1]
                left.extend(link.split(b"/")[::-1])
        return False

    def twins(self) -> tuple[int, str]:
        """How many names differ from another only in case or Unicode form, and one such pair for people."""
        # All at once: no name has a NUL, and most archives are plain ASCII.
        lowered = b"\0".join(self.kinds).lower().split(b"\0") if self.kinds else []
        if len({name if name.isascii() else folded(name) for name in lowered}) == len(lowered):
            return 0, ""
        first: dict[bytes, bytes] = {}
        count, example = 0, ""
        for path in self.kinds:
            other = first.setdefault(folded(path), path)
            if other is not path:
                count += 1
                example = example or f"{printable(other)} and {printable(path)}"
        return count, example
