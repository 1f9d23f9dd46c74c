"""The archive around the layers of an OCI layout or a docker-save file: what is in it, and where."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast_images.archive.compression import open_stream
from holdfast_images.archive.entry import Kind, Limits
from holdfast_images.archive.names import components, is_member_name, printable
from holdfast_images.archive.reading import TarReader
from holdfast_images.archive.reasons import Reason
from holdfast_images.errors import ImageRefused, NoSpace

T = TypeVar("T")

DOCUMENT_BYTES = 4 << 20
"""Of a manifest, index or configuration: what registries take at most."""
LINKS = 8
"""On the way to a layer; docker-save needs one."""


class Member(msgspec.Struct, gc=False):
    """A file in the archive, or a link to one."""

    start: int
    size: int
    link: bytes | None = None


class Members:
    """The files of an archive that is not compressed, by their normalised names."""

    def __init__(self, fd: int, files: dict[bytes, Member]) -> None:
        self.fd = fd
        self._files = files
        self._digests: dict[tuple[int, str], str] = {}

    def __contains__(self, name: bytes) -> bool:
        return name in self._files

    def find(self, name: str) -> Member:
        """The file that a manifest names so."""
        raw = name.encode("utf-8", "surrogatepass")
        shown = printable(raw)
        path = _normal(raw, shown)
        for _ in range(LINKS):
            member = self._files.get(path)
            if member is None:
                raise ImageRefused(Reason.BLOB_MISSING, f"{shown} is not in the archive", hint=_EXPORT)
            if member.link is None:
                return member
            path = member.link
        raise ImageRefused(Reason.BAD_MEMBER, f"{shown} is a link that leads to ever more links")

    def document(self, name: str, kind: type[T]) -> T:
        """A JSON file, decoded; what is not asked for is ignored."""
        return decode(self.content(name), kind, name)

    def content(self, name: str) -> bytes:
        """A small file."""
        member = self.find(name)
        if member.size > DOCUMENT_BYTES:
            raise ImageRefused(Reason.BAD_MANIFEST, f"{_shown(name)} has {member.size} bytes: too many")
        content = os.pread(self.fd, member.size, member.start)
        if len(content) != member.size:
            raise ImageRefused(Reason.TRUNCATED, f"{_shown(name)} is cut off")
        return content

    def digest(self, member: Member, algorithm: str = "sha256") -> str:
        """The digest of a file as it lies in the archive. A manifest may name it many times; it is read once."""
        known = self._digests.get((member.start, algorithm))
        if known is None:
            known = self._digests[member.start, algorithm] = self._read_digest(member, algorithm)
        return known

    def _read_digest(self, member: Member, algorithm: str) -> str:
        hashed = hashlib.new(algorithm)
        with mmap.mmap(-1, 256 << 10) as memory, memoryview(memory) as buffer:
            done = 0
            while done < member.size:
                wanted = min(len(buffer), member.size - done)
                got = os.preadv(self.fd, [buffer[:wanted]], member.start + done)
                if not got:
                    raise ImageRefused(Reason.TRUNCATED, "the archive became shorter while it was read")
                hashed.update(buffer[:got])
                done += got
        return f"{algorithm}:{hashed.hexdigest()}"

    def digest_of_content(
        self, member: Member, limits: Limits, algorithm: str, on_progress: Callable[[int], None]
    ) -> str:
        """The digest of a file once decompressed; `on_progress` is told how many bytes that have been so far."""
        stream = open_stream(self.fd, limits=limits, start=member.start, length=member.size)
        hashed = hashlib.new(algorithm)
        try:
            while chunk := stream.chunk(1 << 20):
                hashed.update(chunk)
                on_progress(stream.position)
        finally:
            stream.close()
        return f"{algorithm}:{hashed.hexdigest()}"


def index_members(fd: int, *, limits: Limits) -> Members | None:
    """What is in this uncompressed archive; None if something is in it that no archive of layers has."""
    stream = open_stream(fd, limits=limits)
    files: dict[bytes, Member] = {}
    try:
        reader = TarReader(stream, limits)
        for entry in reader:
            parts = components(entry.name)
            if not parts:
                continue
            if not is_member_name(parts[0]):
                return None
            shown = printable(entry.name)
            path = _normal(entry.name, shown, offset=entry.offset)
            if entry.kind is Kind.DIRECTORY:
                continue
            link = _link(entry.kind, parts, entry.linkname, shown, entry.offset)
            if path in files or (entry.kind is Kind.FILE and entry.sparse is not None):
                raise ImageRefused(Reason.BAD_MEMBER, "it is there twice, or sparse", entry=shown, offset=entry.offset)
            files[path] = Member(reader.content_offset, entry.size, link)
    finally:
        stream.close()
    return Members(fd, files)


def spool_whole(fd: int, spool: int, *, limits: Limits) -> None:
    """Decompress the archive into a file: its members are needed in another order than they come in."""
    stream = open_stream(fd, limits=limits)
    try:
        while chunk := stream.chunk(1 << 20):
            written = 0
            while written < len(chunk):
                written += os.write(spool, chunk[written:])
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ImageRefused(Reason.IMAGE_TOO_LARGE, "decompressed, it is larger than an image may be") from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                "no space left for a decompressed copy of the archive",
                hint="make room where the archive lies, or compress the layers instead of the whole",
            ) from None
        raise
    finally:
        stream.close()


def decode(content: bytes, kind: type[T], name: str) -> T:
    """JSON that has one reading only, as a value of this type."""
    try:
        return msgspec.convert(json.loads(content, object_pairs_hook=_object), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ImageRefused(
            Reason.BAD_MANIFEST, f"{_shown(name)} is not what it should be: {_shown(str(error)[:200])}"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _shown(text: str) -> str:
    return printable(text.encode("utf-8", "surrogatepass"))


def _normal(name: bytes, shown: str, *, offset: int | None = None) -> bytes:
    parts = components(name)
    if name.startswith(b"/"):
        raise ImageRefused(Reason.ABSOLUTE_PATH, "the name begins with a slash", entry=shown, offset=offset)
    if b".." in parts:
        raise ImageRefused(Reason.PATH_TRAVERSAL, "the name has a component '..'", entry=shown, offset=offset)
    return b"/".join(parts)


def _link(kind: Kind, parts: list[bytes], target: bytes, shown: str, offset: int) -> bytes | None:
    """Where a link of docker-save (a layer that two images share) leads to, inside the archive."""
    if kind is Kind.FILE:
        return None
    if kind not in {Kind.SYMLINK, Kind.HARDLINK} or target.startswith(b"/"):
        raise ImageRefused(Reason.BAD_MEMBER, "it is neither file nor directory", entry=shown, offset=offset)
    path = parts[:-1] if kind is Kind.SYMLINK else []
    for part in components(target):
        if part != b"..":
            path.append(part)
        elif path:
            path.pop()
        else:
            raise ImageRefused(Reason.SYMLINK_ESCAPES, "it leads out of the archive", entry=shown, offset=offset)
    return b"/".join(path)


_EXPORT = "export the image once more: the archive is not complete"
