"""What looks like an attack and is none is taken; what the policies change, they change as they say."""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest

from holdfast_images.archive.compression import open_stream
from holdfast_images.archive.entry import ArchiveSeverity, Entry, EntryKind, Limits, Policy, Reason
from holdfast_images.archive.reader import TarReader
from holdfast_images.archive.rules import Judge, Verdict
from tests.hostile.corpus import old_sparse, sparse_0_0, sparse_0_1, sparse_1_0
from tests.support.images.archives import (
    COMPRESSIONS,
    FORMS,
    Form,
    archive,
    base_256,
    compressed,
    descriptor,
    directory,
    entries_of,
    hardlink,
    header,
    inspected,
    member,
    padded,
    pax,
    symlink,
)


def judged(
    content: bytes, policy: Policy = Policy.STRICT, *, layer: bool = False, keep_setuid: bool = False
) -> list[Verdict]:
    judge = Judge(policy, Limits(), layer=layer, keep_setuid=keep_setuid)
    with descriptor(content) as fd:
        return [judge.judge(entry) for entry in TarReader(open_stream(fd, limits=Limits()), Limits())]


def codes(content: bytes, policy: Policy = Policy.STRICT, *, layer: bool = False) -> set[str]:
    report = inspected(content, policy, layer=layer)
    assert report.acceptable, report.findings
    return {finding.code for finding in report.findings}


