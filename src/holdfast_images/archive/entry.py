"""Every reason for which an archive is refused or warned about: stable codes, one line of explanation each. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from enum import IntEnum, StrEnum
from typing import Self

import msgspec


class Reason(StrEnum):
    """A stable code; `explanation` is its line in the reference."""

    explanation: str

    def __new__(cls, code: str, explanation: str) -> Self:
        """A code is a string; the explanation goes along."""
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.explanation = explanation
        return reason

    # --- the file and its compression
    IMAGE_TOO_LARGE = "IMAGE_TOO_LARGE", "The file is larger than an image may be."
    UNSUPPORTED_COMPRESSION = "UNSUPPORTED_COMPRESSION", "Compressed, but neither by gzip nor by xz or zstd."
    NESTED_COMPRESSION = "NESTED_COMPRESSION", "Compressed content inside compressed content; one layer is taken."
    BAD_COMPRESSION = "BAD_COMPRESSION", "The compressed stream is damaged, or its checksum is wrong."
    DECOMPRESSION_BOMB = "DECOMPRESSION_BOMB", "It expands to far more than its size, or to more than an image may be."
    WINDOW_TOO_LARGE = "WINDOW_TOO_LARGE", "Decompressing it would take more memory than is given to it."
    # --- the structure of the archive
    NOT_A_TAR = "NOT_A_TAR", "The content does not begin with the header of a tar archive."
    EMPTY_ARCHIVE = "EMPTY_ARCHIVE", "There is nothing in it."
    TRUNCATED = "TRUNCATED", "It ends in the middle of a header, of content, or of a compressed stream."
    MISSING_END = "MISSING_END", "The two blocks of zeros that end an archive are missing."
    TRAILING_DATA = "TRAILING_DATA", "Something other than zeros follows the end of the archive."
    BAD_CHECKSUM = "BAD_CHECKSUM", "A header's checksum is not that of its bytes."
    BAD_MAGIC = "BAD_MAGIC", "A header is neither POSIX, nor GNU, nor the old form without a magic."
    BAD_HEADER = "BAD_HEADER", "A header uses fields in a way that readers do not agree about."
    BAD_NUMBER = "BAD_NUMBER", "A numeric field is not a plain number."
    BAD_SIZE = "BAD_SIZE", "A size is negative or beyond any file."
    NUL_IN_NAME = "NUL_IN_NAME", "A name goes on after its terminating NUL byte."
    EMPTY_NAME = "EMPTY_NAME", "A name is empty."
    UNSUPPORTED_TYPE = "UNSUPPORTED_TYPE", "The type of an entry is unknown, or known to some readers only."
    AMBIGUOUS_TYPE = "AMBIGUOUS_TYPE", "Some readers would make a file of the entry and others a directory."
    SIZE_ON_NONFILE = "SIZE_ON_NONFILE", "An entry that cannot have content says it has."
    LINK_NAME_ON_NONLINK = "LINK_NAME_ON_NONLINK", "An entry that is no link names a target."
    BAD_PAX = "BAD_PAX", "A pax extension record is malformed, repeated, or has an impossible value."
    PAX_GLOBAL = "PAX_GLOBAL", "A global pax header changes entries; only some readers heed it."
    PAX_CHARSET = "PAX_CHARSET", "Names are declared to be in a character set other than UTF-8."
    PAX_UNKNOWN = "PAX_UNKNOWN", "A pax keyword is unknown; strict refuses it, distro leaves it out."
    EXTENSION_TOO_LARGE = "EXTENSION_TOO_LARGE", "An extension header is larger than any honest one."
    EXTENSION_CONFLICT = "EXTENSION_CONFLICT", "Several extension headers say the same thing for one entry."
    EXTENSION_WITHOUT_ENTRY = "EXTENSION_WITHOUT_ENTRY", "An extension header is followed by no entry."
    SIZE_OVERRIDDEN = (
        "SIZE_OVERRIDDEN",
        "The pax header gives another size than the header; strict refuses it, for distro the pax header counts.",
    )
    BAD_SPARSE = "BAD_SPARSE", "The map of a sparse file contradicts itself or the stored content."
    # --- names
    ABSOLUTE_PATH = "ABSOLUTE_PATH", "A name begins with a slash."
    PATH_TRAVERSAL = "PATH_TRAVERSAL", "A name has a component '..'."
    BAD_NAME = "BAD_NAME", "A name ends like a directory's, but the entry is none."
    NAME_TOO_LONG = "NAME_TOO_LONG", "A name or one of its components is too long."
    MAX_DEPTH = "MAX_DEPTH", "A name has too many components."
    NAMES_TOO_LONG = "NAMES_TOO_LONG", "All names and link targets together take more memory than is given to them."
    DUPLICATE_NAME = "DUPLICATE_NAME", "A name other than a directory's occurs twice."
    DUPLICATE_TYPE_CHANGE = "DUPLICATE_TYPE_CHANGE", "A name occurs twice, as two kinds of thing."
    DUPLICATE_DIRECTORY = (
        "DUPLICATE_DIRECTORY",
        "A directory occurs twice, with two modes, owners or times; strict refuses it, for distro the last counts.",
    )
    WRITE_THROUGH_SYMLINK = "WRITE_THROUGH_SYMLINK", "An entry lies below a symbolic link of the same archive."
    PARENT_NOT_DIRECTORY = "PARENT_NOT_DIRECTORY", "An entry lies below something that is no directory."
    SUSPICIOUS_NAME = "SUSPICIOUS_NAME", "A name has control or direction characters or a backslash; taken literally."
    FOREIGN_NAME = (
        "FOREIGN_NAME",
        "A name begins like a path of Windows, which some readers change; strict refuses it, distro takes it as it is.",
    )
    TWIN_NAMES = "TWIN_NAMES", "Names differ only in case or in Unicode form; distinct on Linux."
    WHITEOUT = "WHITEOUT", "A name is an OCI whiteout outside of a layer; strict refuses it, distro takes it literally."
    USELESS_WHITEOUT = (
        "USELESS_WHITEOUT",
        "A whiteout lies below what its own layer has made; strict refuses it, distro leaves it out.",
    )
    BAD_WHITEOUT = "BAD_WHITEOUT", "A whiteout names nothing, is a directory of a path, or has content."
    # --- links
    EMPTY_LINK = "EMPTY_LINK", "A link has no target."
    LINK_TOO_LONG = "LINK_TOO_LONG", "The target of a symbolic link is longer than Linux can keep."
    ABSOLUTE_SYMLINK = (
        "ABSOLUTE_SYMLINK",
        "A symbolic link has an absolute target; distro takes it as inside the image.",
    )
    SYMLINK_ESCAPES = "SYMLINK_ESCAPES", "A symbolic link climbs above the root of the image."
    TOO_WINDING = "TOO_WINDING", "The symbolic links lead through each other in more steps than are followed."
    HARDLINK_ESCAPES = "HARDLINK_ESCAPES", "A hard link points outside of the image or through a symbolic link."
    HARDLINK_TO_SYMLINK = "HARDLINK_TO_SYMLINK", "A hard link points to a symbolic link."
    HARDLINK_TARGET = (
        "HARDLINK_TARGET",
        "A hard link points to nothing that came before it, or to something else than a file.",
    )
    HARDLINK_HEADER = (
        "HARDLINK_HEADER",
        "A hard link's header gives its file another mode, owner or time; strict refuses it, distro keeps the file's.",
    )
    TOO_MANY_LINKS = "TOO_MANY_LINKS", "A file has more names than the file system can count."
    # --- what entries are and may do
    SETUID = "SETUID", "A file is setuid or setgid; distro strips the bits."
    SETGID_DIRECTORY = "SETGID_DIRECTORY", "A directory is setgid or setuid; distro keeps it."
    FILE_CAPABILITY = "FILE_CAPABILITY", "A file has capabilities, which is setuid in other words; distro strips them."
    DEVICE_NODE = "DEVICE_NODE", "A device node; distro leaves out those in dev."
    FIFO = "FIFO", "A named pipe; distro leaves out those in dev and run."
    WORLD_WRITABLE_CRITICAL = "WORLD_WRITABLE_CRITICAL", "Everybody may write to a file or directory the system trusts."
    BAD_OWNER = "BAD_OWNER", "An owner or group is not a number that a file system can keep."
    XATTR_STRIPPED = "XATTR_STRIPPED", "An extended attribute or access control list is not carried over."
    BAD_XATTR = "BAD_XATTR", "An extended attribute is malformed, or given twice with two values."
    EMPTY_XATTR = "EMPTY_XATTR", "An extended attribute has no value: some readers leave it out."
    TOO_MANY_XATTRS = "TOO_MANY_XATTRS", "An entry has too many extended attributes."
    XATTR_TOO_LARGE = "XATTR_TOO_LARGE", "An extended attribute is too large."
    TIME_CLAMPED = "TIME_CLAMPED", "A time of modification is beyond what a file system can keep."
    # --- limits
    TOO_MANY_ENTRIES = (
        "TOO_MANY_ENTRIES",
        "There are more entries, implied directories included, than an image may have.",
    )
    FILE_TOO_LARGE = "FILE_TOO_LARGE", "A file is larger than a file may be, holes included."
    TOTAL_SIZE = "TOTAL_SIZE", "The files together are larger than an image may be."
    # --- OCI layouts and docker-save archives
    AMBIGUOUS_IMAGE = "AMBIGUOUS_IMAGE", "It can be read as more than one image, or as an image and a root file system."
    BAD_MANIFEST = "BAD_MANIFEST", "A manifest, index or configuration is malformed, too large or too deep."
    BAD_MEMBER = "BAD_MEMBER", "A member of the archive around the layers is neither a plain file nor a directory."
    BLOB_MISSING = "BLOB_MISSING", "A manifest names something that is not in the archive."
    DIGEST_MISMATCH = (
        "DIGEST_MISMATCH",
        "The content of a layer, manifest or configuration is not what its digest says.",
    )
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE", "A layer or manifest is of a kind that is not taken."
    NO_PLATFORM = "NO_PLATFORM", "The image is not made for this machine."
    TOO_MANY_LAYERS = "TOO_MANY_LAYERS", "There are more layers than an image may have."
    # --- while extracting
    SYMLINK_LOOP = "SYMLINK_LOOP", "The way to an entry leads through too many symbolic links."
    MEMORY_LIMIT = "MEMORY_LIMIT", "Reading it takes more memory than is given to it."
    OWNER_NOT_KEPT = "OWNER_NOT_KEPT", "Files belong to the user who extracted them: only root can give files away."
    LAYOUT_INCOMPLETE = "LAYOUT_INCOMPLETE", "The unpacked image has no etc, usr or var in its root file system."
    XATTR_NOT_KEPT = "XATTR_NOT_KEPT", "The file system or the kernel would not take an extended attribute."


OF_UNPACKING = frozenset((Reason.OWNER_NOT_KEPT, Reason.XATTR_NOT_KEPT, Reason.LAYOUT_INCOMPLETE))
"""What only unpacking can tell."""

BY_LIMITS = frozenset(
    (
        Reason.IMAGE_TOO_LARGE,
        Reason.DECOMPRESSION_BOMB,
        Reason.NAME_TOO_LONG,
        Reason.MAX_DEPTH,
        Reason.NAMES_TOO_LONG,
        Reason.TOO_WINDING,
        Reason.TOO_MANY_XATTRS,
        Reason.XATTR_TOO_LARGE,
        Reason.TOO_MANY_ENTRIES,
        Reason.FILE_TOO_LARGE,
        Reason.TOTAL_SIZE,
        Reason.TOO_MANY_LAYERS,
    )
)
"""What other limits in the settings may let through."""


# --- Names of entries: normalised for the rules, escaped for people. Pure -------------------------------

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


# --- What the parser hands to the rules and to the extractor, and the limits and policies both obey. Pure ---


class EntryKind(IntEnum):
    """What an entry makes."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3
    HARDLINK = 4
    CHARACTER_DEVICE = 5
    BLOCK_DEVICE = 6
    FIFO = 7


