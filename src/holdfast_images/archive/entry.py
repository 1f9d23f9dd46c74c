"""What the parser hands to the rules and to the extractor, and the limits and policies both obey. Pure."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec


class Kind(IntEnum):
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
    kind: Kind
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


class Severity(StrEnum):
    """An error refuses the image; a warning is told."""

    ERROR = "error"
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with an archive."""

    code: str
    severity: Severity
    path: str
    """Escaped for terminals: the bytes of the name may be anything."""
    offset: int | None
    detail: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
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
    findings: tuple[Finding, ...]
    findings_left_out: int = 0
    """There may be a million: at most some hundred are told."""
    confinement: tuple[str, ...] = ()
    """The measures in force around the process that read the archive."""


class Extracted(msgspec.Struct, frozen=True, kw_only=True):
    """What an extraction has made."""

    file_count: int
    total_bytes: int
    warnings: tuple[Finding, ...] = ()
    confinement: tuple[str, ...] = ()
    """The measures in force around the process that wrote it."""