HARMLESS = {
    "the-root-itself": [directory(b"./")],
    "dots-in-names": [member(b"foo..bar"), member(b"..foo"), member(b"..."), member(b"a/..b/c")],
    "doubled-slashes": [directory(b"a/"), member(b"a//b"), member(b"./a/./c")],
    "sticky-tmp": [directory(b"rootfs/tmp/", mode=0o1777)],
    "directory-twice": [directory(b"a"), member(b"a/b"), directory(b"a/")],
    "directory-after-its-children": [member(b"a/b/c"), directory(b"a/b", mode=0o555), directory(b"a", mode=0)],
    "symlink-inside": [symlink(b"rootfs/usr/lib/a", b"../../etc/a"), symlink(b"a/b", b"../c")],
    "symlink-to-the-root": [symlink(b"rootfs/a/b", b".."), symlink(b"b", b".")],
    "dangling-symlink": [symlink(b"a", b"nothing/here")],
    "symlink-loop": [symlink(b"a", b"b"), symlink(b"b", b"a")],
    "winding-symlink": [symlink(b"rootfs/usr/a", b"lib/../share/x"), directory(b"rootfs/usr/lib")],
    "winding-symlink-through-a-loop": [symlink(b"a", b"b/x/.."), symlink(b"b", b"a")],
    "hardlinks": [member(b"a", b"x"), hardlink(b"b", b"a"), hardlink(b"c", b"./b")],
    "non-utf-8": [member(b"\xff\xfe"), member("grün".encode())],
    "zero-bytes": [member(b"a", b""), member(b"b", b"x")],
    "old-form": [member(b"a", b"x", magic=bytes(8), kind=b"\0"), member(b"d/", magic=bytes(8), kind=b"\0")],
    "mode-with-type-bits": [member(b"a", mode=0o100644), directory(b"d", mode=0o040755)],
    "number-without-zeros": [header(b"a", uid=b"1 \0", gid=b"2\0", mtime=b"17\0 ")],
    "number-unterminated": [header(b"a", uid=b"00000017", size=b"000000000000")],
    "numbers-blank": [header(b"a", uid=bytes(8), gid=bytes(8), mtime=bytes(12), size=bytes(12))],
    "checksum-of-seven-digits": [header(b"a", checksum=b"%07o\0" % int(header(b"a")[148:154], 8))],
    "base-256": [header(b"a", size=base_256(0, 12), uid=base_256(70_000, 8))],
    "git-archive": [pax({b"comment": b"0" * 40}, kind=b"g"), member(b"a")],
    "pax-times-and-names": [pax({b"atime": b"1.5", b"ctime": b"2", b"uname": b"x", b"gname": b"y"}), member(b"a")],
    "charset-binary": [pax({b"hdrcharset": b"BINARY", b"path": b"\xff"}), member(b"a")],
    "xattr-of-bsdtar": [pax({b"SCHILY.xattr.user.a": b"1", b"LIBARCHIVE.xattr.user.a": b"MQ"}), member(b"a")],
    "polyglot-elf": [member(b"\x7fELF" + b"x" * 20)],
    "empty-sparse": [sparse_1_0(b"1\n4096\n0\n", b"4096", b"")],
    "world-writable-elsewhere": [directory(b"rootfs/srv/drop", mode=0o777)],
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_is_taken_without_an_error(name: str) -> None:
    for policy, compression in product(Policy, COMPRESSIONS):
        report = inspected(compressed(archive(*HARMLESS[name]), compression), policy)

        assert report.acceptable, (policy, compression, report.findings)
        assert report.compression == compression


@pytest.mark.parametrize("form", FORMS)
def test_names_are_normalised(form: Form) -> None:
    content = archive(
        directory(b"./", form=form),
        directory(b"./a/", form=form),
        member(b"a//b", form=form),
        member(b"./a/./c", form=form),
    )

    assert [verdict.path for verdict in judged(content)] == [b"", b"a", b"a/b", b"a/c"]


@pytest.mark.parametrize("name", [b"a\nb", b"\x1b[31m", b"a\x7f", "a\u202egnp".encode(), b"..\\..\\x", b"d/C:\\x"])
def test_a_misleading_name_is_taken_literally_with_a_warning(name: bytes) -> None:
    content = archive(member(name, form="pax"))

    assert codes(content) == {Reason.SUSPICIOUS_NAME}
    assert judged(content)[0].path == name


@pytest.mark.parametrize("name", [b"C:\\x", b"c:x", b"\\x", b"a:/b"])
def test_a_name_that_begins_like_a_path_of_windows_is_taken_literally_by_distro(name: bytes) -> None:
    content = archive(member(name))

    assert Reason.FOREIGN_NAME in codes(content, Policy.DISTRO)
    assert judged(content, Policy.DISTRO)[0].path == name


def test_of_a_directory_that_occurs_twice_the_last_counts_for_distro() -> None:
    content = archive(directory(b"a", mode=0o755), directory(b"a/", mode=0o700))

    assert codes(content, Policy.DISTRO) == {Reason.DUPLICATE_DIRECTORY}
    assert [verdict.mode for verdict in judged(content, Policy.DISTRO)] == [0o755, 0o700]


@pytest.mark.parametrize("one, other", [(b"Etc", b"etc"), ("é".encode(), "e\u0301".encode()), ("ß".encode(), b"ss")])
def test_twins_are_told_once(one: bytes, other: bytes) -> None:
    report = inspected(archive(*(member(d + b"/" + n) for d in (b"a", b"b") for n in (one, other))))

    assert [finding.code for finding in report.findings] == [Reason.TWIN_NAMES]
    assert report.findings[0].detail.startswith("2 names")


def test_absolute_symlinks_are_inside_the_image_for_distro() -> None:
    assert codes(archive(symlink(b"etc/mtab", b"/proc/mounts")), Policy.DISTRO) == set()


def test_strict_names_the_policy_that_would_take_it() -> None:
    report = inspected(archive(member(b"su", mode=0o4755), symlink(b"a", b"/b")))

    assert [("distro" in finding.detail) for finding in report.findings] == [True, True]


def test_distro_strips_setuid_and_capabilities_unless_told_to_keep_them() -> None:
    content = archive(member(b"su", mode=0o6755, xattrs={b"security.capability": b"x"}))
    (stripped,) = judged(content, Policy.DISTRO)
    (kept,) = judged(content, Policy.DISTRO, keep_setuid=True)

    assert (stripped.mode, stripped.xattrs) == (0o755, ())
    assert {finding.code for finding in stripped.findings} == {Reason.SETUID, Reason.FILE_CAPABILITY}
    assert (kept.mode, kept.xattrs, kept.findings) == (0o6755, ((b"security.capability", b"x"),), ())


def test_strict_refuses_setuid_even_when_told_to_keep_it() -> None:
    assert not judged(archive(member(b"su", mode=0o4755)), keep_setuid=True)[0].acceptable


def test_distro_keeps_setgid_directories_and_tells() -> None:
    (verdict,) = judged(archive(directory(b"var/mail", mode=0o2775)), Policy.DISTRO)

    assert verdict.acceptable
    assert verdict.mode == 0o2775
    assert [finding.code for finding in verdict.findings] == [Reason.SETGID_DIRECTORY]


@pytest.mark.parametrize("name", [b"dev/null", b"rootfs/dev/null", b"./dev/pts/ptmx"])
def test_distro_leaves_out_device_nodes_in_dev(name: bytes) -> None:
    (verdict,) = judged(archive(member(name, kind=b"3", device=(1, 3))), Policy.DISTRO)

    assert verdict.acceptable
    assert verdict.left_out
    assert [finding.severity for finding in verdict.findings] == [ArchiveSeverity.WARNING]


def test_nothing_can_be_linked_to_or_put_below_a_device_that_is_left_out() -> None:
    device = member(b"dev/x", kind=b"3", device=(1, 3))
    link, below = judged(archive(device, hardlink(b"a", b"dev/x"), member(b"dev/x/y")), Policy.DISTRO)[1:]

    assert [link.findings[0].code, below.findings[0].code] == [Reason.HARDLINK_TARGET, Reason.PARENT_NOT_DIRECTORY]


@pytest.mark.parametrize(
    "name", ["security.selinux", "security.ima", "trusted.overlay.opaque", "user.overlay.opaque", "system.nfs4_acl"]
)
def test_attributes_of_a_host_are_stripped_and_told(name: str) -> None:
    (verdict,) = judged(archive(member(b"a", xattrs={name.encode(): b"x", b"user.mine": b"y"})))

    assert verdict.xattrs == ((b"user.mine", b"y"),)
    assert [finding.code for finding in verdict.findings] == [Reason.XATTR_STRIPPED]


def test_access_control_lists_are_left_out_and_told() -> None:
    assert codes(archive(pax({b"SCHILY.acl.access": b"user::rw-,other::rw-"}), header(b"a"))) == {Reason.XATTR_STRIPPED}


@pytest.mark.parametrize(
    "seconds, expected",
    [(b"-5", 0), (b"16725225600", 15_032_385_535), (b"9" * 18, 15_032_385_535)],
)
def test_impossible_times_are_clamped_and_told(seconds: bytes, expected: int) -> None:
    (verdict,) = judged(archive(pax({b"mtime": seconds}), header(b"a")))

    assert verdict.mtime_ns == expected * 1_000_000_000
    assert [finding.code for finding in verdict.findings] == [Reason.TIME_CLAMPED]


def test_a_negative_time_in_base_256_is_clamped() -> None:
    (verdict,) = judged(archive(header(b"a", mtime=base_256(-1, 12))))

    assert (verdict.mtime_ns, verdict.findings[0].code) == (0, Reason.TIME_CLAMPED)


def test_an_unknown_pax_keyword_is_left_out_by_distro() -> None:
    assert codes(archive(pax({b"VENDOR.x": b"y"}), header(b"a")), Policy.DISTRO) == {Reason.PAX_UNKNOWN}


def test_the_size_of_the_pax_header_counts_and_hidden_headers_are_content() -> None:
    hidden = header(b"../evil") + bytes(512)
    content = archive(pax({b"size": b"1024"}), header(b"a", size=0), hidden, member(b"b"))

    assert [(entry.name, body) for entry, body in entries_of(content)] == [(b"a", hidden), (b"b", b"")]
    assert codes(content, Policy.DISTRO) == {Reason.SIZE_OVERRIDDEN}


def right_aligned(name: bytes, content: bytes) -> bytes:
    """A header as Perl's Archive::Tar and old Java libraries write it: numbers to the right, spaces in front."""
    block = header(name, mode=b"   644 \0", uid=b"     0 \0", gid=b"     0 \0", size=b"%11o " % len(content))
    block = block[:148] + b"%6o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:])) + block[156:]
    return block + padded(content)


def test_numbers_with_spaces_in_front_are_read_as_everybody_reads_them() -> None:
    content = archive(right_aligned(b"a", b"hello"), right_aligned(b"b", b""))

    assert [(entry.name, entry.mode, body) for entry, body in entries_of(content)] == [
        (b"a", 0o644, b"hello"),
        (b"b", 0o644, b""),
    ]
    assert codes(content) == set()


def test_what_perl_writes_is_taken(tmp_path: Path) -> None:
    program = (
        "my $tar = Archive::Tar->new; $tar->add_data('rootfs/etc/motd', 'hello', {mode => 0644});"
        " $tar->add_data('rootfs/' . ('d' x 90) . '/' . ('f' x 60), 'x' x 5000); $tar->write($ARGV[0]) or die"
    )
    subprocess.run(["perl", "-MArchive::Tar", "-e", program, tmp_path / "x.tar"], check=True)
    content = (tmp_path / "x.tar").read_bytes()

    assert codes(content) == set()
    assert [(entry.name[:20], body[:6]) for entry, body in entries_of(content)] == [
        (b"rootfs/etc/motd", b"hello"),
        (b"rootfs/" + b"d" * 13, b"xxxxxx"),
    ]


def test_a_hard_link_says_what_it_links_to() -> None:
    first, link = judged(archive(member(b"a"), hardlink(b"b", b"a")))

    assert (first.link, link.link) == (b"", b"a")


def test_whiteouts_of_a_layer_are_told_from_files() -> None:
    content = archive(member(b"etc/.wh.passwd"), member(b"var/.wh..wh..opq"), member(b".wh..wh..opq"), member(b"etc/x"))

    assert [(verdict.path, verdict.whiteout) for verdict in judged(content, layer=True)] == [
        (b"etc/.wh.passwd", True),
        (b"var/.wh..wh..opq", True),
        (b".wh..wh..opq", True),
        (b"etc/x", False),
    ]


def test_whiteouts_are_literal_names_for_distro_outside_of_layers() -> None:
    (verdict,) = judged(archive(member(b".wh.x")), Policy.DISTRO)

    assert (verdict.acceptable, verdict.whiteout, verdict.findings[0].code) == (True, False, Reason.WHITEOUT)


def test_a_hard_link_of_a_layer_may_point_to_lower_layers() -> None:
    (verdict,) = judged(archive(hardlink(b"a", b"./usr//b")), layer=True)

    assert (verdict.acceptable, verdict.link) == (True, b"usr/b")


def test_rootfs_is_an_ordinary_name_in_a_layer() -> None:
    assert codes(archive(symlink(b"rootfs/a", b"../b")), layer=True) == set()


@pytest.mark.parametrize(
    "content",
    [
        old_sparse([(0, 512), (4096, 100), (8192, 0)], 8192, b"a" * 512 + b"b" * 100),
        sparse_0_0([0, 512, 4096, 100, 8192, 0], b"3", b"8192", b"a" * 512 + b"b" * 100),
        sparse_0_1(b"0,512,4096,100,8192,0", b"3", b"8192", b"a" * 512 + b"b" * 100),
        sparse_1_0(b"3\n0\n512\n4096\n100\n8192\n0\n", b"8192", b"a" * 512 + b"b" * 100),
    ],
    ids=["old", "0.0", "0.1", "1.0"],
)
def test_all_sparse_forms_say_the_same(content: bytes) -> None:
    ((entry, body), (after, _)) = entries_of(archive(content, member(b"after")))

    assert (entry.name, entry.size, entry.stored) == (b"s", 8192, 612)
    assert entry.sparse == ((0, 512), (4096, 100))
    assert body == b"a" * 512 + b"b" * 100
    assert after.name == b"after"


SPARSE_NAMES = [
    "f",
    "d/f",
    "./d/f",
    "x" * 98,
    "x" * 150,
    "d" * 150 + "/" + "y" * 150,
    "ä/ö",
    "ä" * 60,
    "ä" * 41 + "/f",
    "ä" * 42 + "/f",
    "ä" * 45 + "/f",
    "ä" * 48 + "/f",
    "d" * 85 + "/ä",
    "GNUSparseFile.1/ä",
]
"""Short and long ones, with letters for which a pax header is needed, and cut off in each part of the made-up name."""


@pytest.mark.sampled("name")
@pytest.mark.parametrize("name", SPARSE_NAMES)
@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0"])
def test_gnu_tars_made_up_names_of_sparse_files_are_taken(name: str, version: str, tmp_path: Path) -> None:
    file = tmp_path / "root" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"a" * 4096)
    os.truncate(file, 1 << 20)
    tar = ["tar", "--sparse", f"--sparse-version={version}", "--format=pax", "-cf", str(tmp_path / "archive")]
    subprocess.run([*tar, "-C", str(tmp_path / "root"), name], check=True)

    ((entry, body),) = entries_of((tmp_path / "archive").read_bytes())

    assert (entry.name, body) == (name.encode(), b"a" * 4096)
    assert entry.sparse == ((0, 4096),)


