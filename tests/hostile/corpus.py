"""Known attacks, one archive each: what it is called, how it is made, and the code that refuses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from holdfast_images.archive.entry import Limits, Policy, Reason
from tests.support.images.archives import (
    FORMS,
    Form,
    archive,
    base_256,
    checksummed,
    directory,
    hardlink,
    header,
    long_name,
    member,
    padded,
    pax,
    record,
    symlink,
)

BOTH = (Policy.STRICT, Policy.DISTRO)
STRICT = (Policy.STRICT,)


class Attack(NamedTuple):
    """An archive that must be refused."""

    name: str
    code: Reason
    build: Callable[[Form], bytes]
    forms: tuple[Form, ...] = FORMS
    policies: tuple[Policy, ...] = BOTH
    layer: bool = False
    limits: Limits = Limits()


def made(*parts: Callable[..., bytes]) -> Callable[[Form], bytes]:
    """An archive of members that are all written in the asked-for form."""
    return lambda form: archive(*(part(form=form) for part in parts))


def raw(*parts: bytes) -> Callable[[Form], bytes]:
    """An archive of blocks as they are."""
    return lambda form: archive(*parts)


def with_field(blocks: bytes, at: int, field: bytes) -> bytes:
    """The first header with other bytes somewhere, and the checksum for them."""
    return checksummed(blocks[:at] + field + blocks[at + len(field) : 512]) + blocks[512:]


F, D, S, H = (partial(partial, each) for each in (member, directory, symlink, hardlink))
ONLY: tuple[Form, ...] = ("ustar",)
LONG: tuple[Form, ...] = ("pax", "gnu")
WITH_XATTRS: tuple[Form, ...] = ("ustar", "pax")
"""The GNU form has none."""

NAMES = [
    Attack("path-traversal", Reason.PATH_TRAVERSAL, made(F(b"../../etc/cron.d/x", b"x"))),
    Attack("traversal-that-normalises-outside", Reason.PATH_TRAVERSAL, made(F(b"a/../../b"))),
    Attack("traversal-that-normalises-inside", Reason.PATH_TRAVERSAL, made(F(b"a/../b"))),
    Attack("dot-slash-traversal", Reason.PATH_TRAVERSAL, made(F(b"./../x"))),
    Attack("trailing-dot-dot", Reason.PATH_TRAVERSAL, made(D(b"a/.."))),
    Attack("dot-dot-itself", Reason.PATH_TRAVERSAL, made(D(b".."))),
    Attack("absolute-path", Reason.ABSOLUTE_PATH, made(F(b"/etc/passwd", b"root::0:0::/:/bin/sh\n"))),
    Attack("double-slash-absolute", Reason.ABSOLUTE_PATH, made(F(b"//etc/x"))),
    Attack("only-slashes", Reason.ABSOLUTE_PATH, made(D(b"///"))),
    Attack("file-with-a-directory-name", Reason.BAD_NAME, made(F(b"a/."))),
    Attack("file-that-is-the-root", Reason.BAD_NAME, made(F(b"."))),
    Attack("symlink-that-is-the-root", Reason.BAD_NAME, made(S(b"./", b"x"))),
    Attack("component-too-long", Reason.NAME_TOO_LONG, made(F(b"a/" + b"x" * 256)), forms=LONG),
    Attack("path-too-long", Reason.NAME_TOO_LONG, made(F(b"/".join([b"x" * 200] * 21)[:4097])), forms=LONG),
    Attack("too-deep", Reason.MAX_DEPTH, made(F(b"a/" * 2000 + b"x")), forms=LONG),
    Attack("prefix-traversal", Reason.PATH_TRAVERSAL, raw(member(b"x", prefix=b"a/.."))),
    Attack(
        "pax-path-over-innocent-name", Reason.PATH_TRAVERSAL, raw(pax({b"path": b"../x"}), header(b"innocent")), ONLY
    ),
    Attack(
        "gnu-long-name-twice", Reason.EXTENSION_CONFLICT, raw(long_name(b"a"), long_name(b"../b"), header(b"x")), ONLY
    ),
    Attack(
        "gnu-long-name-then-pax",
        Reason.EXTENSION_CONFLICT,
        raw(long_name(b"a"), pax({b"path": b"b"}), header(b"x")),
        ONLY,
    ),
    Attack(
        "pax-then-gnu-long-name",
        Reason.EXTENSION_CONFLICT,
        raw(pax({b"path": b"b"}), long_name(b"a"), header(b"x")),
        ONLY,
    ),
    Attack("pax-twice", Reason.EXTENSION_CONFLICT, raw(pax({b"path": b"a"}), pax({b"path": b"b"}), header(b"x")), ONLY),
    Attack("nul-in-name", Reason.NUL_IN_NAME, raw(header(b"safe\0/../../etc/passwd")), ONLY),
    Attack("nul-in-pax-path", Reason.NUL_IN_NAME, raw(pax({b"path": b"safe\0.txt"}), header(b"x")), ONLY),
    Attack("nul-in-pax-user", Reason.NUL_IN_NAME, raw(pax({b"uname": b"a\0"}), header(b"x")), ONLY),
    Attack("nul-in-long-name", Reason.NUL_IN_NAME, raw(long_name(b"safe\0.txt"), header(b"x")), ONLY),
    Attack("empty-name", Reason.EMPTY_NAME, raw(header(b"")), ONLY),
    Attack("empty-pax-path", Reason.EMPTY_NAME, raw(pax({b"path": b""}), header(b"x")), ONLY),
    Attack("empty-long-name", Reason.EMPTY_NAME, raw(long_name(b""), header(b"x")), ONLY),
    *(
        Attack(f"name-with-{what}", Reason.FOREIGN_NAME, made(F(name)), policies=STRICT)
        for what, name in {"a-drive": b"C:/x", "a-drive-alone": b"c:x", "a-backslash": b"\\x"}.items()
    ),
    Attack("whiteout-in-a-plain-archive", Reason.WHITEOUT, made(F(b"etc/.wh.passwd")), policies=STRICT),
]

LINKS = [
    Attack("write-through-symlink", Reason.WRITE_THROUGH_SYMLINK, made(S(b"a/d", b".."), F(b"a/d/pwn", b"x"))),
    Attack(
        "write-through-absolute-symlink",
        Reason.WRITE_THROUGH_SYMLINK,
        made(S(b"d", b"/etc"), F(b"d/cron.d/x")),
        policies=(Policy.DISTRO,),
    ),
    Attack(
        "write-through-symlink-chain",
        Reason.WRITE_THROUGH_SYMLINK,
        made(D(b"r"), S(b"a", b"r"), S(b"b", b"a"), F(b"b/x")),
    ),
    Attack("write-through-symlink-loop", Reason.WRITE_THROUGH_SYMLINK, made(S(b"a", b"b"), S(b"b", b"a"), F(b"a/x"))),
    Attack("directory-through-symlink", Reason.WRITE_THROUGH_SYMLINK, made(S(b"a", b"b"), D(b"./a//c"))),
    Attack("below-a-file", Reason.PARENT_NOT_DIRECTORY, made(F(b"a"), F(b"a/b"))),
    Attack("directory-replaced-by-symlink", Reason.DUPLICATE_TYPE_CHANGE, made(D(b"d"), S(b"d", b"e"), F(b"d/x"))),
    Attack("implicit-directory-replaced", Reason.DUPLICATE_TYPE_CHANGE, made(F(b"d/x"), S(b"d", b"e"))),
    Attack("symlink-replaced-by-file", Reason.DUPLICATE_TYPE_CHANGE, made(S(b"f", b"g"), F(b"f", b"x"))),
    Attack("symlink-replaced-by-another-spelling", Reason.DUPLICATE_TYPE_CHANGE, made(S(b"f", b"g"), F(b".//f", b"x"))),
    Attack(
        "fifo-replaced-by-file",
        Reason.FIFO,
        made(partial(member, b"run/f", kind=b"6"), F(b"run/f", b"x")),
        policies=STRICT,
    ),
    Attack("file-twice", Reason.DUPLICATE_NAME, made(F(b"f", b"good"), F(b"f", b"evil"))),
    Attack("absolute-symlink", Reason.ABSOLUTE_SYMLINK, made(S(b"etc/mtab", b"/proc/mounts")), policies=STRICT),
    Attack("symlink-escapes", Reason.SYMLINK_ESCAPES, made(S(b"a/b", b"../../../x"))),
    Attack("symlink-escapes-by-one", Reason.SYMLINK_ESCAPES, made(S(b"a/b", b"../../x"))),
    Attack("symlink-escapes-and-returns", Reason.SYMLINK_ESCAPES, made(S(b"a/b", b"../../a/c"))),
    Attack("symlink-escapes-rootfs", Reason.SYMLINK_ESCAPES, made(S(b"rootfs/a/b", b"../../c"))),
    Attack("absolute-symlink-climbs", Reason.SYMLINK_ESCAPES, made(S(b"a", b"/../x")), policies=(Policy.DISTRO,)),
    Attack("symlink-escapes-through-links", Reason.SYMLINK_ESCAPES, made(S(b"l", b"."), S(b"m", b"l/l/l/../../x"))),
    Attack(
        "symlink-escapes-through-later-link", Reason.SYMLINK_ESCAPES, made(S(b"d/m", b"n/../../x"), S(b"d/n", b".."))
    ),
    Attack("symlink-target-too-long", Reason.LINK_TOO_LONG, made(S(b"a", b"x" * 4096)), forms=LONG),
    Attack("symlink-without-target", Reason.EMPTY_LINK, raw(header(b"a", kind=b"2")), ONLY),
    Attack("nul-in-target", Reason.NUL_IN_NAME, raw(header(b"a", kind=b"2", linkname=b"b\0c")), ONLY),
    Attack(
        "pax-linkpath-over-innocent-target",
        Reason.SYMLINK_ESCAPES,
        raw(pax({b"linkpath": b"../x"}), header(b"a", kind=b"2", linkname=b"b")),
        ONLY,
    ),
    Attack("hardlink-escapes", Reason.HARDLINK_ESCAPES, made(H(b"h", b"../../etc/shadow"))),
    Attack("hardlink-absolute", Reason.HARDLINK_ESCAPES, made(H(b"h", b"/etc/passwd"))),
    Attack("hardlink-normalised-after-check", Reason.HARDLINK_ESCAPES, made(F(b"a/b"), H(b"h", b"a/../../etc/shadow"))),
    Attack("hardlink-out-of-rootfs", Reason.HARDLINK_ESCAPES, made(F(b"secret"), H(b"rootfs/h", b"secret"))),
    Attack("hardlink-to-symlink", Reason.HARDLINK_TO_SYMLINK, made(S(b"s", b"f"), H(b"h", b"s"))),
    Attack("hardlink-through-symlink", Reason.HARDLINK_ESCAPES, made(F(b"d/f"), S(b"s", b"d"), H(b"h", b"s/f"))),
    Attack(
        "hardlink-through-symlink-in-a-layer", Reason.HARDLINK_ESCAPES, made(S(b"s", b"d"), H(b"h", b"s/f")), layer=True
    ),
    Attack("hardlink-to-directory", Reason.HARDLINK_TARGET, made(D(b"d"), H(b"h", b"d"))),
    Attack("hardlink-to-nothing", Reason.HARDLINK_TARGET, made(H(b"h", b"later"), F(b"later"))),
    Attack("hardlink-to-itself", Reason.HARDLINK_TARGET, made(H(b"h", b"h"))),
    Attack("hardlink-to-the-root", Reason.HARDLINK_ESCAPES, made(H(b"h", b"."))),
]

KINDS = [
    Attack("setuid-file", Reason.SETUID, made(F(b"bin/su", b"x", mode=0o4755)), policies=STRICT),
    Attack("setgid-file", Reason.SETUID, made(F(b"bin/wall", b"x", mode=0o2755)), policies=STRICT),
    Attack("setuid-hardlink", Reason.SETUID, made(F(b"a"), H(b"b", b"a", mode=0o4755)), policies=STRICT),
    Attack("setgid-directory", Reason.SETGID_DIRECTORY, made(D(b"var/mail", mode=0o2775)), policies=STRICT),
    Attack(
        "file-capability",
        Reason.FILE_CAPABILITY,
        made(F(b"ping", xattrs={b"security.capability": b"\1\0\0\2"})),
        forms=WITH_XATTRS,
        policies=STRICT,
    ),
    Attack(
        "file-capability-of-libarchive",
        Reason.FILE_CAPABILITY,
        raw(pax({b"LIBARCHIVE.xattr.security%2ecapability": b"AQAAAg"}), header(b"ping")),
        ONLY,
        STRICT,
    ),
    Attack(
        "xattr-bomb",
        Reason.TOO_MANY_XATTRS,
        made(F(b"f", xattrs={b"user.%d" % i: b"" for i in range(10_000)})),
        forms=WITH_XATTRS,
    ),
    Attack(
        "xattr-value-bomb", Reason.XATTR_TOO_LARGE, made(F(b"f", xattrs={b"user.x": bytes(65_536)})), forms=WITH_XATTRS
    ),
    Attack("xattr-name-bomb", Reason.BAD_XATTR, made(F(b"f", xattrs={b"user." + b"x" * 300: b""})), forms=WITH_XATTRS),
    Attack(
        "xattr-in-the-spelling-of-libarchive-alone",
        Reason.PAX_UNKNOWN,
        raw(pax({b"LIBARCHIVE.xattr.user.a": b"YQ"}), header(b"f")),
        ONLY,
        STRICT,
    ),
    Attack(
        "xattr-of-a-symlink",
        Reason.BAD_XATTR,
        made(S(b"s", b"f", xattrs={b"user.a": b"b"})),
        forms=WITH_XATTRS,
        policies=STRICT,
    ),
    Attack(
        "xattr-without-a-value",
        Reason.EMPTY_XATTR,
        made(F(b"f", xattrs={b"user.a": b""})),
        forms=WITH_XATTRS,
        policies=STRICT,
    ),
    Attack(
        "xattr-with-two-values",
        Reason.BAD_XATTR,
        raw(pax({b"SCHILY.xattr.user.a": b"1", b"LIBARCHIVE.xattr.user.a": b"Mg"}), header(b"f")),
        ONLY,
    ),
    Attack("block-device", Reason.DEVICE_NODE, made(partial(member, b"x/sda", kind=b"4", device=(8, 0)))),
    Attack("character-device", Reason.DEVICE_NODE, made(partial(member, b"mem", kind=b"3", device=(1, 1)))),
    Attack(
        "device-in-dev",
        Reason.DEVICE_NODE,
        made(partial(member, b"dev/null", kind=b"3", device=(1, 3))),
        policies=STRICT,
    ),
    Attack("overlay-whiteout-device", Reason.DEVICE_NODE, made(partial(member, b"dev/x", kind=b"3", device=(0, 0)))),
    Attack("fifo", Reason.FIFO, made(partial(member, b"f", kind=b"6"))),
    Attack("world-writable-etc", Reason.WORLD_WRITABLE_CRITICAL, made(D(b"rootfs/etc", mode=0o777))),
    Attack("world-writable-usr-sticky", Reason.WORLD_WRITABLE_CRITICAL, made(D(b"rootfs/usr/", mode=0o1777))),
    Attack("world-writable-passwd", Reason.WORLD_WRITABLE_CRITICAL, made(F(b"./etc/passwd", mode=0o666))),
    Attack("world-writable-rootfs", Reason.WORLD_WRITABLE_CRITICAL, made(D(b"rootfs", mode=0o777))),
    Attack(
        "world-writable-passwd-by-a-hard-link",
        Reason.WORLD_WRITABLE_CRITICAL,
        made(F(b"rootfs/x", mode=0o666), H(b"rootfs/etc/passwd", b"rootfs/x", mode=0o644)),
    ),
    Attack(
        "world-writable-passwd-by-a-hard-link-of-a-hard-link",
        Reason.WORLD_WRITABLE_CRITICAL,
        made(F(b"x", mode=0o666), H(b"y", b"x", mode=0o666), H(b"etc/passwd", b"y", mode=0o644)),
    ),
    Attack(
        "world-writable-etc-by-a-symlink",
        Reason.WORLD_WRITABLE_CRITICAL,
        made(S(b"rootfs/etc", b"data"), D(b"rootfs/data/", mode=0o777)),
    ),
    Attack(
        "world-writable-passwd-by-a-symlink",
        Reason.WORLD_WRITABLE_CRITICAL,
        made(S(b"rootfs/etc", b"data"), D(b"rootfs/data/"), F(b"rootfs/data/passwd", mode=0o666)),
    ),
    Attack(
        "world-writable-by-two-symlinks",
        Reason.WORLD_WRITABLE_CRITICAL,
        made(S(b"usr/bin", b"../a"), S(b"a", b"b/../c"), D(b"c", mode=0o757)),
    ),
    Attack(
        "world-writable-directory-above-etc",
        Reason.WORLD_WRITABLE_CRITICAL,
        made(S(b"rootfs/etc", b"srv2/etc"), D(b"rootfs/srv2", mode=0o777), D(b"rootfs/srv2/etc")),
    ),
    Attack(
        "world-writable-told-by-the-second-entry",
        Reason.WORLD_WRITABLE_CRITICAL,
        made(S(b"etc", b"d"), D(b"d"), D(b"d", mode=0o777)),
        policies=(Policy.DISTRO,),
    ),
    Attack(
        "hardlink-with-another-mode", Reason.HARDLINK_HEADER, made(F(b"a"), H(b"b", b"a", mode=0o600)), policies=STRICT
    ),
    Attack(
        "hardlink-with-another-owner", Reason.HARDLINK_HEADER, made(F(b"a"), H(b"b", b"a", uid=1000)), policies=STRICT
    ),
    Attack("hardlink-with-another-group", Reason.HARDLINK_HEADER, made(F(b"a"), H(b"b", b"a", gid=7)), policies=STRICT),
    Attack(
        "hardlink-with-another-time", Reason.HARDLINK_HEADER, made(F(b"a"), H(b"b", b"a", mtime=1)), policies=STRICT
    ),
    Attack(
        "hardlink-of-a-hardlink-with-another-mode",
        Reason.HARDLINK_HEADER,
        made(F(b"a"), H(b"b", b"a"), H(b"c", b"b", mode=0o666)),
        policies=STRICT,
    ),
    *(
        Attack(
            f"directory-twice-with-another-{name}",
            Reason.DUPLICATE_DIRECTORY,
            made(D(b"d"), F(b"d/f"), partial(directory, b"./d/", **{name: value})),
            policies=STRICT,
        )
        for name, value in {"mode": 0o700, "uid": 1, "gid": 1, "mtime": 5}.items()
    ),
    Attack(
        "directory-twice-with-another-attribute",
        Reason.DUPLICATE_DIRECTORY,
        made(D(b"d"), D(b"d", xattrs={b"user.a": b"b"})),
        forms=WITH_XATTRS,
        policies=STRICT,
    ),
    Attack(
        "hardlink-with-another-attribute",
        Reason.HARDLINK_HEADER,
        made(F(b"a", xattrs={b"user.a": b"b"}), H(b"b", b"a", xattrs={b"user.a": b"c"})),
        forms=WITH_XATTRS,
        policies=STRICT,
    ),
    Attack(
        "implied-directories-beyond-the-limit",
        Reason.TOO_MANY_ENTRIES,
        made(F(b"a/b/c/d/e/f"), F(b"g/h/i/j/k/l")),
        limits=Limits(entries=11),
    ),
    Attack(
        "names-that-take-much-memory",
        Reason.NAMES_TOO_LONG,
        made(*(F(b"%03d" % number + b"x" * 90) for number in range(20))),
        limits=Limits(names_bytes=1500),
    ),
    Attack(
        "targets-that-take-much-memory",
        Reason.NAMES_TOO_LONG,
        made(*(S(b"%d" % number, b"y" * 90) for number in range(20))),
        limits=Limits(names_bytes=1500),
    ),
    Attack(
        "implied-directories-that-take-much-memory",
        Reason.NAMES_TOO_LONG,
        made(F(b"/".join([b"d"] * 40))),
        limits=Limits(names_bytes=1500),
    ),
    Attack(
        "xattrs-beyond-the-total",
        Reason.TOTAL_SIZE,
        made(*(F(b"%d" % number, xattrs={b"user.x": b"v" * 200}) for number in range(10))),
        WITH_XATTRS,
        limits=Limits(total_bytes=1000),
    ),
    Attack("owner-that-means-nobody", Reason.BAD_OWNER, raw(header(b"f", uid=base_256(2**32 - 1, 8))), ONLY),
    Attack("owner-beyond-32-bits", Reason.BAD_OWNER, raw(pax({b"gid": b"4294967296"}), header(b"f")), ONLY),
    *(
        Attack(f"type-{kind}", Reason.UNSUPPORTED_TYPE, raw(header(b"f", kind=kind.encode())), ONLY)
        for kind in ("7", "V", "M", "D", "N", "A", "X", "I", "E", "8", "s", "Z")
    ),
    Attack("file-that-is-a-directory-to-some", Reason.AMBIGUOUS_TYPE, raw(header(b"d/", kind=b"0")), ONLY),
    Attack(
        "old-file-that-is-a-directory-by-pax",
        Reason.AMBIGUOUS_TYPE,
        raw(pax({b"path": b"d/"}), header(b"d", kind=b"\0")),
        ONLY,
    ),
    Attack("mode-of-another-type", Reason.BAD_HEADER, raw(header(b"f", mode=0o040755)), ONLY),
    Attack("target-on-a-file", Reason.LINK_NAME_ON_NONLINK, raw(header(b"f", linkname=b"../x")), ONLY),
]

INNER = header(b"../evil", size=0)

STRUCTURE = [
    *(
        Attack(
            f"size-on-{name}",
            Reason.SIZE_ON_NONFILE,
            raw(header(b"d", kind=kind, size=512, linkname=link), INNER),
            ONLY,
        )
        for name, kind, link in (
            ("directory", b"5", b""),
            ("symlink", b"2", b"x"),
            ("hardlink", b"1", b"x"),
            ("fifo", b"6", b""),
            ("device", b"3", b""),
        )
    ),
    Attack(
        "pax-size-on-symlink",
        Reason.SIZE_ON_NONFILE,
        raw(pax({b"size": b"512"}), header(b"d", kind=b"2", linkname=b"x"), INNER),
        ONLY,
    ),
    *(
        Attack(f"pax-{name}", Reason.BAD_PAX, raw(pax(body), header(b"f")), ONLY)
        for name, body in {
            "length-zero": b"0 path=x\n",
            "length-too-big": b"99 path=x\n",
            "length-too-small": b"6 path=x\n",
            "length-negative": b"-9 path=x\n",
            "length-signed": b"+10 path=x\n",
            "length-with-leading-zero": b"010 path=x\n",
            "length-missing": b"path=x\n",
            "length-huge": b"9" * 30 + b" path=x\n",
            "without-equals": b"9 path x\n",
            "without-keyword": b"5 =x\n",
            "without-newline": b"9 path=xy",
            "duplicate-keyword": record(b"path", b"a") + record(b"path", b"b"),
            "trailing-bytes": record(b"path", b"a") + b"\0\0\0",
            "size-negative": record(b"size", b"-1"),
            "size-not-a-number": record(b"size", b"0x10"),
            "size-too-large": record(b"size", b"9" * 19),
            "uid-not-a-number": record(b"uid", b"root"),
            "star-real-size": record(b"SCHILY.realsize", b"5"),
            "star-type": record(b"SCHILY.filetype", b"directory"),
            "solaris-holes": record(b"SUN.holesdata", b" 0 5"),
            "gnu-dumpdir": record(b"GNU.dumpdir", b"Yx\0"),
            "gnu-volume": record(b"GNU.volume.size", b"5"),
            "time-not-a-number": record(b"mtime", b"NaN"),
            "time-with-exponent": record(b"mtime", b"1e400"),
            "time-of-access-not-a-number": record(b"atime", b"yesterday"),
            "time-of-change-empty": record(b"ctime", b""),
            "time-of-creation-beyond-64-bits": record(b"LIBARCHIVE.creationtime", b"9" * 20),
        }.items()
    ),
    Attack(
        "pax-size-overrides",
        Reason.SIZE_OVERRIDDEN,
        raw(pax({b"size": b"512"}), header(b"f", size=0), INNER),
        ONLY,
        STRICT,
    ),
    Attack(
        "sparse-with-the-magic-of-posix",
        Reason.UNSUPPORTED_TYPE,
        raw(header(b"x", kind=b"S", prefix=b"00000000000 " * 8 + b"\0" + b"00000000000 ")),
        ONLY,
    ),
    *(
        Attack(f"unused-{name}-not-a-number", Reason.BAD_NUMBER, raw(content), ONLY)
        for name, content in {
            "device-major": with_field(header(b"f"), 329, b"00/00000"),
            "device-minor": with_field(header(b"f"), 337, b"nonsense"),
            "device-of-a-directory": with_field(header(b"d/", kind=b"5"), 329, b"000 0 0\0"),
            "device-of-a-link": with_field(header(b"s", kind=b"2", linkname=b"x"), 329, b"9\0"),
            "pax-time": with_field(pax({b"comment": b"x"}), 136, b"nonsense\0\0\0\0") + header(b"f"),
            "pax-mode": with_field(pax({b"comment": b"x"}), 100, b"rw-r--r-") + header(b"f"),
            "pax-owner": with_field(pax({b"path": b"x"}), 108, b"0000099\0") + header(b"f"),
            "pax-group": with_field(pax({b"path": b"x"}), 116, b"root\0") + header(b"f"),
            "pax-device": with_field(pax({b"path": b"x"}), 337, b"x") + header(b"f"),
            "global-time": with_field(pax({b"comment": b"x"}, kind=b"g"), 136, b"x") + header(b"f"),
            "long-name-owner": with_field(long_name(b"f"), 108, b"x") + header(b"f", magic=b"ustar  \0"),
            "long-name-time": with_field(long_name(b"f"), 136, b"x") + header(b"f", magic=b"ustar  \0"),
            "overruled-time": pax({b"mtime": b"1.5"}) + header(b"f", mtime=b"0o17        "),
            "overruled-size": pax({b"size": str(1 << 33).encode()}) + header(b"f", size=b"0 \0 junk"),
        }.items()
    ),
    Attack("pax-unknown-keyword", Reason.PAX_UNKNOWN, raw(pax({b"VENDOR.size": b"5"}), header(b"f")), ONLY, STRICT),
    Attack("pax-global-path", Reason.PAX_GLOBAL, raw(pax({b"path": b"../x"}, kind=b"g"), header(b"f")), ONLY),
    Attack("pax-global-size", Reason.PAX_GLOBAL, raw(pax({b"size": b"512"}, kind=b"g"), header(b"f")), ONLY),
    Attack(
        "pax-global-between",
        Reason.EXTENSION_CONFLICT,
        raw(pax({b"path": b"f"}), pax({b"comment": b"x"}, kind=b"g"), header(b"f")),
        ONLY,
    ),
    Attack("pax-charset", Reason.PAX_CHARSET, raw(pax({b"hdrcharset": b"ISO-IR 8859 1 1998"}), header(b"f")), ONLY),
    Attack("pax-too-large", Reason.EXTENSION_TOO_LARGE, raw(header(b"p", kind=b"x", size=1 << 30)), ONLY),
    Attack("pax-without-entry", Reason.EXTENSION_WITHOUT_ENTRY, raw(member(b"f"), pax({b"path": b"x"})), ONLY),
    Attack("long-name-without-entry", Reason.EXTENSION_WITHOUT_ENTRY, raw(member(b"f"), long_name(b"x")), ONLY),
    Attack("size-negative-base-256", Reason.BAD_SIZE, raw(header(b"f", size=base_256(-512, 12))), ONLY),
    Attack("size-negative-octal", Reason.BAD_SIZE, raw(header(b"f", size=b"-0000000512\0")), ONLY),
    Attack("size-beyond-any-file", Reason.BAD_SIZE, raw(header(b"f", size=base_256(2**63, 12))), ONLY),
    Attack(
        "size-of-long-name-negative",
        Reason.BAD_SIZE,
        raw(header(b"L", kind=b"L", size=base_256(-1, 12), magic=b"ustar  \0")),
        ONLY,
    ),
    Attack("size-beyond-the-end", Reason.TRUNCATED, raw(header(b"f", size=2**20)), ONLY),
    Attack("size-largest-number", Reason.TRUNCATED, raw(header(b"f", size=base_256(2**63 - 1, 12))), ONLY),
    *(
        Attack(f"number-{name}", Reason.BAD_NUMBER, raw(header(b"f", size=field)), ONLY)
        for name, field in {
            "after-a-nul": b"\x000000000512",
            "in-two-parts": b"    5 12\0",
            "of-spaces": b" " * 12,
            "signed": b"+0000000000\0",
            "hexadecimal": b"0x200\0",
            "octal-prefix": b"0o200\0",
            "with-underscore": b"0000_000000\0",
            "with-embedded-nul": b"0000\x00000512\0",
            "not-octal": b"00000000008\0",
            "of-letters": b"one\0",
            "in-strange-base-256": b"\xc0" + bytes(11),
        }.items()
    ),
    Attack("mtime-not-a-number", Reason.BAD_NUMBER, raw(header(b"f", mtime=b"yesterday\0\0")), ONLY),
    Attack("mode-not-a-number", Reason.BAD_NUMBER, raw(header(b"f", mode=b"rwxr-x\0")), ONLY),
    Attack("bad-checksum", Reason.BAD_CHECKSUM, raw(header(b"f", checksum=b"000000\0 ")), ONLY),
    Attack("bad-checksum-of-second", Reason.BAD_CHECKSUM, raw(header(b"e"), header(b"f", checksum=b"000000\0 ")), ONLY),
    Attack("checksum-of-signed-bytes", Reason.BAD_CHECKSUM, lambda form: archive(_signed_checksum(b"\xe4")), ONLY),
    Attack("magic-unknown", Reason.BAD_MAGIC, raw(header(b"f", magic=b"ustar\0\0\0")), ONLY),
    Attack("magic-with-other-version", Reason.BAD_MAGIC, raw(header(b"f", magic=b"ustar\x0001")), ONLY),
    Attack(
        "prefix-in-gnu-form", Reason.BAD_HEADER, raw(member(b"f", form="ustar", prefix=b"a", magic=b"ustar  \0")), ONLY
    ),
    Attack("prefix-in-old-form", Reason.BAD_HEADER, raw(member(b"f", prefix=b"a", magic=bytes(8))), ONLY),
    Attack("star-trailer", Reason.BAD_HEADER, raw(header(b"f", rest=bytes(8) + b"tar\0")), ONLY),
    Attack("lone-zero-block", Reason.TRAILING_DATA, lambda form: archive(member(b"a"), bytes(512), member(b"b")), ONLY),
    Attack(
        "concatenated-archives", Reason.TRAILING_DATA, lambda form: archive(member(b"a")) + archive(member(b"b")), ONLY
    ),
    Attack("trailing-data", Reason.TRAILING_DATA, lambda form: archive(member(b"a")) + bytes(600_000) + b"x", ONLY),
    Attack("no-end", Reason.MISSING_END, lambda form: archive(member(b"a"), end=b""), ONLY),
    Attack("half-an-end", Reason.MISSING_END, lambda form: archive(member(b"a"), end=bytes(512)), ONLY),
    Attack("truncated-header", Reason.TRUNCATED, lambda form: archive(member(b"a"), member(b"b")[:300], end=b""), ONLY),
    Attack(
        "truncated-content", Reason.TRUNCATED, lambda form: archive(member(b"a", bytes(2000))[:1000], end=b""), ONLY
    ),
    Attack("truncated-padding", Reason.TRUNCATED, lambda form: archive(member(b"a", bytes(100))[:612], end=b""), ONLY),
    Attack("truncated-pax", Reason.TRUNCATED, lambda form: archive(pax({b"path": b"x" * 600})[:700], end=b""), ONLY),
    Attack("empty-file", Reason.EMPTY_ARCHIVE, lambda form: b"", ONLY),
    Attack("all-zeros", Reason.EMPTY_ARCHIVE, lambda form: bytes(10_240), ONLY),
    Attack("one-byte", Reason.TRUNCATED, lambda form: b"x", ONLY),
    Attack("not-a-tar", Reason.NOT_A_TAR, lambda form: bytes(range(256)) * 40, ONLY),
    Attack("zip", Reason.NOT_A_TAR, lambda form: b"PK\3\4" + bytes(2000), ONLY),
    Attack("elf", Reason.NOT_A_TAR, lambda form: b"\x7fELF" + bytes(2000), ONLY),
]


def _signed_checksum(name: bytes) -> bytes:
    block = header(name)
    signed = sum(byte - 256 if byte > 127 else byte for byte in block) - sum(block[148:156]) + 256
    return block[:148] + b"%06o\0 " % signed + block[156:]


def old_sparse(pieces: list[tuple[int, int]], size: int, stored: bytes, more: bytes = b"", name: bytes = b"s") -> bytes:
    """A file in the old GNU sparse form."""
    table = b"".join(b"%011o\0%011o\0" % piece for piece in pieces[:4]).ljust(96, b"\0")
    prefix = bytes(41) + table + (b"\1" if more else b"\0") + b"%011o\0" % size
    block = header(name, kind=b"S", size=len(stored), magic=b"ustar  \0", prefix=prefix)
    return block + more + padded(stored)


WHOLE_MAP = {b"GNU.sparse.size": b"512", b"GNU.sparse.numblocks": b"1", b"GNU.sparse.map": b"0,512"}


def sparse_1_0(text: bytes, realsize: bytes, stored: bytes, **records: bytes) -> bytes:
    """A file in the sparse form 1.0: the map is in front of the content."""
    body = padded(text) + stored
    said = {
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": b"s",
        b"GNU.sparse.realsize": realsize,
    }
    said |= {key.encode(): value for key, value in records.items()}
    return pax(said) + header(b"GNUSparseFile.0/s", size=len(body)) + padded(body)


def sparse_0_1(sparse_map: bytes, count: bytes, size: bytes, stored: bytes) -> bytes:
    """A file in the sparse form 0.1: the map is one record."""
    said = {
        b"GNU.sparse.size": size,
        b"GNU.sparse.numblocks": count,
        b"GNU.sparse.map": sparse_map,
        b"GNU.sparse.name": b"s",
    }
    return pax(said) + header(b"GNUSparseFile.0/s", size=len(stored)) + padded(stored)


def sparse_0_0(numbers: list[int], count: bytes, size: bytes, stored: bytes) -> bytes:
    """A file in the sparse form 0.0: two records for each piece."""
    body = record(b"GNU.sparse.size", size) + record(b"GNU.sparse.numblocks", count)
    for at, value in enumerate(numbers):
        body += record(b"GNU.sparse.numbytes" if at % 2 else b"GNU.sparse.offset", b"%d" % value)
    return pax(body) + header(b"s", size=len(stored)) + padded(stored)


TERA = 1 << 40
SPARSE = [
    Attack(
        "sparse-bomb-old",
        Reason.FILE_TOO_LARGE,
        raw(old_sparse([(0, 512), (8**11 - 1, 0)], 8**11 - 1, bytes(512))),
        ONLY,
    ),
    Attack(
        "sparse-bomb-0-0",
        Reason.FILE_TOO_LARGE,
        raw(sparse_0_0([0, 512, TERA, 0], b"2", b"%d" % TERA, bytes(512))),
        ONLY,
    ),
    Attack(
        "sparse-bomb-0-1",
        Reason.FILE_TOO_LARGE,
        raw(sparse_0_1(b"0,512,%d,0" % TERA, b"2", b"%d" % TERA, bytes(512))),
        ONLY,
    ),
    Attack(
        "sparse-bomb-1-0",
        Reason.FILE_TOO_LARGE,
        raw(sparse_1_0(b"2\n0\n512\n%d\n0\n" % TERA, b"%d" % TERA, bytes(512))),
        ONLY,
    ),
    Attack(
        "sparse-overlapping", Reason.BAD_SPARSE, raw(sparse_0_1(b"0,512,256,512", b"2", b"4096", bytes(1024))), ONLY
    ),
    Attack("sparse-backwards", Reason.BAD_SPARSE, raw(sparse_0_1(b"512,512,0,512", b"2", b"4096", bytes(1024))), ONLY),
    Attack("sparse-beyond-its-size", Reason.BAD_SPARSE, raw(sparse_0_1(b"4096,512", b"1", b"4096", bytes(512))), ONLY),
    Attack("sparse-more-than-stored", Reason.BAD_SPARSE, raw(sparse_0_1(b"0,1024", b"1", b"4096", bytes(512))), ONLY),
    Attack("sparse-less-than-stored", Reason.BAD_SPARSE, raw(sparse_1_0(b"1\n0\n512\n", b"4096", bytes(1024))), ONLY),
    *(
        Attack(f"sparse-{name}", Reason.BAD_SPARSE, raw(content), ONLY)
        for name, content in {
            "ends-before-its-file": sparse_0_1(b"0,512", b"1", b"4096", bytes(512)),
            "old-ends-before-its-file": old_sparse([(0, 512)], 4096, bytes(512)),
            "with-half-a-block": sparse_1_0(b"2\n0\n5\n1000\n5\n", b"1005", bytes(10)),
            "old-with-half-a-block": old_sparse([(0, 5), (1000, 5)], 1005, bytes(10)),
            "with-an-empty-map": sparse_0_1(b"", b"0", b"0", b""),
            "of-the-old-type": pax(WHOLE_MAP) + header(b"s", kind=b"\0", size=512) + bytes(512),
            "with-the-magic-of-gnu": pax(WHOLE_MAP) + header(b"s", size=512, magic=b"ustar  \0") + bytes(512),
            "without-a-magic": pax(WHOLE_MAP) + header(b"s", size=512, magic=bytes(8)) + bytes(512),
        }.items()
    ),
    Attack(
        "sparse-map-before-its-number",
        Reason.BAD_PAX,
        raw(
            pax({b"GNU.sparse.size": b"512", b"GNU.sparse.map": b"0,512", b"GNU.sparse.numblocks": b"1"}),
            header(b"s", size=512),
            bytes(512),
        ),
        ONLY,
    ),
    Attack("sparse-wrong-count", Reason.BAD_SPARSE, raw(sparse_0_1(b"0,512", b"2", b"4096", bytes(512))), ONLY),
    Attack("sparse-odd-map", Reason.BAD_SPARSE, raw(sparse_0_1(b"0,512,9", b"1", b"4096", bytes(512))), ONLY),
    Attack("sparse-not-numbers", Reason.BAD_SPARSE, raw(sparse_0_1(b"0,-512", b"1", b"4096", bytes(512))), ONLY),
    Attack("sparse-0-0-unordered", Reason.BAD_PAX, raw(pax(record(b"GNU.sparse.numbytes", b"1")), header(b"s")), ONLY),
    Attack("sparse-1-0-endless-number", Reason.BAD_SPARSE, raw(sparse_1_0(b"1" * 4096, b"4096", b"")), ONLY),
    Attack("sparse-1-0-too-many-pieces", Reason.BAD_SPARSE, raw(sparse_1_0(b"999999999\n", b"4096", b"")), ONLY),
    Attack("sparse-1-0-trailing", Reason.BAD_SPARSE, raw(sparse_1_0(b"1\n0\n512\nhidden", b"4096", bytes(512))), ONLY),
    Attack(
        "sparse-1-0-map-larger-than-size",
        Reason.BAD_SPARSE,
        raw(
            pax(
                {
                    b"GNU.sparse.major": b"1",
                    b"GNU.sparse.minor": b"0",
                    b"GNU.sparse.name": b"s",
                    b"GNU.sparse.realsize": b"0",
                }
            ),
            header(b"s", size=3),
            padded(b"0\n\n"),
        ),
        ONLY,
    ),
    Attack(
        "sparse-unknown-version",
        Reason.BAD_SPARSE,
        raw(sparse_1_0(b"0\n", b"0", b"", **{"GNU.sparse.minor": b"1"})),
        ONLY,
    ),
    Attack("sparse-name-alone", Reason.BAD_SPARSE, raw(pax({b"GNU.sparse.name": b"evil"}), header(b"good")), ONLY),
    Attack(
        "sparse-name-traversal",
        Reason.PATH_TRAVERSAL,
        raw(sparse_1_0(b"0\n", b"0", b"", **{"GNU.sparse.name": b"../x"})),
        ONLY,
    ),
    Attack("sparse-with-two-names", Reason.EXTENSION_CONFLICT, raw(sparse_1_0(b"0\n", b"0", b"", path=b"other")), ONLY),
    Attack(
        "sparse-directory",
        Reason.BAD_SPARSE,
        raw(pax({b"GNU.sparse.size": b"5", b"GNU.sparse.numblocks": b"0"}), header(b"d", kind=b"5")),
        ONLY,
    ),
    Attack(
        "sparse-old-and-pax-size",
        Reason.EXTENSION_CONFLICT,
        raw(pax({b"size": b"512"}), old_sparse([(0, 512)], 512, bytes(512))),
        ONLY,
    ),
    Attack(
        "sparse-and-pax-size",
        Reason.EXTENSION_CONFLICT,
        raw(sparse_1_0(b"1\n0\n512\n", b"512", bytes(512), size=b"1024")),
        ONLY,
    ),
    Attack(
        "sparse-old-piece-after-end",
        Reason.BAD_SPARSE,
        raw(old_sparse([(0, 0), (0, 0)], 512, bytes(512), more=bytes(24) + b"%011o\0%011o\0" % (0, 512) + bytes(464))),
        ONLY,
    ),
    Attack(
        "sparse-old-with-times",
        Reason.BAD_HEADER,
        raw(header(b"s", kind=b"S", magic=b"ustar  \0", prefix=b"00000000001\0")),
        ONLY,
    ),
]

SMALL = Limits(entries=3, file_bytes=1000, total_bytes=1500)
LIMITED = [
    Attack("file-too-large", Reason.FILE_TOO_LARGE, made(F(b"f", bytes(1001))), limits=SMALL),
    Attack(
        "files-too-large-together", Reason.TOTAL_SIZE, made(F(b"f", bytes(1000)), F(b"g", bytes(501))), limits=SMALL
    ),
    Attack("too-many-entries", Reason.TOO_MANY_ENTRIES, made(F(b"a"), F(b"b"), F(b"c"), F(b"d")), limits=SMALL),
    Attack(
        "too-many-global-headers",
        Reason.TOO_MANY_ENTRIES,
        raw(*[pax({b"comment": b"x"}, kind=b"g")] * 4, header(b"f")),
        ONLY,
        limits=SMALL,
    ),
    Attack("image-too-large", Reason.IMAGE_TOO_LARGE, made(F(b"f", bytes(5000))), limits=Limits(image_bytes=20)),
]

WHITEOUTS = [
    *(
        Attack(f"whiteout-{name}", Reason.BAD_WHITEOUT, made(F(path)), layer=True)
        for name, path in {
            "of-nothing": b"etc/.wh.",
            "of-dot": b"etc/.wh..",
            "of-dot-dot": b"etc/.wh...",
            "with-children": b".wh.etc/somefile",
            "of-aufs": b".wh..wh.plnk",
        }.items()
    ),
    Attack("whiteout-traversal", Reason.PATH_TRAVERSAL, made(F(b"dne/../.wh.etc")), layer=True),
    Attack("whiteout-with-content", Reason.BAD_WHITEOUT, made(F(b".wh.x", b"x")), layer=True),
    Attack("whiteout-directory", Reason.BAD_WHITEOUT, made(D(b".wh.x")), layer=True),
    Attack(
        "whiteout-through-symlink",
        Reason.USELESS_WHITEOUT,
        made(S(b"d", b"e"), F(b"d/.wh.x")),
        policies=(Policy.STRICT,),
        layer=True,
    ),
]

ATTACKS = NAMES + LINKS + KINDS + STRUCTURE + SPARSE + LIMITED + WHITEOUTS
