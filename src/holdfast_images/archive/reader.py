"""The one tar parser: what it yields is judged and extracted, what it does not understand is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn
from zlib import adler32

from holdfast_images.archive import header as sparse
from holdfast_images.archive import pax
from holdfast_images.archive.compression import Stream
from holdfast_images.archive.entry import Entry, EntryKind, Limits, Reason, printable
from holdfast_images.archive.header import (
    BEFORE_END,
    BLOCK,
    LAYOUT,
    NO_NAME,
    PLAIN_DEVICES,
    PLAIN_END,
    PLAIN_LAYOUT,
    PLAIN_MIDDLES,
    POSIX,
    PlainSums,
    checksum,
    is_checksum,
    number,
    owner,
)
from holdfast_images.archive.pax import (
    EXTENSIONS,
    IN_HEADER,
    Header,
    check_form,
    check_unused_numbers,
    device_of,
    effective_kind,
    effective_name,
    effective_target,
    long_name,
    remarks,
)
from holdfast_images.errors import ImageRefused

PAX_BYTES = 1 << 20
"""Of one pax header: the longest names, all attributes allowed, and a sparse map with room to spare."""
FILE, DIRECTORY = EntryKind.FILE, EntryKind.DIRECTORY
_PLAIN_KINDS = {b"0": EntryKind.FILE, b"5": EntryKind.DIRECTORY, b"x": EntryKind.FILE}
_OCTAL = b"01234567"
_SECOND = 1_000_000_000
_OWNERS = 4096
"""Most archives have few owners and modes: the 24 bytes are looked up, and forgotten when they are many."""


class TarReader:
    """The entries of a tar archive, one after the other; any doubt about what it says is an ImageRefused."""

    def __init__(self, stream: Stream, limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._owners: dict[bytes, tuple[int, int, int]] = {}
        self._left = 0
        """Content of the current entry that was not read."""
        self._header_at = 0
        """Where in the stream the next header begins."""
        self._entry = b""
        self._offset = 0
        self._count = 0
        self._globals = 0
        self._extension: pax.PaxExtension | pax.SimpleExtension | None = None
        """What a pax header said about the entry that comes next."""
        self._extension_offset = 0
        self.content_offset = 0
        """Where in the stream the content of the current entry begins."""

    def __iter__(self) -> Iterator[Entry]:
        """Every entry, up to the end of the archive, of which every byte has been seen."""
        stream, unpack, owners, most = self._stream, PLAIN_LAYOUT.unpack_from, self._owners, self._limits.entries
        sums = PlainSums()
        while True:
            self._offset = offset = self._header_at
            self._left = 0
            index = stream.block_at(offset)
            if index < 0:
                self._end_without_marker()
            buffer = stream.buffer
            name, who, octal_size, nul, octal_mtime, nul_2, stated, kind, middle, device, end = unpack(buffer, index)
            # The plain file or directory of most archives; everything unusual takes the long way.
            if (
                adler32(buffer[index : index + BEFORE_END]) & 0xFFFF == sums[stated]
                and end == PLAIN_END
                and middle in PLAIN_MIDDLES
                and device in PLAIN_DEVICES
                and nul == b"\0"
                and not octal_size.strip(_OCTAL)
            ):
                size = int(octal_size, 8)
                content = offset + BLOCK
                padded = size + (-size & 511)
                extension, mtime_ns = self._extension, None
                known, file = owners.get(who + kind), _PLAIN_KINDS.get(kind)
                if known is None and file is not None:
                    known = self._owner_if_right(who, kind, file)
                if nul_2 != b"\0" or octal_mtime.strip(_OCTAL):
                    known = None
                elif kind == b"x":
                    if known is not None and extension is None and size <= PAX_BYTES:
                        self._extension, self._extension_offset = self._pax(name, size), offset
                        self._header_at = content + padded
                        continue
                    known = None
                # Not rstrip(), which looks at one byte after the other.
                length = name.find(b"\0")
                name, rest = (name[:length], name[length:]) if length >= 0 else (name, b"")
                if not name or rest != NO_NAME[len(name) :]:
                    known = None
                elif extension is not None:
                    name, mtime_ns, offset = extension.path or name, extension.mtime_ns, self._extension_offset
                    known = known if type(extension) is pax.SimpleExtension else None
                if known is not None and ((file is FILE and name[-1] != 0x2F) or (file is DIRECTORY and not size)):
                    self._extension = None
                    self._count += 1
                    self.content_offset = content
                    self._left = size
                    self._header_at = content + padded
                    if self._count > most or (stream.length is not None and content + padded > stream.length):
                        self._count_no_more(name, size)
                    mode, uid, gid = known
                    mtime_ns = int(octal_mtime, 8) * _SECOND if mtime_ns is None else mtime_ns
                    yield Entry(name, file, mode, uid, gid, size, size, mtime_ns, offset)
                    continue
            block = buffer[index : index + BLOCK].tobytes()
            if self._is_end(block):
                return
            yield self._unusual(block)

    def body(self) -> Iterable[memoryview]:
        """The stored content of the current entry; each piece is valid until the next one is asked for."""
        if not self._left:
            return ()
        piece = self._piece()
        # Most files are small, and whole in the buffer.
        return self._pieces(piece) if self._left else (piece,)

    def _pieces(self, piece: memoryview) -> Iterator[memoryview]:
        yield piece
        while self._left:
            yield self._piece()

    def _piece(self) -> memoryview:
        piece = self._stream.chunk(self._left)
        if not piece:
            self._refuse(Reason.TRUNCATED, "it ends in the middle of content")
        self._left -= len(piece)
        return piece

    # --- the unusual entries

    def _pax(self, name: bytes, size: int) -> pax.PaxExtension | pax.SimpleExtension:
        """The pax header that most archives have in front of an entry."""
        try:
            # Most are whole in the buffer; what pads them is left out on the way to the next header.
            piece = self._stream.chunk(size)
            body = bytes(piece) if len(piece) == size else self._body(bytes(piece), size)
            return pax.simple_extension(body) or pax.extension(body)
        except ImageRefused as refused:
            self._entry = name
            raise self._located(refused) from None

    def _unusual(self, block: bytes) -> Entry:
        """An entry with other extension headers, or with anything a plain file or directory does not have."""
        header = Header._make(LAYOUT.unpack(block))
        self._count_entry()
        extension, self._extension = pax.whole(self._extension), None
        offset = self._offset if extension is None else self._extension_offset
        self._entry = header.name if extension is None or extension.path is None else extension.path
        try:
            if header.kind in EXTENSIONS:
                extension, header, block = self._extended(header, block, extension)
            return self._assembled(header, block, extension or pax.PaxExtension(), offset)
        except ImageRefused as refused:
            raise self._located(refused) from None
        finally:
            self._entry = b""

    def _located(self, refused: ImageRefused) -> ImageRefused:
        if refused.offset is not None:
            return refused
        return ImageRefused(refused.code, refused.detail, entry=self._shown(), offset=self._offset, hint=refused.hint)

    def _extended(
        self, header: Header, block: bytes, before: pax.PaxExtension | None
    ) -> tuple[pax.PaxExtension, Header, bytes]:
        """Gather extension headers up to the header they belong to."""
        seen: set[bytes] = set() if before is None else {b"x"}
        extension = before or pax.PaxExtension()
        while header.kind in EXTENSIONS:
            check_form(header)
            check_unused_numbers(header, block)
            most = PAX_BYTES if header.kind in {b"x", b"g"} else self._limits.name_bytes + 1
            body = self._extension_body(number(header.size), most)
            if header.kind == b"g":
                if seen - {b"g"}:
                    raise ImageRefused(
                        Reason.EXTENSION_CONFLICT, "a global header stands between a header and its entry"
                    )
                self._count_global()
                pax.check_global(body)
            elif header.kind in seen or (seen - {b"g"} and b"x" in {*seen, header.kind}):
                # The last one wins for some readers, the first or the pax header for others.
                raise ImageRefused(Reason.EXTENSION_CONFLICT, "several extension headers belong to one entry")
            elif header.kind == b"x":
                extension = pax.extension(body)
            elif header.kind == b"L":
                extension.path = long_name(body)
            else:
                extension.linkpath = long_name(body)
            seen.add(header.kind)
            self._entry = extension.path or self._entry
            header, block = self._next_header()
        return extension, header, block

    def _next_header(self) -> tuple[Header, bytes]:
        stream = self._stream
        index = stream.block(0)
        self._offset = stream.base + index
        block = b"" if index < 0 else stream.buffer[index : index + BLOCK].tobytes()
        if not block.strip(b"\0"):
            raise ImageRefused(Reason.EXTENSION_WITHOUT_ENTRY, "an extension header is followed by no entry")
        header = Header._make(LAYOUT.unpack(block))
        if not is_checksum(header.checksum, checksum(memoryview(block))):
            raise ImageRefused(Reason.BAD_CHECKSUM, "the header's checksum is not that of its bytes")
        return header, block

    def _count_global(self) -> None:
        # They are no entries, but an endless row of them must end.
        self._globals += 1
        if self._globals > self._limits.entries:
            self._too_many()

    def _extension_body(self, size: int, most: int) -> bytes:
        if size > most:
            reason = Reason.EXTENSION_TOO_LARGE if most == PAX_BYTES else Reason.NAME_TOO_LONG
            raise ImageRefused(reason, f"an extension header has {size} bytes, {most} are allowed")
        body = self._body(b"", size)
        self._stream.skip(-size % BLOCK)
        return body

    def _body(self, beginning: bytes, size: int) -> bytes:
        """So many bytes of an extension header, of which the first may have been read."""
        parts = [beginning]
        left = size - len(beginning)
        while left:
            piece = self._stream.chunk(left)
            if not piece:
                raise ImageRefused(Reason.TRUNCATED, "it ends in the middle of an extension header")
            parts.append(bytes(piece))
            left -= len(piece)
        return b"".join(parts)

    def _assembled(self, header: Header, block: bytes, extension: pax.PaxExtension, offset: int) -> Entry:
        """The entry that a header and its extensions make."""
        check_form(header)
        name = effective_name(header, extension)
        self._entry = name
        kind = effective_kind(header, extension, name)
        # Every number is read, also one that an extension overrules or that means nothing here: to some readers one
        # that is none is a fault, or the end of the archive.
        mode, uid, gid = owner(header.owner, kind)
        size, seconds, device = number(header.size), number(header.mtime, negative=True), device_of(block)
        size = size if extension.size is None else extension.size
        entry = Entry(
            name,
            kind,
            mode,
            uid if extension.uid is None else extension.uid,
            gid if extension.gid is None else extension.gid,
            size,
            size,
            seconds * _SECOND if extension.mtime_ns is None else extension.mtime_ns,
            offset,
            effective_target(header, extension, kind),
            extension.xattrs,
            remarks=remarks(header, extension),
        )
        if kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
            entry.device = device
        if size and kind is not EntryKind.FILE:
            raise ImageRefused(Reason.SIZE_ON_NONFILE, f"a {kind.name.lower()} says it has {size} bytes of content")
        if header.kind == b"S" or extension.sparse or extension.pieces:
            self._make_sparse(entry, header, extension)
        self._begin(name, entry.stored, self._stream.position)
        return entry

    def _owner_if_right(self, who: bytes, letter: bytes, kind: EntryKind) -> tuple[int, int, int] | None:
        """Of a plain entry, remembered; what is wrong with it the long way tells."""
        if len(self._owners) > _OWNERS:
            self._owners.clear()
        try:
            # By its type byte: an old file may be a directory, and type bits in the mode must be right for both.
            known = self._owners[who + letter] = owner(who, kind)
        except ImageRefused:
            return None
        return known

    def _make_sparse(self, entry: Entry, header: Header, extension: pax.PaxExtension) -> None:
        if entry.kind is not EntryKind.FILE:
            raise sparse.bad(f"the entry is a {entry.kind.name.lower()}")
        if header.kind == b"\0":
            raise sparse.bad("its type is that of files before there were pax headers")  # libarchive ends there
        said = extension.sparse
        # Beside the size with its holes, some readers take the one that is stored for it. Large ones need it.
        needless = extension.size is not None and extension.size < IN_HEADER
        if needless or (header.kind == b"S" and (said or extension.pieces or extension.size is not None)):
            raise ImageRefused(Reason.EXTENSION_CONFLICT, "a sparse file has two maps or sizes")
        if header.kind != b"S" and header.magic != POSIX:
            raise sparse.bad("its header has not the magic that pax headers belong to")  # GNU tar sees no map there
        if header.kind == b"S":
            pieces, entry.size = sparse.old_map(header.prefix, self._map_block)
        elif said.keys() == {b"major", b"minor", b"name", b"realsize"} and not extension.pieces:
            if (said[b"major"], said[b"minor"]) != (b"1", b"0"):
                raise sparse.bad("its version is unknown")
            entry.size = sparse.decimal(said[b"realsize"])
            pieces, used = sparse.stored_map(self._map_block)
            entry.stored -= used
        elif said.keys() >= {b"size", b"numblocks"} and said.keys() <= {b"size", b"numblocks", b"map", b"name"}:
            entry.size = sparse.decimal(said[b"size"])
            listed = said[b"map"].split(b",") if b"map" in said else []
            if extension.pieces and (listed or b"name" in said):
                raise sparse.bad("it is given twice")
            pieces = sparse.listed_map(listed or extension.pieces, said[b"numblocks"])
        else:
            raise sparse.bad("some of its records are missing")
        entry.sparse = sparse.checked(pieces, entry.size, entry.stored)

    def _map_block(self) -> bytes:
        index = self._stream.block()
        if index < 0:
            raise ImageRefused(Reason.TRUNCATED, "it ends in the map of a sparse file")
        return self._stream.buffer[index : index + BLOCK].tobytes()

    # --- what is to be expected, and the end

    def _count_no_more(self, name: bytes, stored: int) -> None:
        """The plain entry just begun is one too many, or cut off."""
        if self._count > self._limits.entries:
            self._too_many()
        self._begin(name, stored, self.content_offset)

    def _begin(self, name: bytes, stored: int, position: int) -> None:
        """Content follows; if the length of the stream is known, it must be there."""
        padded = stored + (-stored & 511)
        length = self._stream.length
        if length is not None and position + padded > length:
            self._entry = name
            detail = f"{stored} bytes of content are announced, {length - position} bytes are left"
            self._refuse(Reason.TRUNCATED, detail)
        self.content_offset = position
        self._left = stored
        self._header_at = position + padded

    def _is_end(self, block: bytes) -> bool:
        """True at the end of the archive, once everything up to the end of the stream is seen to be zeros."""
        if not block.strip(b"\0"):
            self._end()
            return True
        if not is_checksum(block[148:156], checksum(memoryview(block))):
            if self._count or block[257:262] == b"ustar":
                self._refuse(Reason.BAD_CHECKSUM, "the header's checksum is not that of its bytes")
            self._refuse(Reason.NOT_A_TAR, "it does not begin with the header of a tar archive")
        return False

    def _end(self) -> None:
        stream = self._stream
        self._check_nothing_pending()
        index = stream.block()
        if index < 0:
            self._refuse(Reason.MISSING_END, "one block of zeros ends it; two are needed")
        if stream.buffer[index : index + BLOCK].tobytes().strip(b"\0"):
            self._refuse(Reason.TRAILING_DATA, "a block of zeros is followed by something else")
        while piece := stream.chunk(1 << 20):
            if bytes(piece).strip(b"\0"):
                self._offset = stream.position - len(piece)
                self._refuse(Reason.TRAILING_DATA, "something other than zeros follows the end of the archive")

    def _check_nothing_pending(self) -> None:
        if self._extension is not None:
            self._refuse(Reason.EXTENSION_WITHOUT_ENTRY, "an extension header is followed by no entry")

    def _end_without_marker(self) -> NoReturn:
        self._offset = self._stream.position
        self._check_nothing_pending()
        if not self._offset:
            self._refuse(Reason.EMPTY_ARCHIVE, "there is not a single byte")
        self._refuse(Reason.MISSING_END, "the two blocks of zeros at the end are missing")

    def _count_entry(self) -> None:
        self._count += 1
        if self._count > self._limits.entries:
            self._too_many()

    def _too_many(self) -> NoReturn:
        self._refuse(Reason.TOO_MANY_ENTRIES, f"there are more than {self._limits.entries} entries")

    def _refuse(self, reason: Reason, detail: str) -> NoReturn:
        raise ImageRefused(reason, detail, entry=self._shown(), offset=self._offset)

    def _shown(self) -> str:
        return printable(self._entry.rstrip(b"\0")[: self._limits.name_bytes])