def test_a_sparse_file_may_be_named_twice_alike() -> None:
    ((entry, _),) = entries_of(archive(sparse_1_0(b"1\n4096\n0\n", b"4096", b"", path=b"s")))

    assert (entry.name, entry.size) == (b"s", 4096)


@pytest.mark.parametrize(
    "path",
    [
        b"GNUSparseFile.0/t",
        b"d/GNUSparseFile.0/s",
        b"GNUSparseFile.x/s",
        b"GNUSparseFile.0",
        b"./GNUSparseFile.0/" + b"s" * 82,
        b"d" * 100,
    ],
)
def test_any_other_name_of_a_sparse_file_is_refused(path: bytes) -> None:
    (finding,) = inspected(archive(sparse_1_0(b"0\n", b"4096", b"", path=path))).findings

    assert finding.code == Reason.EXTENSION_CONFLICT


def test_an_old_sparse_map_goes_on_in_following_blocks() -> None:
    slots = [(1024 * at, 512) for at in range(30)] + [(1 << 15, 0)]
    table = [b"%011o\0%011o\0" % slot for slot in slots]
    more = b"".join(table[4:25]) + b"\1" + bytes(7) + b"".join(table[25:]).ljust(504, b"\0") + bytes(8)
    ((entry, body),) = entries_of(archive(old_sparse(slots, 1 << 15, bytes(30 * 512), more)))

    assert entry.sparse == tuple(slots[:-1])
    assert len(body) == 30 * 512


