"""Tar archives drawn at random: small trees in every form of header, with an oddity here and there.

Every oddity is one that some reader takes in its own way; most archives that have a few are still taken by ours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.hostile.corpus import old_sparse
from tests.support.images.archives import GNU, POSIX, V7, base_256, checksummed, padded, record

FIELDS = {
    "mode": (100, 8),
    "uid": (108, 8),
    "gid": (116, 8),
    "size": (124, 12),
    "mtime": (136, 12),
    "major": (329, 8),
    "minor": (337, 8),
}
PARTS = [b"a", b"b", b"c", b"etc", b"usr", b"rootfs", b"lib", b"bin", "grün".encode(), b"x y", b"A", b"\xff", b"a" * 60]
KEYWORDS = [
    *(b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", b"atime", b"ctime", b"uname", b"gname", b"comment"),
    *(b"charset", b"hdrcharset", b"GNU.sparse.name", b"GNU.sparse.size", b"GNU.sparse.map", b"GNU.sparse.numblocks"),
    *(b"GNU.sparse.major", b"GNU.sparse.minor", b"GNU.sparse.realsize", b"GNU.sparse.offset", b"GNU.sparse.numbytes"),
    *(b"SCHILY.xattr.user.a", b"LIBARCHIVE.xattr.user.a", b"LIBARCHIVE.xattr.user.%61", b"SCHILY.acl.access"),
    *(b"SCHILY.realsize", b"SCHILY.dev", b"SCHILY.ino", b"SCHILY.nlink", b"SCHILY.fflags", b"SCHILY.devmajor"),
    *(b"LIBARCHIVE.creationtime", b"LIBARCHIVE.symlinktype", b"VENDOR.x", b"GNU.volume.label", b"RHT.security.selinux"),
    *(b"SCHILY.acl.default", b"SCHILY.acl.ace", b"MSWINDOWS.rawsd", b"SCHILY.xattr.", b"SCHILY.xattr.security.x"),
    *(b"Path", b" path", b"path ", b"realtime.x", b"security.x", b"SUN.devmajor", b"GNU.dumpdir", b"SCHILY.filetype"),
]
VALUES = [
    *(b"", b"0", b"1", b"5", b"512", b"a", b"b/c", b"/", b"../x", b"-1", b"1.5", b"1.", b".5", b"-1.5", b"1e3", b"nan"),
    *(b"00512", b"+5", b" 5", b"5 ", b"0x10", b"9" * 19, b"9" * 30, b"1700000000.123456789", b"1700000000.1234567891"),
    *(b"UTF-8", b"BINARY", b"ISO-IR 10646 2000 UTF-8", b"a\nb", b"\xff\xfe", b"a\0b", b"a\0", b"0,5", b"0,5,5", b"dir"),
    *(b"file", b"u::rwx", b"user::rw-,group::r--,other::r--", b"YQ==", b"YQ", b"Y", b"Y Q", b"nodump", b"\0" * 5),
    *(b"0o10", b"1_000", b"\xd9\xa1", b"\xc2\xb2", b"1,000", b"18446744073709551616", b"-9223372036854775809"),
]


@dataclass
class Spec:
    """One member, before it becomes blocks; what is in `raw` replaces fields as they are."""

    name: bytes
    kind: bytes = b"0"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 1_700_000_000
    content: bytes = b""
    link: bytes = b""
    magic: bytes = POSIX
    prefix: bytes = b""
    uname: bytes = b""
    gname: bytes = b""
    device: tuple[int, int] | None = (0, 0)
    records: list[tuple[bytes, bytes]] = field(default_factory=list)
    shared: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Of a global header in front."""
    long: tuple[bytes, ...] = ()
    """The letters of GNU headers in front, for name and target."""
    raw: dict[str, bytes] = field(default_factory=dict)
    raw_extension: dict[str, bytes] = field(default_factory=dict)
    blocks: bytes | None = None
    """Given: these, instead of everything else."""

    def encoded(self, rng: random.Random) -> bytes:
        if self.blocks is not None:
            return self.blocks
        before = b""
        if self.shared:
            body = b"".join(record(*each) for each in self.shared)
            before += self._block(rng, b"pax_global_header", b"g", len(body), self.raw_extension) + padded(body)
        if self.records:
            body = b"".join(record(*each) for each in self.records)
            before += self._block(rng, b"PaxHeaders/x", b"x", len(body), self.raw_extension) + padded(body)
        for letter in self.long:
            body = (self.name if letter == b"L" else self.link) + bytes(rng.choice((0, 1, 1, 1, 2)))
            before += self._block(rng, b"././@LongLink", letter, len(body), self.raw_extension) + padded(body)
        name = b"innocent" if self.long and rng.random() < 0.5 else self.name
        block = self._block(rng, name, self.kind, len(self.content), self.raw, own=True)
        return before + block + padded(self.content)

    def _block(
        self, rng: random.Random, name: bytes, kind: bytes, size: int, raw: dict[str, bytes], *, own: bool = False
    ) -> bytes:
        values = {"mode": 0o644, "uid": 0, "gid": 0, "size": size, "mtime": self.mtime if own else 0}
        if own:
            values |= {"mode": self.mode, "uid": self.uid, "gid": self.gid}
        if self.device is not None and self.magic != V7:
            values |= {"major": self.device[0] if own else 0, "minor": self.device[1] if own else 0}
        block = bytearray(512)
        _put(block, 0, name[:100])
        for each, value in values.items():
            at, width = FIELDS[each]
            _put(block, at, plain_number(rng, value, width))
        block[156:157] = kind
        if own:
            _put(block, 157, self.link[:100])
            _put(block, 265, self.uname[:32])
            _put(block, 297, self.gname[:32])
            _put(block, 345, self.prefix[:155])
        _put(block, 257, self.magic)
        for each, content in raw.items():
            at, width = FIELDS.get(each, (0, 512))
            if each.isdigit():
                at = int(each)
            _put(block, at, content[:width])
        return _summed(rng, bytes(block))


