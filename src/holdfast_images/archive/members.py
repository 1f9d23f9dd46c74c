"""The archive around the layers of an OCI layout or a docker-save file: what is in it, and where."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec

from holdfast_images.archive.compression import open_stream
from holdfast_images.archive.decoders import FileHash
from holdfast_images.archive.entry import Entry, EntryKind, Limits, Reason, components, is_member_name, printable
from holdfast_images.archive.reader import TarReader
from holdfast_images.errors import ImageRefused, NoSpace

T = TypeVar("T")

DOCUMENT_BYTES = 1 << 20
"""Of a manifest, index or configuration. Parsed, it may take forty times as much."""
ROOTS = frozenset({b"oci-layout", b"index.json", b"manifest.json"})
"""Documents that nothing names by a digest."""
LINKS = 8
"""On the way to a layer; docker-save needs one."""


class Member(msgspec.Struct, gc=False):
    """A file in the archive, or a link to one."""

    start: int
    size: int
    link: bytes | None = None


class Members:
    """The files of an archive that is not compressed, by their normalised names."""

    def __init__(self, fd: int, files: dict[bytes, Member], documents: dict[int, bytes] | None = None) -> None:
        """`documents`: the content of those files that nothing else proves, by where they begin."""
        self.fd = fd
        self._files = files
        self._documents = documents or {}
        self._digests: dict[tuple[int, str], str] = {}

    def __contains__(self, name: bytes) -> bool:
        return name in self._files

    def find(self, name: str) -> Member:
        """The file that a manifest names so."""
        try:
            raw = name.encode()
        except UnicodeEncodeError:
            # Half a character: readers replace it, each by its own.
            raise ImageRefused(Reason.BAD_MANIFEST, f"{_shown(name)} is no name") from None
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

    def proven(self, name: str, digest: str) -> bytes:
        """A small file that has this digest: what was compared is what is returned."""
        content = self.content(name)
        algorithm = digest.partition(":")[0]
        if (found := f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}") != digest:
            raise ImageRefused(Reason.DIGEST_MISMATCH, f"{_shown(name)} has the digest {found}")
        return content

    def content(self, name: str) -> bytes:
        """A small file."""
        member = self.find(name)
        if member.size > DOCUMENT_BYTES:
            raise ImageRefused(Reason.BAD_MANIFEST, f"{_shown(name)} has {member.size} bytes: too many")
        if (known := self._documents.get(member.start)) is not None:
            return known
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
        self, member: Member, limits: Limits, algorithm: str, on_progress: Callable[[int], None], stored: FileHash
    ) -> str:
        """The digest of a file once decompressed; `on_progress` is told how many bytes that have been so far."""
        stream = open_stream(self.fd, limits=limits, start=member.start, length=member.size, hashed=stored)
        hashed = hashlib.new(algorithm)
        try:
            while chunk := stream.chunk(1 << 20):
                hashed.update(chunk)
                on_progress(stream.position)
        finally:
            stream.close()
        return f"{algorithm}:{hashed.hexdigest()}"


def index_members(fd: int, *, limits: Limits, hashed: FileHash | None = None) -> Members | None:
    """What is in this uncompressed archive; None if something is in it that no archive of layers has.

    What names everything else by digests is read and kept, so that it is what was hashed.
    """
    stream = open_stream(fd, limits=limits, hashed=hashed)
    files: dict[bytes, Member] = {}
    directories: set[bytes] = set()
    documents: dict[int, bytes] = {}
    names_bytes = 0
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
            names_bytes += len(path) + len(entry.linkname)
            if names_bytes > limits.names_bytes:
                raise ImageRefused(
                    Reason.NAMES_TOO_LONG, f"the names have more than {limits.names_bytes} bytes together"
                )
            if entry.kind is EntryKind.DIRECTORY:
                directories.add(path)
                continue
            link = _link(entry.kind, parts, entry.linkname, shown, entry.offset)
            problem = _problem(entry, path in files)
            if problem is not None:
                raise ImageRefused(*problem, entry=shown, offset=entry.offset)
            files[path] = Member(reader.content_offset, entry.size, link)
            if path in ROOTS and link is None and entry.size <= DOCUMENT_BYTES:
                start = reader.content_offset
                documents[start] = b"".join(map(bytes, reader.body()))
    finally:
        stream.close()
    _expect_directories(files, directories)
    return Members(fd, files, documents)


def _problem(entry: Entry, is_there: bool) -> tuple[Reason, str] | None:  # noqa: FBT001 - one more fact about it
    """What is wrong with a member that readers take in two ways."""
    if is_there or (entry.kind is EntryKind.FILE and entry.sparse is not None):
        return Reason.BAD_MEMBER, "it is there twice, or sparse"
    for code, detail in entry.remarks:
        if code == Reason.SIZE_OVERRIDDEN:
            return Reason.SIZE_OVERRIDDEN, detail
    return None


def _expect_directories(files: dict[bytes, Member], directories: set[bytes]) -> None:
    """Refuse members below a file or a link, or which are directories as well: who unpacks them finds others."""
    for path in files.keys() | directories:
        above = path if path in directories else path.rpartition(b"/")[0]
        while above and above not in files:
            above = above.rpartition(b"/")[0]
        if above:
            raise ImageRefused(Reason.BAD_MEMBER, f"{printable(above)} is no directory, but used as one")


def spool_whole(fd: int, spool: int, *, limits: Limits, hashed: FileHash | None = None) -> None:
    """Decompress the archive into a file: its members are needed in another order than they come in."""
    stream = open_stream(fd, limits=limits, hashed=hashed)
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
        # As text, because of bytes it would take UTF-16 and a mark of the byte order as well.
        document = json.loads(
            content.decode(), object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_NotWhole
        )
        _refuse_other_spellings(document, kind)
        return msgspec.convert(document, kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ImageRefused(
            Reason.BAD_MANIFEST, f"{_shown(name)} is not what it should be: {_shown(str(error)[:200])}"
        ) from None


def _refuse_other_spellings(value: Any, kind: Any) -> None:
    """Raise ValueError for a key that some readers take for one of ours, because they do not look at its case."""
    if isinstance(value, list):
        for item in value:
            for inner in get_args(kind):
                _refuse_other_spellings(item, inner)
        return
    if not isinstance(value, dict):
        return
    for each in get_args(kind) or (kind,):
        if not (isinstance(each, type) and issubclass(each, msgspec.Struct)):
            continue
        ours = {field.encode_name.casefold(): field for field in msgspec.structs.fields(each)}
        for key, item in value.items():
            field = ours.get(key.casefold())
            if field is not None and key != field.encode_name:
                raise ValueError(f"the key {key!r} can be read as {field.encode_name!r}")
            if field is not None:
                _refuse_other_spellings(item, field.type)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


class _NotWhole:
    """A number with a point or an exponent: nothing that is asked for is one, not even if it is 2.0."""

    def __init__(self, text: str) -> None:
        """Whatever it is."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _shown(text: str) -> str:
    return printable(text.encode("utf-8", "surrogatepass"))