def test_limits_are_inclusive() -> None:
    limits = Limits(entries=2, file_bytes=1000, total_bytes=1500)

    assert inspected(archive(member(b"a", bytes(1000)), member(b"b", bytes(500))), limits=limits).acceptable


def test_extension_headers_are_no_entries() -> None:
    limits = Limits(entries=2)
    content = archive(member(b"a", form="pax"), member(b"b", form="gnu"))

    assert inspected(content, limits=limits).entries == 2
    assert inspected(content, limits=limits).acceptable


def test_every_finding_is_reported_not_the_first() -> None:
    report = inspected(
        archive(member(b"../a"), member(b"/b"), symlink(b"c", b"/d"), header(b"e", kind=b"7"), member(b"f"))
    )

    assert [finding.code for finding in report.findings] == [
        Reason.PATH_TRAVERSAL,
        Reason.ABSOLUTE_PATH,
        Reason.ABSOLUTE_SYMLINK,
        Reason.UNSUPPORTED_TYPE,
    ]
    assert [finding.offset for finding in report.findings] == [0, 512, 1024, 1536]


def test_findings_beyond_some_hundred_are_counted() -> None:
    report = inspected(archive(*(member(b"../%d" % at) for at in range(700))))

    assert (len(report.findings), report.findings_left_out) == (500, 200)