def _put(block: bytearray, at: int, content: bytes) -> None:
    block[at : at + len(content)] = content


def _summed(rng: random.Random, block: bytes) -> bytes:
    right = checksummed(block)
    style = rng.choice((b"%06o\0 ", b"%06o\0 ", b"%06o\0 ", b"%07o\0", b"%6o\0 ", b"%06o \0", b"%o\0", b"%8o", b"%08o"))
    written = (style % int(right[148:154], 8)).ljust(8, b"\0")
    return block[:148] + written + block[156:]


def plain_number(rng: random.Random, value: int, width: int) -> bytes:
    """In one of the ways in which writers put numbers that every reader knows."""
    if value < 0 or value >= 8 ** (width - 1):
        return base_256(value, width)
    if rng.random() < 0.8:
        return b"%0*o\0" % (width - 1, value)
    styles = [b"%0*o " % (width - 1, value), b"%*o " % (width - 1, value), b"%*o\0" % (width - 1, value)]
    styles += [b"%o\0" % value, b"%0*o \0" % (width - 2, value & (8 ** (width - 2) - 1)), base_256(value, width)]
    styles += [b"%0*o" % (width, value), b"%*o" % (width, value), b"" if value == 0 else b"%o " % value]
    return rng.choice(styles)


def odd_number(rng: random.Random, width: int) -> bytes:
    """In a way that not every reader knows, or which every reader knows after all."""
    small = rng.choice((0, 1, 5, 0o17, 0o644, 512, 1000))
    choices = [
        b"\0" * width,
        b" " * width,
        b"%o" % small + b"\0" + b"7" * width,
        b"%o" % small + b" " + b"7" * width,
        b"%o" % small + b" \0 junk",
        b"\0%o" % small,
        b" \0%o" % small,
        b"%d" % 89,
        b"-%o" % small,
        b"+%o" % small,
        b"0x1f",
        b"0o17",
        b"1_0",
        b"\t%o" % small,
        b"%o\t" % small,
        b"%o\n" % small,
        b"\xa0%o" % small,
        bytes([rng.choice((0x80, 0x81, 0xBF, 0xC0, 0xFE, 0xFF))]) + rng.randbytes(width - 1),
        b"\x80" + bytes(width - 2) + bytes([small & 255]),
        b"\xff" * (width - 1) + bytes([small & 255]),
        b"7" * width,
        b"junk",
        b"%o " % small + b" " * width,
        rng.randbytes(width),
    ]
    return rng.choice(choices)[:width].ljust(width, rng.choice((b"\0", b"\0", b" ")))