def _normal(name: bytes, shown: str, *, offset: int | None = None) -> bytes:
    parts = components(name)
    if name.startswith(b"/"):
        raise ImageRefused(Reason.ABSOLUTE_PATH, "the name begins with a slash", entry=shown, offset=offset)
    if b".." in parts:
        raise ImageRefused(Reason.PATH_TRAVERSAL, "the name has a component '..'", entry=shown, offset=offset)
    return b"/".join(parts)


def _link(kind: EntryKind, parts: list[bytes], target: bytes, shown: str, offset: int) -> bytes | None:
    """Where a link of docker-save (a layer that two images share) leads to, inside the archive."""
    if kind is EntryKind.FILE:
        return None
    if kind not in {EntryKind.SYMLINK, EntryKind.HARDLINK} or target.startswith(b"/"):
        raise ImageRefused(Reason.BAD_MEMBER, "it is neither file nor directory", entry=shown, offset=offset)
    path = parts[:-1] if kind is EntryKind.SYMLINK else []
    for part in components(target):
        if part != b"..":
            path.append(part)
        elif path:
            path.pop()
        else:
            raise ImageRefused(Reason.SYMLINK_ESCAPES, "it leads out of the archive", entry=shown, offset=offset)
    return b"/".join(path)


_EXPORT = "export the image once more: the archive is not complete"
