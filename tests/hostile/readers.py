"""How other programs read a tar archive: Python's tarfile, libarchive and GNU tar, each as a list of what it sees."""

from __future__ import annotations

import ctypes
import hashlib
import io
import re
import tarfile
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from holdfast_images.archive.entry import Entry, EntryKind, Limits
from tests.support.images.archives import entries_of
from tests.support.images.throwaway_root import run

LETTERS = {
    EntryKind.FILE: "-",
    EntryKind.DIRECTORY: "d",
    EntryKind.SYMLINK: "l",
    EntryKind.HARDLINK: "h",
    EntryKind.CHARACTER_DEVICE: "c",
    EntryKind.BLOCK_DEVICE: "b",
    EntryKind.FIFO: "p",
}


class Seen(NamedTuple):
    """One member, as a reader sees it; None where the reader does not say it."""

    name: bytes
    kind: str
    mode: int
    owner: tuple[int, int]
    mtime: int | None
    """In seconds."""
    size: int
    link: bytes
    content: str | None


class Reading(NamedTuple):
    """All members, and what the reader complained about."""

    members: list[Seen]
    complaint: str = ""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def plain_name(name: bytes) -> bytes:
    """Some readers take the slash off the names of directories."""
    return name.rstrip(b"/") or b"/"


# --- ours ---------------------------------------------------------------------------------------------------


def by_us(content: bytes, limits: Limits) -> Reading:
    found = []
    for entry, body in entries_of(content, limits):
        found.append(
            Seen(
                plain_name(entry.name),
                LETTERS[entry.kind],
                entry.mode,
                (entry.uid, entry.gid),
                entry.mtime_ns // 10**9,
                entry.size,
                entry.linkname,
                digest(filled(entry, body)) if entry.kind is EntryKind.FILE else None,
            )
        )
    return Reading(found)


def filled(entry: Entry, body: bytes) -> bytes:
    """The content with its holes."""
    if entry.sparse is None:
        return body
    content = bytearray(entry.size)
    for offset, length in entry.sparse:
        content[offset : offset + length] = body[:length]
        body = body[length:]
    return bytes(content)


# --- tarfile ------------------------------------------------------------------------------------------------

_TARFILE_LETTERS = {
    tarfile.DIRTYPE: "d",
    tarfile.SYMTYPE: "l",
    tarfile.LNKTYPE: "h",
    tarfile.CHRTYPE: "c",
    tarfile.BLKTYPE: "b",
    tarfile.FIFOTYPE: "p",
}