class Drawing:
    """Draws one archive: knows which names are there, so that links and duplicates mean something."""

    def __init__(self, rng: random.Random, *, layer: bool = False, known: dict[bytes, bytes] | None = None) -> None:
        self.rng = rng
        self._layer = layer
        self.known: dict[bytes, bytes] = known if known is not None else {}
        """Name -> type byte."""
        self._magic = rng.choice((POSIX, POSIX, GNU, V7, None))

    def archive(self, odd: float) -> bytes:
        """An archive of a few members, with `odd` oddities for each on average."""
        rng = self.rng
        specs = [self.spec() for _ in range(rng.choice((1, 2, 2, 3, 4, 5, 7, 9)))]
        for spec in specs:
            while rng.random() < odd / (1 + odd):
                rng.choice(ODDITIES)(rng, spec, self)
        content = b"".join(spec.encoded(rng) for spec in specs)
        end = rng.choice((bytes(1024),) * 12 + (bytes(10240), bytes(512), b"", bytes(1024) + b"x" * 512, bytes(1500)))
        return content + end

    def spec(self) -> Spec:
        rng = self.rng
        draw = rng.choices(
            (self._file, self._directory, self._symlink, self._hardlink, self._sparse, self._whiteout),
            (45, 20, 14, 10, 5, 16 if self._layer else 0),
        )[0]
        spec = draw()
        spec.magic = POSIX if spec.records else self._magic or rng.choice((POSIX, GNU, V7))
        spec.mtime = rng.choice((1_700_000_000, 0, 1, 1_600_000_000, 8**11 - 1))
        spec.uid, spec.gid = rng.choice((0, 0, 1000, 65534, 2_000_000, 3_000_000)), rng.choice((0, 0, 5, 100))
        if spec.kind == b"1":
            spec.mtime, spec.uid, spec.gid = 1_700_000_000, 0, 0
        elif any(spec.name == name for name in self._first_names()):
            spec.mtime, spec.uid, spec.gid, spec.mode = 1_700_000_000, 0, 0, 0o644
        if spec.magic == V7 and spec.kind == b"0":
            spec.kind = rng.choice((b"0", b"\0"))
        if rng.random() < 0.3 and spec.magic == POSIX and not spec.records:
            spec.records.append((b"path", spec.name))
        if rng.random() < 0.2 and spec.magic == POSIX and spec.kind != b"1":
            spec.records.append((b"mtime", b"%d.%09d" % (spec.mtime, rng.randrange(10**9))))
        if spec.magic == GNU and (len(spec.name) > 100 or rng.random() < 0.2):
            spec.long = (b"K", b"L") if spec.link and rng.random() < 0.5 else (b"L",)
        return spec

    def _first_names(self) -> list[bytes]:
        return [name for name, kind in self.known.items() if kind == b"0"][:2]

    def name(self) -> bytes:
        """A new name, mostly in a directory that is known."""
        rng = self.rng
        directories = [b"", *(name for name, kind in self.known.items() if kind == b"5")]
        parent = rng.choice(directories)
        if rng.random() < 0.15:
            parent = parent + (b"/" if parent else b"") + rng.choice(PARTS)
        leaf = rng.choice(PARTS) if rng.random() < 0.6 else b"%d" % rng.randrange(30)
        name = parent + b"/" + leaf if parent else leaf
        if rng.random() < 0.1:
            name = rng.choice((b"./", b".//", b"././")) + name
        if rng.random() < 0.05:
            name = name.replace(b"/", rng.choice((b"//", b"/./")))
        if self.known and rng.random() < 0.04:
            name = rng.choice(list(self.known))
        return name

    def _noted(self, spec: Spec) -> Spec:
        self.known[spec.name.rstrip(b"/")] = spec.kind
        return spec

    def _file(self) -> Spec:
        rng = self.rng
        content = rng.randbytes(rng.choice((0, 0, 1, 5, 100, 511, 512, 513, 1500)))
        return self._noted(Spec(self.name(), mode=rng.choice((0o644, 0o644, 0o600, 0o755, 0, 0o777)), content=content))

    def _directory(self) -> Spec:
        rng = self.rng
        name = self.name() if rng.random() < 0.95 else b"."
        slash = rng.choice((b"/", b"/", b"", b"//"))
        return self._noted(Spec(name + slash, b"5", rng.choice((0o755, 0o755, 0o700, 0o555, 0, 0o1777))))

    def _symlink(self) -> Spec:
        rng = self.rng
        known = list(self.known) or [b"a"]
        target = rng.choice((rng.choice(known), rng.choice(PARTS), b".", b"..", b"../a", b"a/../b", b"b/../../etc"))
        return self._noted(Spec(self.name(), b"2", 0o777, link=target))

    def _hardlink(self) -> Spec:
        rng = self.rng
        files = [name for name, kind in self.known.items() if kind in {b"0", b"1"}] or [b"a"]
        target = rng.choice((b"", b"", b"", b"./")) + rng.choice(files[:3])
        return self._noted(Spec(self.name(), b"1", 0o644, link=target))

    def _whiteout(self) -> Spec:
        rng = self.rng
        parent, _, leaf = rng.choice(list(self.known) or [b"a"]).rpartition(b"/")
        mark = b".wh." + leaf if rng.random() < 0.75 else b".wh..wh..opq"
        return Spec(parent + b"/" + mark if parent else mark)

    def _sparse(self) -> Spec:
        rng = self.rng
        pieces, at = [], 0
        for _ in range(rng.randrange(6)):
            at += rng.choice((0, 512, 1000, 4096))
            length = rng.choice((0, 512, 512, 1024, 1024, 512, 1, 700))
            pieces.append((at, length))
            at += length
        hole = rng.choice((0, 0, 512, 5000))
        size = at + hole
        if hole and rng.random() < 0.9:
            pieces.append((size, 0))
        stored = rng.randbytes(sum(length for _, length in pieces))
        name = self.name()
        spec = Spec(rng.choice((name, b"GNUSparseFile.7/" + name)), content=stored)
        flat = [b"%d" % number for piece in pieces for number in piece]
        count, total = b"%d" % len(pieces), b"%d" % size
        match rng.randrange(4):
            case 0:
                more = b"".join(b"%011o\0%011o\0" % piece for piece in pieces[4:])
                spec.blocks = old_sparse(pieces, size, stored, more=more.ljust(512, b"\0") if more else b"", name=b"s")
            case 1:
                spec.records = [(b"GNU.sparse.size", total), (b"GNU.sparse.numblocks", count)]
                words = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
                spec.records += [(words[at % 2], number) for at, number in enumerate(flat)]
            case 2:
                spec.records = [(b"GNU.sparse.size", total), (b"GNU.sparse.numblocks", count)]
                spec.records += [(b"GNU.sparse.map", b",".join(flat)), (b"GNU.sparse.name", name)]
            case _:
                spec.records = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", name)]
                spec.records += [(b"GNU.sparse.realsize", total)]
                spec.content = padded(b"\n".join([count, *flat, b""])) + stored
        if spec.records and rng.random() < 0.15:
            spec.records = rng.sample(spec.records, len(spec.records) - rng.randrange(2))
        return spec


