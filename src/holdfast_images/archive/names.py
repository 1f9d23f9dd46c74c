"""Names of entries: normalised for the rules, escaped for people. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from holdfast_images.archive.reasons import Reason

PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte not in b"\\/")
"""Bytes that nothing and nobody misreads."""
COMPONENT_BYTES = 255
_HEXADECIMAL = re.compile(rb"(sha256:)?[0-9a-f]{64}(\.json|\.tar|\.tar\.gz)?")
_FOREIGN = re.compile(rb"[A-Za-z]:|\\")
_DOCUMENTS = (b"oci-layout", b"index.json", b"manifest.json", b"repositories")
_NAMED = {*_DOCUMENTS, b"blobs"}
_DIRECTION = {chr(code) for code in (0x200E, 0x200F, 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def printable(name: bytes) -> str:
    r"""The name for a terminal, a log or a report: one line, no control characters, every byte told apart."""
    decoded = name.decode("utf-8", "surrogateescape").replace("\\", "\\\\")
    if decoded.isprintable():
        return decoded
    return "".join(each if each.isprintable() else _escaped(each) for each in decoded)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def is_suspicious(name: bytes) -> bool:
    """Would it mislead somebody who reads it? Control or direction characters, a backslash."""
    if not name.translate(None, PLAIN + b"/"):
        return False
    decoded = name.decode("utf-8", "surrogateescape")
    return "\\" in decoded or any(
        character in _DIRECTION or unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in decoded
    )


def is_foreign(name: bytes) -> bool:
    """Does it begin with a drive or a backslash? bsdtar cuts that off, on Linux too."""
    return _FOREIGN.match(name) is not None


def components(name: bytes) -> list[bytes]:
    """The parts that name something: without '.', and without the nothing between two slashes."""
    return [part for part in name.split(b"/") if part not in {b"", b"."}]


def problem(name: bytes, parts: list[bytes], *, depth: int, length: int) -> tuple[Reason, str] | None:
    """What forbids this name, whatever it names."""
    if not name:
        return Reason.EMPTY_NAME, "the name is empty"
    if name[0] == 0x2F:
        return Reason.ABSOLUTE_PATH, "the name begins with a slash"
    if b".." in parts:
        return Reason.PATH_TRAVERSAL, "the name has a component '..'"
    if len(name) > length:
        return Reason.NAME_TOO_LONG, f"the name has {len(name)} bytes, {length} are allowed"
    if any(len(part) > COMPONENT_BYTES for part in parts):
        return Reason.NAME_TOO_LONG, f"a component of the name has more than {COMPONENT_BYTES} bytes"
    if len(parts) > depth:
        return Reason.MAX_DEPTH, f"the name has {len(parts)} components, {depth} are allowed"
    return None


def folded(name: bytes) -> bytes:
    """Equal for names that a file system which ignores case or Unicode forms would take for one."""
    if name.isascii():
        return name.lower()
    decoded = unicodedata.normalize("NFKD", name.decode("utf-8", "surrogateescape"))
    return unicodedata.normalize("NFC", decoded.casefold()).encode("utf-8", "surrogateescape")


def is_member_name(top: bytes) -> bool:
    """May the first component of a name be in an archive of layers? No root file system has anything of the kind."""
    return top in _NAMED or _HEXADECIMAL.fullmatch(top) is not None


def names_an_image(paths: Collection[bytes]) -> bool:
    """Is a document among them from which other programs load an image, whatever it names?"""
    return any(name in paths for name in _DOCUMENTS)