def test_an_error_is_told_however_many_warnings_came_before() -> None:
    content = archive(*(member(b"a\\%d" % at) for at in range(700)), member(b"/x"))

    assert Reason.ABSOLUTE_PATH in {finding.code for finding in inspected(content).findings}


def test_too_many_hard_links_to_one_file_are_refused() -> None:
    judge = Judge(Policy.STRICT, Limits())
    judge.judge(Entry(b"a", EntryKind.FILE, 0o644, 0, 0, 0, 0, 0, 0))
    verdicts = [
        judge.judge(
            Entry(b"l%d" % at, EntryKind.HARDLINK, 0o644, 0, 0, 0, 0, 0, 0, b"a" if at % 2 else b"l0" if at else b"a")
        )
        for at in range(65_000)
    ]

    assert all(verdict.acceptable for verdict in verdicts[:64_999])
    assert [finding.code for finding in verdicts[64_999].findings] == [Reason.TOO_MANY_LINKS]


def test_padding_need_not_be_zeros_but_is_no_content() -> None:
    block = header(b"a", size=3) + b"abc" + b"x" * 509

    assert [body for _, body in entries_of(archive(block))] == [b"abc"]


def test_zeros_after_the_end_are_padding() -> None:
    assert codes(archive(member(b"a")) + bytes(1_000_000)) == set()


def test_content_may_be_left_unread() -> None:
    content = archive(member(b"a", b"x" * 3_000_000), member(b"b", b"y"))
    with descriptor(content) as fd:
        reader = TarReader(open_stream(fd, limits=Limits()), Limits())
        found = {}
        for entry in reader:
            found[entry.name] = reader.content_offset
            next(iter(reader.body()), None)

    assert found == {b"a": 512, b"b": 512 + len(padded(b"x" * 3_000_000)) + 512}


def test_directories_that_names_imply_are_told_as_entries() -> None:
    assert inspected(archive(member(b"a/b/c"), member(b"a/d"))).entries == 4