# --- oddities -----------------------------------------------------------------------------------------------


def _odd_field(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    name = rng.choice(list(FIELDS))
    spec.raw[name] = odd_number(rng, FIELDS[name][1])


def _odd_extension_field(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    if not spec.records and not spec.long:
        spec.records.append((b"comment", b"x"))
    name = rng.choice(list(FIELDS))
    spec.raw_extension[name] = odd_number(rng, FIELDS[name][1])


def _odd_record(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.records.append((rng.choice(KEYWORDS), rng.choice(VALUES)))


def _harmless_record(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    size = b"%d" % len(spec.content)
    spec.records.append(
        rng.choice(
            (
                (b"comment", rng.choice(VALUES)),
                (b"size", size),
                (b"uid", b"%d" % spec.uid),
                (b"gid", rng.choice((b"7", b"00007", b"3000000"))),
                (b"mtime", rng.choice(VALUES)),
                (b"atime", rng.choice(VALUES)),
                (b"uname", rng.choice(VALUES)),
                (b"SCHILY.xattr.user.a", rng.choice(VALUES)),
                (b"LIBARCHIVE.xattr.user.b", rng.choice(VALUES)),
                (b"linkpath", spec.link or b"a"),
            )
        )
    )


def _odd_global(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.shared.append((rng.choice((b"comment", *KEYWORDS)), rng.choice(VALUES)))


def _odd_type(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.kind = rng.choice((b"\0", b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"L", b"K", b"x", b"g", b"V"))


def _odd_magic(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.magic = rng.choice((POSIX, GNU, V7, b"ustar\0\0\0", b"ustar   ", b"ustar\x0001", b"ustar 00", b"USTAR\x0000"))


def _odd_prefix(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.prefix = rng.choice((b"a", b"a/b", b"/", b"./", b"etc/", b"p" * 155, b"p" * 120, b"x\0y", b"\0" * 131 + b"1"))


def _odd_rest(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    at, content = rng.choice(((500, b"x"), (508, b"tar\0"), (511, b"\1"), (345, b"0"), (263, b"01"), (482, b"1")))
    spec.raw[str(at)] = content


def _odd_name(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    add = rng.choice((b"/", b"/.", b"\0x", b"/..", b"\n", b" ", b"\\", b"\x1b", b"x" * 90, b"/" + b"y" * 150))
    spec.name = rng.choice((spec.name + add, add + spec.name, spec.name[:3] + add))


def _odd_link(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.link = rng.choice(
        (b"", b"a", b"/a", b"../a", b"a\0b", b"a/", b"./a", b"z" * 100, b"z" * 130, b"\xff", spec.name)
    )


def _odd_owner_names(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.uname, spec.gname = rng.choice((b"root", b"\xff", b"a\0b", b"u" * 32)), rng.choice((b"", b"wheel", b"g" * 32))


def _odd_mode(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    kinds = (0o100000, 0o040000, 0o120000, 0o010000, 0o200000)
    spec.mode |= rng.choice((*kinds, 0o1000, 0o2000, 0o4000, 0o002))


def _odd_time(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.mtime = rng.choice((-1, -(2**31), 2**31, 2**33 - 1, 2**33, 2**34, 2**40, 2**62, 15_032_385_536))


def _odd_owner(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.uid = rng.choice((2**21 - 1, 2**21, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**40))


def _odd_long(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.long = rng.choice(((b"L",), (b"K",), (b"K", b"L"), (b"L", b"K"), (b"L", b"L")))
    spec.link = spec.link or rng.choice((b"", b"a"))


def _no_device(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.device = rng.choice((None, None, (1, 3), (7, 7)))


def _content_of_headers(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    spec.content = Spec(b"inner", content=b"hidden").encoded(rng)


def _changed_bytes(rng: random.Random, spec: Spec, drawing: Drawing) -> None:
    content = bytearray(spec.encoded(rng))
    at = rng.choice((0, 0, len(content) // 512 // 2 * 512, (len(content) // 512 - 1) * 512))
    where = at + rng.choice(
        (0, 99, 100, 107, 115, 123, 135, 147, 156, 157, 256, 263, 264, 296, 329, 345, 386, 483, 495)
    )
    content[where : where + 1] = rng.choice((b"\0", b" ", b"0", b"7", b"/", b"\x80", b"\xff", b"x"))
    spec.blocks = bytes(content[:at]) + checksummed(bytes(content[at : at + 512])) + bytes(content[at + 512 :])


ODDITIES = [
    *(_odd_field, _odd_field, _odd_extension_field, _odd_extension_field, _odd_record, _odd_record, _harmless_record),
    *(_harmless_record, _odd_global, _odd_type, _odd_magic, _odd_prefix, _odd_rest, _odd_name, _odd_link),
    *(_odd_owner_names, _odd_mode, _odd_time, _odd_owner, _odd_long, _no_device, _content_of_headers, _changed_bytes),
]
