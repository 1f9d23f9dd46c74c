"""Pax extension headers: records, and what they change about an entry. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

import msgspec

from holdfast_images.archive import header as sparse
from holdfast_images.archive.entry import EntryKind, Reason, printable
from holdfast_images.archive.header import (
    DEVICE,
    GNU,
    KINDS,
    NO_PREFIX,
    POSIX,
    V7,
    number,
    text,
    unused_is_empty,
    whose,
)
from holdfast_images.errors import ImageRefused

_IGNORED = frozenset(
    (b"uname gname comment charset LIBARCHIVE.symlinktype SCHILY.dev SCHILY.ino SCHILY.nlink SCHILY.fflags").split()
)
"""Known to say nothing about what is extracted."""
_NAMES = frozenset((b"path", b"linkpath", b"uname", b"gname"))
"""With a NUL in one of them, used or not, an archive ends for programs in Go."""
_OTHER_TIMES = frozenset((b"atime", b"ctime", b"LIBARCHIVE.creationtime"))
"""Not kept, but to some readers a time that is none is the end of it."""
_CHARSETS = frozenset((b"ISO-IR 10646 2000 UTF-8", b"BINARY"))
_LEFT_OUT = (b"SCHILY.acl.", b"RHT.security.selinux", b"MSWINDOWS.")
"""Access control in other words: left out, and told."""
_REDEFINING = (b"SCHILY.", b"GNU.", b"SUN.")
"""Other keywords of these vendors give some readers another size, type or device number."""
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_TENTHS = [10 ** (9 - digits) for digits in range(10)]
"""Nanoseconds in one unit of the last of so many decimal places."""
_SECONDS = 18
"""Digits of a time: all that 64 bits hold for sure."""
_SHORT = 300
_LENGTHS = [b"%d" % (length + 1) for length in range(_SHORT)]
"""What stands in front of a record of so many bytes, its newline not counted."""
_TIME_ALONE = re.compile(rb"(\d\d) mtime=(\d{1,18})(?:\.(\d{0,9}))?\n")
_REPEATED = frozenset((b"GNU.sparse.offset", b"GNU.sparse.numbytes"))


class PaxExtension(msgspec.Struct):
    """What the extension headers in front of an entry say about it; None where they are silent."""

    path: bytes | None = None
    linkpath: bytes | None = None
    size: int | None = None
    uid: int | None = None
    gid: int | None = None
    mtime_ns: int | None = None
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    sparse: dict[bytes, bytes] = {}
    pieces: list[bytes] = []
    """Offsets and lengths of sparse form 0.0, in turn."""
    dropped: list[bytes] = []
    unknown: list[bytes] = []


class SimpleExtension(msgspec.Struct, gc=False):
    """What most of them say: a name and a time at most."""

    path: bytes | None
    mtime_ns: int | None


def whole(extension: PaxExtension | SimpleExtension | None) -> PaxExtension | None:
    """The same, with everything it does not say."""
    if isinstance(extension, SimpleExtension):
        return PaxExtension(path=extension.path, mtime_ns=extension.mtime_ns)
    return extension


def parsed(body: bytes) -> list[tuple[bytes, bytes]]:
    """The records of a pax header: "length keyword=value newline", nothing between or after them."""
    found: list[tuple[bytes, bytes]] = []
    seen: set[bytes] = set()
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 12)
        digits = body[at:space] if space > at else b""
        if not digits.isdigit() or digits[:1] == b"0":
            raise _bad(f"a record does not begin with its length: {body[at : at + 20]!r}")
        end = at + int(digits)
        if end > len(body) or end <= space + 2 or body[end - 1] != 0x0A:
            raise _bad(f"a record of {int(digits)} bytes does not end in a newline: {body[at : at + 40]!r}")
        keyword, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals or not keyword or b"\0" in keyword:
            raise _bad(f"a record has no keyword: {body[at : at + 40]!r}")
        if keyword in seen and keyword not in _REPEATED:
            raise _bad(f"the keyword {keyword[:80]!r} is given twice")
        if keyword in _NAMES and b"\0" in value:
            raise ImageRefused(Reason.NUL_IN_NAME, f"a pax header gives the {keyword.decode()} {value[:80]!r}")
        seen.add(keyword)
        found.append((keyword, value))
        at = end
    return found


def check_global(body: bytes) -> None:
    """A global header may comment. Some readers apply it to every entry, others to none: it must change nothing."""
    for keyword, value in parsed(body):
        if keyword == b"hdrcharset":
            _check_charset(value)
        elif keyword in _OTHER_TIMES:
            _nanoseconds(keyword, value)
        elif keyword not in _IGNORED:
            raise ImageRefused(Reason.PAX_GLOBAL, f"a global header sets {keyword[:80]!r} for all entries")


def extension(body: bytes) -> PaxExtension:
    """What a pax header says about the entry that follows it."""
    result = PaxExtension()
    xattrs: dict[bytes, bytes] = {}
    spellings: dict[bytes, bytes] = {}
    for keyword, value in parsed(body):
        match keyword:
            case b"path":
                result.path = _name(value)
            case b"linkpath":
                result.linkpath = _name(value)
            case b"size":
                result.size = _count(keyword, value)
            case b"uid":
                result.uid = whose(_count(keyword, value))
            case b"gid":
                result.gid = whose(_count(keyword, value))
            case b"mtime":
                result.mtime_ns = _nanoseconds(keyword, value)
            case _ if keyword in _OTHER_TIMES:
                _nanoseconds(keyword, value)
            case b"hdrcharset":
                _check_charset(value)
            case b"GNU.sparse.offset" | b"GNU.sparse.numbytes":
                _expect_count(result)
                if keyword.endswith(b"offset") == bool(len(result.pieces) % 2):
                    raise _bad("offsets and lengths of a sparse file do not take turns")
                result.pieces.append(value)
            case _ if keyword.startswith(b"GNU.sparse."):
                if keyword == b"GNU.sparse.map":
                    _expect_count(result)
                result.sparse[keyword[11:]] = value
            case _ if keyword.startswith((b"SCHILY.xattr.", b"LIBARCHIVE.xattr.")):
                name = _add_xattr(xattrs, keyword, value)
                if not spellings.get(name, b"").startswith(b"SCHILY."):
                    spellings[name] = keyword
            case _ if keyword not in _IGNORED:
                _unusual(result, keyword)
    result.xattrs = tuple(xattrs.items())
    # Others know only the first of the two spellings that bsdtar writes.
    result.unknown += [word for name, word in spellings.items() if not word.startswith(b"SCHILY.")]
    return result


def simple_extension(body: bytes) -> SimpleExtension | None:
    """The same, in a fraction of the time, for the header most writers put in front of every entry: names and times."""
    alone = _TIME_ALONE.fullmatch(body)
    if alone is not None:
        length, seconds, fraction = alone.groups(b"")
        if int(length) != len(body):
            return None
        return SimpleExtension(None, int(seconds + fraction) * _TENTHS[len(fraction)])
    path = mtime_ns = None
    seen: list[bytes] = []
    *lines, rest = body.split(b"\n")
    for line in lines:
        length, _, record = line.partition(b" ")
        keyword, equals, value = record.partition(b"=")
        if len(line) >= _SHORT or length != _LENGTHS[len(line)] or not equals or keyword in seen:
            return None  # a newline inside a value, a long one, or a fault: told by the thorough way
        seen.append(keyword)
        if b"\0" in value:
            return None
        if keyword == b"mtime" or keyword in _OTHER_TIMES:
            seconds, _, fraction = value.partition(b".")
            digits = seconds + fraction
            if not digits.isdigit() or not seconds or len(seconds) > _SECONDS or len(fraction) > 9:
                return None
            if keyword == b"mtime":
                mtime_ns = int(digits) * _TENTHS[len(fraction)]
        elif keyword == b"path":
            if not value:
                return None
            path = value
        elif keyword not in _IGNORED:
            return None
    return None if rest else SimpleExtension(path, mtime_ns)


def _unusual(result: PaxExtension, keyword: bytes) -> None:
    if keyword.startswith(_LEFT_OUT):
        result.dropped.append(keyword)
    elif keyword.startswith(_REDEFINING):
        raise _bad(f"the keyword {keyword[:80]!r} changes what an entry is for some readers only")
    else:
        result.unknown.append(keyword)


def _expect_count(result: PaxExtension) -> None:
    """GNU tar makes room for the pieces of a sparse file when it reads how many there are."""
    if b"numblocks" not in result.sparse:
        raise _bad("the pieces of a sparse file come before their number")


def _add_xattr(xattrs: dict[bytes, bytes], keyword: bytes, value: bytes) -> bytes:
    """Note it; its name."""
    if keyword.startswith(b"SCHILY."):
        name = keyword[13:]
    else:
        name = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), keyword[17:])
        try:
            value = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
        except binascii.Error:
            raise ImageRefused(Reason.BAD_XATTR, f"the attribute {name[:80]!r} is not base64") from None
    if not name or b"\0" in name or len(name) > 255 or b"." not in name:
        raise ImageRefused(Reason.BAD_XATTR, f"{name[:80]!r} cannot be the name of an extended attribute")
    # bsdtar writes each attribute in both spellings.
    if xattrs.setdefault(name, value) != value:
        raise ImageRefused(Reason.BAD_XATTR, f"the attribute {name!r} is given twice, with different values")
    return name


def _name(value: bytes) -> bytes:
    if not value:
        raise ImageRefused(Reason.EMPTY_NAME, "a pax header gives an empty name")
    return value


def _count(keyword: bytes, value: bytes) -> int:
    if not value.isdigit() or len(value) > 19 or int(value) >= 1 << 63:
        raise _bad(f"{keyword.decode()} is {value[:40]!r}")
    return int(value)


def _nanoseconds(keyword: bytes, value: bytes) -> int:
    """A time in seconds with a fraction. GNU tar ends with an error at any other."""
    negative = value[:1] == b"-"
    seconds, point, fraction = value[negative:].partition(b".")
    if not seconds.isdigit() or len(seconds) > _SECONDS or (fraction and not fraction.isdigit()) or len(fraction) > 40:
        raise _bad(f"{keyword.decode()} is {value[:40]!r}")
    total = int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, b"0") if point else 0)
    return -total if negative else total


def _check_charset(value: bytes) -> None:
    if value not in _CHARSETS:
        raise ImageRefused(Reason.PAX_CHARSET, f"names are declared to be in {value[:80]!r}")


def _bad(why: str) -> ImageRefused:
    return ImageRefused(Reason.BAD_PAX, f"malformed pax header: {why}")


# --- What a header and its extension headers mean together: form, name, kind, target and remarks. Pure ---

EXTENSIONS = frozenset((b"x", b"g", b"L", b"K"))
_MAGICS = frozenset((POSIX, GNU, V7))
NAME_FIELD = 100
IN_HEADER = 1 << 33
"""Sizes below it fit into the header."""
_V7_TYPES = frozenset((b"\0", b"0", b"1", b"2", b"5"))


class Header(NamedTuple):
    """The fields of a header block as they are."""

    name: bytes
    owner: bytes
    size: bytes
    mtime: bytes
    checksum: bytes
    kind: bytes
    linkname: bytes
    magic: bytes
    prefix: bytes
    rest: bytes


def check_form(header: Header) -> None:
    """Refuse a header whose form is unknown, or which has something where its form has nothing."""
    if header.magic not in _MAGICS:
        raise ImageRefused(Reason.BAD_MAGIC, f"the header's magic is {header.magic!r}")
    if not unused_is_empty(header.magic, header.kind, header.prefix, header.rest):
        raise ImageRefused(Reason.BAD_HEADER, "there is something in the header where its form has no field")
    known = header.kind in KINDS or header.kind in EXTENSIONS
    # Without the magic of GNU a sparse map lies where the prefix of the name is: readers take it for either.
    known = known and (header.kind != b"S" or header.magic == GNU)
    if not known or (header.magic == V7 and header.kind not in _V7_TYPES):
        raise ImageRefused(Reason.UNSUPPORTED_TYPE, f"the entry is of type {header.kind!r}")


def check_unused_numbers(header: Header, block: bytes) -> None:
    """Refuse an extension header with a number that is none: to some readers that is the end of the archive."""
    for start in (0, 8, 16):
        number(header.owner[start : start + 8])
    number(header.mtime, negative=True)
    device_of(block)


def device_of(block: bytes) -> tuple[int, int]:
    """Major and minor number."""
    device = block[DEVICE]
    return number(device[:8]), number(device[8:])


def effective_name(header: Header, extension: PaxExtension) -> bytes:
    """The name that counts: of the sparse file, of the extension header, of prefix and name."""
    name = text(header.name)
    if header.magic == POSIX and header.prefix != NO_PREFIX:
        prefix = text(header.prefix)
        if not name and extension.path is None:
            raise ImageRefused(Reason.EMPTY_NAME, "the name is empty, only its prefix is given")
        name = prefix + b"/" + name
    hidden = extension.sparse.get(b"name")
    if hidden is not None:
        _check_hidden_name(hidden, extension.path)
        return hidden
    name = name if extension.path is None else extension.path
    if not name:
        raise ImageRefused(Reason.EMPTY_NAME, "the name is empty")
    return name


def effective_kind(header: Header, extension: PaxExtension, name: bytes) -> EntryKind:
    """The kind that the type says, and every reader understands."""
    kind = KINDS[header.kind]
    if kind is not EntryKind.FILE:
        return kind
    slash = name.endswith(b"/")
    if slash and header.kind == b"\0" and extension.path is None:
        return EntryKind.DIRECTORY  # the old form has no other way to say so
    if slash or (header.kind == b"\0" and text(header.name).endswith(b"/")):
        raise ImageRefused(Reason.AMBIGUOUS_TYPE, "the entry is a file by its type and a directory by its name")
    return kind


def effective_target(header: Header, extension: PaxExtension, kind: EntryKind) -> bytes:
    """The target of a link; nothing else may have one."""
    linkname = text(header.linkname) if extension.linkpath is None else extension.linkpath
    if kind in {EntryKind.SYMLINK, EntryKind.HARDLINK}:
        if not linkname:
            raise ImageRefused(Reason.EMPTY_LINK, "the link has no target")
    elif linkname:
        raise ImageRefused(Reason.LINK_NAME_ON_NONLINK, f"a {kind.name.lower()} has the target {linkname[:80]!r}")
    return linkname


def remarks(header: Header, extension: PaxExtension) -> tuple[tuple[str, str], ...]:
    """What was left out or overruled."""
    found: list[tuple[str, str]] = [
        (Reason.XATTR_STRIPPED, f"{printable(keyword[:80])} is not carried over") for keyword in extension.dropped
    ]
    found += [(Reason.PAX_UNKNOWN, f"{printable(keyword[:80])} is unknown") for keyword in extension.unknown]
    if extension.size is not None and extension.size < IN_HEADER and number(header.size) != extension.size:
        found.append((Reason.SIZE_OVERRIDDEN, f"{extension.size} bytes instead of {number(header.size)}"))
    return tuple(found)


def long_name(body: bytes) -> bytes:
    """The name in a GNU extension header."""
    name = text(body)
    if not name:
        raise ImageRefused(Reason.EMPTY_NAME, "a long name is empty")
    return name


def _check_hidden_name(name: bytes, path: bytes | None) -> None:
    """A sparse file has a made-up name for readers that do not know its form, or its own; anything else is a trick.

    What is in the header alone is cut off where the field ends, and tells nothing.
    """
    sparse.check_name(name)
    if path is not None and path != name and not _is_made_up(path, name):
        raise ImageRefused(Reason.EXTENSION_CONFLICT, f"a sparse file is named {name[:80]!r} and {path[:80]!r}")


def _is_made_up(path: bytes, name: bytes) -> bool:
    """Is it the name with a directory GNUSparseFile.<number> put in? GNU tar cuts it off like the header's field."""
    directory, slash, base = name.rpartition(b"/")
    is_cut = len(path) == NAME_FIELD
    for start in (directory + slash, b"./"):
        found = re.fullmatch(re.escape(start) + rb"GNUSparseFile\.[0-9]+(?:/(.*))?", path, re.DOTALL)
        rest = found and (found[1] or b"")
        if rest == base or (is_cut and rest is not None and base.startswith(rest)):
            return True
        if is_cut and (start + b"GNUSparseFile.").startswith(path):
            return True
    return False
