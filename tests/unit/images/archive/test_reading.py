"""What the reader promises to those who use it."""

from __future__ import annotations

import pytest

from holdfast_images.archive.compression import BUFFER, open_stream
from holdfast_images.archive.entry import EntryKind, Limits, Reason
from holdfast_images.archive.reader import TarReader
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import (
    COMPRESSIONS,
    FORMS,
    Compression,
    Form,
    archive,
    compressed,
    descriptor,
    directory,
    entries_of,
    hardlink,
    header,
    member,
    pax,
    symlink,
)


@pytest.mark.parametrize("form", FORMS)
def test_an_entry_has_every_fact_of_its_headers(form: Form) -> None:
    content = archive(
        member(b"first", b"x"),
        member(b"dir/file", b"content", form=form, mode=0o640, uid=7, gid=8, mtime=9),
        symlink(b"soft", b"../target", form=form),
        hardlink(b"hard", b"dir/file", form=form),
        directory(b"dir/", form=form),
        member(b"null", kind=b"3", device=(1, 3), form=form),
    )
    _, (file, body), (soft, _), (hard, _), (folder, _), (null, _) = entries_of(content)

    assert (file.name, file.kind, file.mode, file.uid, file.gid) == (b"dir/file", EntryKind.FILE, 0o640, 7, 8)
    assert (file.size, file.stored, file.mtime_ns, file.offset, body) == (7, 7, 9_000_000_000, 1024, b"content")
    assert (soft.kind, soft.linkname) == (EntryKind.SYMLINK, b"../target")
    assert (hard.kind, hard.linkname) == (EntryKind.HARDLINK, b"dir/file")
    assert (folder.kind, folder.name, folder.size) == (EntryKind.DIRECTORY, b"dir/", 0)
    assert (null.kind, null.device) == (EntryKind.CHARACTER_DEVICE, (1, 3))


@pytest.mark.parametrize("form", FORMS)
def test_a_refusal_says_where(form: Form) -> None:
    content = archive(member(b"good"), member(b"evil", kind=b"7", form=form))
    with pytest.raises(ImageRefused) as refused:
        entries_of(content)

    assert refused.value.code == Reason.UNSUPPORTED_TYPE
    assert refused.value.entry == "evil"
    assert refused.value.offset == len(content) - 1024 - 512


def test_content_that_is_cut_off_is_refused_before_the_entry_is_given() -> None:
    seen: list[bytes] = []
    with descriptor(archive(member(b"a"), header(b"b", size=10_000))) as fd:
        reader = TarReader(open_stream(fd, limits=Limits()), Limits())
        with pytest.raises(ImageRefused) as refused:
            seen.extend(entry.name for entry in reader)

    assert seen == [b"a"]
    assert (refused.value.code, refused.value.entry, refused.value.offset) == (Reason.TRUNCATED, "b", 512)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("read", [0, 1, 2])
def test_content_may_be_read_in_part(compression: Compression, read: int) -> None:
    large = b"".join(b"%08d" % at for at in range(BUFFER // 2))
    content = compressed(archive(member(b"a", large), member(b"b", b"after")), compression)
    pieces = []
    with descriptor(content) as fd:
        reader = TarReader(open_stream(fd, limits=Limits()), Limits())
        entries = iter(reader)
        next(entries)
        body = iter(reader.body())
        pieces = [bytes(next(body)) for _ in range(read)]
        after = next(entries)
        rest = b"".join(map(bytes, reader.body()))

    assert large.startswith(b"".join(pieces))
    assert (after.name, rest) == (b"b", b"after")


@pytest.mark.parametrize("field", [b"\0hidden", b"\0" * 99 + b"x"])
def test_nothing_hides_behind_the_end_of_an_empty_target(field: bytes) -> None:
    content = archive(member(b"a"), member(b"b"), header(b"c", linkname=field))
    with pytest.raises(ImageRefused) as refused:
        entries_of(content)

    assert refused.value.code == Reason.NUL_IN_NAME


def test_many_different_owners_are_told_apart() -> None:
    content = archive(*(member(b"%d" % at, uid=at, gid=at + 1, mode=at % 512) for at in range(6000)))

    assert [(e.uid, e.gid, e.mode) for e, _ in entries_of(content)] == [(at, at + 1, at % 512) for at in range(6000)]


@pytest.mark.parametrize("count, refused", [(100, False), (101, True)])
def test_entries_are_counted_whichever_way_they_are_read(count: int, refused: bool) -> None:
    members = [member(b"%d" % at, form=FORMS[at % 3]) for at in range(count)]
    try:
        found = str(len(entries_of(archive(*members), Limits(entries=100))))
    except ImageRefused as error:
        found = error.code

    assert found == (Reason.TOO_MANY_ENTRIES if refused else "100")


def test_a_time_before_1970_is_read_from_a_pax_header() -> None:
    _, (entry, _) = entries_of(archive(member(b"x"), pax({b"mtime": b"-5"}), header(b"a")))

    assert entry.mtime_ns == -5_000_000_000


def test_what_a_pax_header_says_is_about_one_entry() -> None:
    content = archive(member(b"x"), pax({b"path": b"a", b"mtime": b"1"}), header(b"b", mtime=2), header(b"c", mtime=3))
    found = [(entry.name, entry.mtime_ns // 10**9, entry.offset) for entry, _ in entries_of(content)]

    assert found[1:] == [(b"a", 1, 512), (b"c", 3, 512 * 4)]