def by_tarfile(content: bytes) -> Reading:
    found: list[Seen] = []
    try:
        with tarfile.open(
            fileobj=io.BytesIO(content), mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for info in archive:
                file = archive.extractfile(info) if info.isreg() else None
                found.append(
                    Seen(
                        plain_name(info.name.encode("utf-8", "surrogateescape")),
                        _TARFILE_LETTERS.get(info.type, "-" if info.isreg() else "?"),
                        info.mode & 0o7777,
                        (info.uid, info.gid),
                        int(info.mtime // 1),
                        info.size,
                        info.linkname.encode("utf-8", "surrogateescape"),
                        digest(file.read()) if file else None,
                    )
                )
    except (tarfile.TarError, ValueError, OSError, OverflowError) as error:
        return Reading(found, f"{type(error).__name__}: {error}")
    return Reading(found)


# --- libarchive ---------------------------------------------------------------------------------------------

_FILETYPES = {0o100000: "-", 0o040000: "d", 0o120000: "l", 0o020000: "c", 0o060000: "b", 0o010000: "p"}
_RESULTS: dict[str, Any] = {
    "archive_read_new": ctypes.c_void_p,
    "archive_entry_pathname": ctypes.c_char_p,
    "archive_entry_symlink": ctypes.c_char_p,
    "archive_entry_hardlink": ctypes.c_char_p,
    "archive_error_string": ctypes.c_char_p,
    "archive_entry_size": ctypes.c_int64,
    "archive_entry_mtime": ctypes.c_int64,
    "archive_entry_uid": ctypes.c_int64,
    "archive_entry_gid": ctypes.c_int64,
    "archive_entry_filetype": ctypes.c_uint,
    "archive_entry_perm": ctypes.c_uint,
    "archive_read_data": ctypes.c_ssize_t,
}
_END, _FAILED = 1, -25


@cache
def libarchive() -> ctypes.CDLL:
    library = ctypes.CDLL("libarchive.so.13")
    for name, result in _RESULTS.items():
        getattr(library, name).restype = result
    return library


def by_libarchive(content: bytes) -> Reading:
    """In this process, as bsdtar reads it."""
    library = libarchive()
    archive = ctypes.c_void_p(library.archive_read_new())
    found: list[Seen] = []
    complaints: list[str] = []

    def judged(result: int) -> bool:
        """May it go on? What is wrong is noted."""
        if result < 0:
            complaints.append((library.archive_error_string(archive) or b"?").decode("utf-8", "replace"))
        return result > _FAILED and result != _END

    try:
        for support in ("format_tar", "filter_gzip", "filter_xz", "filter_zstd"):
            getattr(library, f"archive_read_support_{support}")(archive)
        buffer = ctypes.create_string_buffer(content, len(content))
        entry = ctypes.c_void_p()
        going_on = judged(library.archive_read_open_memory(archive, buffer, ctypes.c_size_t(len(content))))
        while going_on and judged(library.archive_read_next_header(archive, ctypes.byref(entry))):
            found.append(_libarchive_member(library, archive, entry, judged))
    finally:
        library.archive_read_free(archive)
    return Reading(found, "; ".join(complaints))


def _libarchive_member(library: ctypes.CDLL, archive: ctypes.c_void_p, entry: ctypes.c_void_p, judged: Any) -> Seen:
    hard, symbolic = library.archive_entry_hardlink(entry), library.archive_entry_symlink(entry)
    kind = "h" if hard is not None else _FILETYPES.get(library.archive_entry_filetype(entry), "?")
    body = None
    if kind == "-":
        pieces = []
        piece = ctypes.create_string_buffer(1 << 16)
        while (got := library.archive_read_data(archive, piece, ctypes.c_size_t(1 << 16))) > 0:
            pieces.append(piece.raw[:got])
        judged(got)
        # It says where the pieces of a sparse file go, and leaves the hole at its end to the size.
        body = digest(b"".join(pieces).ljust(library.archive_entry_size(entry), b"\0"))
    return Seen(
        plain_name(library.archive_entry_pathname(entry) or b""),
        kind,
        library.archive_entry_perm(entry),
        (library.archive_entry_uid(entry), library.archive_entry_gid(entry)),
        library.archive_entry_mtime(entry),
        library.archive_entry_size(entry),
        hard if hard is not None else symbolic or b"",
        body,
    )


# --- GNU tar ------------------------------------------------------------------------------------------------

_LINE = re.compile(
    rb"(?P<kind>.)(?P<mode>[-rwxsStT]{9}) (?P<uid>-?\d+)/(?P<gid>-?\d+) +(?P<size>\d+|\d+,\d+)"
    rb" (?P<time>\S+(?: [\d:.]+)?) *"
    rb' "(?P<name>(?:[^"\\]|\\.)*)"(?: (?:->|link to) "(?P<link>(?:[^"\\]|\\.)*)")?'
)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def by_gnu_tar(path: str) -> Reading:
    """The file of this name, listed; from inside of a root to throw away."""
    done = run("tar", "-tvf", path, "--full-time", "--numeric-owner", "--quoting-style=c")
    found: list[Seen] = []
    for line in done.stdout.splitlines():
        parts = _LINE.fullmatch(line)
        if parts is None:
            return Reading(found, f"a line of its list: {line!r}")
        size = b"0" if b"," in parts["size"] else parts["size"]
        found.append(
            Seen(
                plain_name(_unescaped(parts["name"])),
                parts["kind"].decode(),
                _mode(parts["mode"].decode()),
                (int(parts["uid"]), int(parts["gid"])),
                _seconds(parts["time"].decode()),
                int(size),
                _unescaped(parts["link"] or b""),
                None,
            )
        )
    complaint = done.stderr.decode("utf-8", "replace") if done.returncode else ""
    return Reading(found, complaint)


def _unescaped(name: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        if found[1].isdigit():
            return bytes([int(found[1], 8)])
        return _ESCAPED.get(found[1], found[1])

    return _ESCAPE.sub(one, name)


def _mode(letters: str) -> int:
    mode = special = 0
    for at, letter in enumerate(letters):
        mode = mode << 1 | (letter in "rwxst")
        if letter in "sStT":
            special |= 0o4000 >> (at // 3)
    return mode | special


def _seconds(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text.partition(".")[0]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(moment.timestamp())
