"""What a header and its extension headers mean together: form, name, kind, target and remarks. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast_images.archive import sparse
from holdfast_images.archive.entry import Kind
from holdfast_images.archive.header import DEVICE, GNU, KINDS, NO_PREFIX, POSIX, V7, number, text, unused_is_empty
from holdfast_images.archive.names import printable
from holdfast_images.archive.pax import Extension
from holdfast_images.archive.reasons import Reason
from holdfast_images.errors import ImageRefused

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


def effective_name(header: Header, extension: Extension) -> bytes:
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


def effective_kind(header: Header, extension: Extension, name: bytes) -> Kind:
    """The kind that the type says, and every reader understands."""
    kind = KINDS[header.kind]
    if kind is not Kind.FILE:
        return kind
    slash = name.endswith(b"/")
    if slash and header.kind == b"\0" and extension.path is None:
        return Kind.DIRECTORY  # the old form has no other way to say so
    if slash or (header.kind == b"\0" and text(header.name).endswith(b"/")):
        raise ImageRefused(Reason.AMBIGUOUS_TYPE, "the entry is a file by its type and a directory by its name")
    return kind


def effective_target(header: Header, extension: Extension, kind: Kind) -> bytes:
    """The target of a link; nothing else may have one."""
    linkname = text(header.linkname) if extension.linkpath is None else extension.linkpath
    if kind in {Kind.SYMLINK, Kind.HARDLINK}:
        if not linkname:
            raise ImageRefused(Reason.EMPTY_LINK, "the link has no target")
    elif linkname:
        raise ImageRefused(Reason.LINK_NAME_ON_NONLINK, f"a {kind.name.lower()} has the target {linkname[:80]!r}")
    return linkname


def remarks(header: Header, extension: Extension) -> tuple[tuple[str, str], ...]:
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
