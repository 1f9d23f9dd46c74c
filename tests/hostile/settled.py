"""Differences between readers that are known and change nothing about what an archive is. All others are defects."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast_images.archive.entry_rules import LATEST_NS
from tests.hostile.readers import Reading, Seen
from tests.support.images.extracting import Fact

TARFILE, LIBARCHIVE, GNU_TAR, UMOCI = "tarfile", "libarchive", "GNU tar", "umoci"
FINE = {"gzip": {0, 2}, "xz": {0}, "zstd": {0}}
"""How a program ends that has decompressed everything: gzip warns of zeros behind the last member."""
_NOT_UTF_8 = "can't be converted from UTF-8 to current locale"
_MICROSECOND = 1000
_SECOND = 10**9


def normal(name: bytes) -> str:
    """Without what changes nothing about where a name leads."""
    return b"/".join(part for part in name.split(b"/") if part not in {b"", b"."}).decode("utf-8", "surrogateescape")


class Names:
    """What is known of the names of an archive, or of all its layers."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self.named: set[str] = set()
        """Those that an entry has; directories that are only implied get any mode and time."""
        self.late: set[str] = set()
        """Directories with an entry when they are there already."""
        self.respelled: set[str] = set()
        """Directories that are spelled in two ways, such as d and ./d."""
        self.clamped: set[str] = set()
        """With a time that we change, and say so."""
        self.grown: set[str] = set()
        """Directories in which, after their entry, an implied directory is made, or something is taken away."""
        self._links: set[str] = set()
        there: set[str] = set()
        spelled: dict[str, bytes] = {}
        for reading in readings:
            for member in reading.members:
                self._grow(member, there)
                self._note(member, there, spelled)

    def _grow(self, member: Seen, there: set[str]) -> None:
        path = normal(member.name)
        above, _, leaf = path.rpartition("/")
        if leaf.startswith(".wh."):
            gone = above if leaf == ".wh..wh..opq" else f"{above}/{leaf[4:]}".lstrip("/")
            taken = {each for each in there if f"{each}/".startswith(f"{gone}/" if gone else "")}
            there -= taken
            self.grown |= {above, *taken}
        elif member.kind == "d":
            self.grown.discard(path)
        else:
            there -= {each for each in there if each.startswith(f"{path}/")}
            self._links |= {path} if member.kind == "l" else set()
        while above and above not in there:
            self.grown.add(above)
            above = above.rpartition("/")[0]
        if above != path.rpartition("/")[0]:
            self.grown.add(above)

    def is_grown(self, name: str) -> bool:
        """Also if some entry may have come there by a link."""
        return name in self.grown or bool(self._links)

    def _note(self, member: Seen, there: set[str], spelled: dict[str, bytes]) -> None:
        path = normal(member.name)
        self.named.add(path)
        if path in there:
            self.late.add(path)
        if member.mtime is not None and not 0 <= member.mtime * _SECOND <= LATEST_NS:
            self.clamped.add(path)
        name = member.name
        while path:
            if spelled.setdefault(path, name) != name:
                self.respelled.add(path)
            there.add(path)
            name, path = name.rpartition(b"/")[0], path.rpartition("/")[0]


def complaint(reader: str, text: str) -> str:
    """What is left of a complaint. libarchive warns of pax names that are no UTF-8, and takes them as they are."""
    if reader == LIBARCHIVE:
        return "; ".join(each for each in text.split("; ") if _NOT_UTF_8 not in each)
    return text


_UNKNOWN_TO_UMOCI = (
    "unknown typeflag '\\x53'",  # a sparse file of the old form
    "unknown typeflag '\\x67'",  # a global header, which changes nothing
    "more than one image in oci, choose an image",  # skopeo, of one image that has two names
    "application/vnd.docker.image.rootfs.diff.tar",  # a layer of docker's type, in a manifest of OCI
    ": application/vnd.docker.container.image.v1+json",  # the same for a configuration; skopeo takes it
)


def is_left_out(reader: str, text: str) -> bool:
    """Does the reader end where others go on, without having read anything in another way?"""
    return reader == UMOCI and any(each in text for each in _UNKNOWN_TO_UMOCI)


def seen(reader: str, ours: Seen, theirs: Seen) -> Seen:
    """Theirs, with our word where they say nothing, or say it in their own way."""
    same: dict[str, object] = {}
    if theirs.mtime is None:
        same["mtime"] = ours.mtime  # GNU tar cannot print the time
    if theirs.content is None:
        same["content"] = ours.content  # a list has no content
    return theirs._replace(**same)  # type: ignore[arg-type]


def fact(reader: str, name: str, ours: Fact, theirs: Fact, names: Names) -> Fact:
    """The same for what is on disk. Attributes of other namespaces than "user" are not carried over by us, and told."""
    same: dict[str, object] = {"xattrs": tuple(each for each in theirs.xattrs if each[0].startswith("user."))}
    if name not in names.named and ours.kind == "d":
        same |= {"mode": ours.mode, "owner": ours.owner, "mtime_ns": ours.mtime_ns}
    if name in names.clamped:
        same["mtime_ns"] = ours.mtime_ns
    if reader == UMOCI and ours.kind == "d" and names.is_grown(name):
        same["mtime_ns"] = ours.mtime_ns  # it sets the time of a directory back only after what has an entry
    if reader == LIBARCHIVE and ours.kind == "d" and name in names.late:
        same["mtime_ns"] = ours.mtime_ns  # it sets no time on a directory that is there
    if reader == GNU_TAR and ours.kind == "d" and name in names.respelled:
        # It makes links with ".." in the end, and knows the directories that this changes by their spelling.
        same |= {"mode": ours.mode, "mtime_ns": ours.mtime_ns}
    if reader == TARFILE:
        # It keeps times as floating point numbers, sets none on symbolic links, and knows no extended attributes.
        if theirs.kind == "l" or abs(ours.mtime_ns - theirs.mtime_ns) < _MICROSECOND:
            same["mtime_ns"] = ours.mtime_ns
        same["xattrs"] = ours.xattrs
    return theirs._replace(**same)  # type: ignore[arg-type]