class Entry(msgspec.Struct, gc=False):
    """One member, after every extension header has been applied. Names are bytes: an archive need not be UTF-8."""

    name: bytes
    """As the archive says it, not normalised."""
    kind: EntryKind
    mode: int
    uid: int
    gid: int
    size: int
    """Of the content once extracted; for a sparse file more than is stored."""
    stored: int
    """Bytes of content in the archive, without padding and sparse map."""
    mtime_ns: int
    offset: int
    """Of its first header, extension headers included, in the decompressed stream."""
    linkname: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    sparse: tuple[tuple[int, int], ...] | None = None
    """(offset, length) of the pieces of stored content, in order; None for a plain file."""
    device: tuple[int, int] = (0, 0)
    remarks: tuple[tuple[str, str], ...] = ()
    """(code, detail) of what the archive says about the entry and the parser left out or overruled."""


class Policy(StrEnum):
    """STRICT refuses what the design documents refuse; DISTRO takes what every Linux distribution contains."""

    STRICT = "strict"
    DISTRO = "distro"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an image may be at most."""

    image_bytes: int = 10 << 30
    file_bytes: int = 1 << 30
    entries: int = 100_000
    total_bytes: int = 10 << 30
    depth: int = 256
    name_bytes: int = 4096
    names_bytes: int = 12 << 20
    """Of all names and link targets together: they are kept in memory until the end."""
    xattrs_per_entry: int = 32
    xattr_bytes: int = 4096
    """Of one value."""
    ratio: int = 200
    """Decompressed bytes per compressed byte, judged after the first 64 MiB."""
    layers: int = 128


class ArchiveSeverity(StrEnum):
    """An error refuses the image; a warning is told."""

    ERROR = "error"
    WARNING = "warning"


class ArchiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an archive."""

    code: str
    severity: ArchiveSeverity
    path: str
    """Escaped for terminals: the bytes of the name may be anything."""
    offset: int | None
    detail: str


class InspectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is to be said about an archive before it is extracted."""

    acceptable: bool
    policy: Policy
    form: str
    """"tar", "oci" or "docker"; "unknown" if it was refused before that could be told."""
    compression: str
    """"none", "gzip", "xz" or "zstd"."""
    entries: int
    """Those of the archive, and the directories that their names imply."""
    total_bytes: int
    findings: tuple[ArchiveFinding, ...]
    findings_left_out: int = 0
    """There may be a million: at most some hundred are told."""
    confinement: tuple[str, ...] = ()
    """The measures in force around the process that read the archive."""


class Extracted(msgspec.Struct, frozen=True, kw_only=True):
    """What an extraction has made."""

    file_count: int
    total_bytes: int
    warnings: tuple[ArchiveFinding, ...] = ()
    confinement: tuple[str, ...] = ()
    """The measures in force around the process that wrote it."""
