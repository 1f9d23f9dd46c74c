"""The judge on entries as such: the short way through the rules agrees with the long one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from holdfast_images.archive.entry import ArchiveSeverity, Entry, EntryKind, Limits, Policy, Reason
from holdfast_images.archive.entry_rules import LATEST_NS
from holdfast_images.archive.header import NOBODY
from holdfast_images.archive.rules import Judge, Verdict
from holdfast_images.errors import ImageRefused

SECOND = 1_000_000_000
LETTERS = b"abcXYZ059 _-~:@%+,=#"
PARTS = b"a b rootfs dir . .. .wh.a .wh..wh..opq etc A dev run".split()
SIZES = Limits(file_bytes=500, total_bytes=1000, depth=3, xattrs_per_entry=2, xattr_bytes=2)
JUDGED_BY = [SIZES, Limits(names_bytes=12), Limits(name_bytes=12), Limits(entries=6), Limits()]
XATTRS = [b"user.x", b"user.overlay.x", b"security.capability", b"security.selinux", b"x", b""]
REMARKS = [reason.value for reason in (Reason.PAX_UNKNOWN, Reason.SIZE_OVERRIDDEN, Reason.XATTR_STRIPPED)]


def drawn_part(rng: random.Random) -> bytes:
    match rng.randrange(10):
        case 0:
            return bytes(rng.choices([each for each in range(1, 256) if each != 0x2F], k=rng.randint(1, 3)))
        case 1:
            return rng.choice([b"", b"x" * 256, b"x" * 255])
        case 2 | 3 | 4 | 5:
            return rng.choice(PARTS)
        case _:
            return bytes(rng.choices(LETTERS, k=rng.randint(1, 4)))


def drawn_name(rng: random.Random) -> bytes:
    return b"/".join(drawn_part(rng) for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4]))) or b"a"


def drawn_entry(rng: random.Random) -> Entry:
    """Every field may be anything that the parser can hand over.

    One is unusual at a time, most often: if several are, one of them hides that another was not looked at.
    """

    def is_unusual() -> bool:
        return rng.randrange(8) == 0

    kind = rng.choice(list(EntryKind)) if is_unusual() else rng.choice([EntryKind.FILE, EntryKind.DIRECTORY])
    size = rng.randint(0, 1200 if is_unusual() else 60) if kind is EntryKind.FILE else 0
    return Entry(
        name=drawn_name(rng) + (b"/" if kind is EntryKind.DIRECTORY and rng.random() < 0.5 else b""),
        kind=kind,
        mode=rng.randrange(0o10000) & (0o7777 if is_unusual() else 0o1775),
        uid=rng.randrange(NOBODY) if is_unusual() else rng.choice([0, 1000]),
        gid=rng.randrange(NOBODY) if is_unusual() else rng.choice([0, 7]),
        size=size,
        stored=size,
        mtime_ns=rng.randint(-(1 << 70), 1 << 70) if is_unusual() else rng.randint(0, LATEST_NS),
        offset=rng.randrange(1 << 40) * 512,
        linkname=drawn_name(rng) if kind in {EntryKind.SYMLINK, EntryKind.HARDLINK} else b"",
        xattrs=tuple((rng.choice(XATTRS), rng.randbytes(rng.randrange(4))) for _ in range(rng.randint(1, 3)))
        if is_unusual()
        else (),
        sparse=((0, size),) if kind is EntryKind.FILE and is_unusual() else None,
        device=(rng.randrange(3), rng.randrange(3))
        if kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}
        else (0, 0),
        remarks=((rng.choice(REMARKS), "x"),) if is_unusual() else (),
    )


def drawn_archive(rng: random.Random) -> list[Entry]:
    return [drawn_entry(rng) for _ in range(rng.randint(1, 10))]


def drawn_judging(rng: random.Random) -> dict[str, Any]:
    return {
        "policy": rng.choice(list(Policy)),
        "limits": rng.choice(JUDGED_BY),
        "keep_setuid": rng.random() < 0.5,
        "layer": rng.random() < 0.5,
    }


def test_implied_directories_count_with_every_entry_behind_them() -> None:
    judge = Judge(Policy.STRICT, Limits(entries=5))
    judge.judge(entry(b"rootfs/a/b/first"))
    judge.judge(entry(b"rootfs/a/b/second"))

    with pytest.raises(ImageRefused, match="TOO_MANY_ENTRIES"):
        judge.judge(entry(b"rootfs/a/b/third"))


LIMITS = Limits(file_bytes=500, total_bytes=1000, depth=3)
ARCHIVES = 3000


def entry(name: bytes, kind: EntryKind = EntryKind.FILE, **fields: int) -> Entry:
    return Entry(name, kind, fields.get("mode", 0o644), 0, 0, fields.get("size", 0), 0, 0, 0)


def everything_said(judge: Judge, way: Callable[[Entry], Verdict], entries: list[Entry]) -> list[object]:
    """All that becomes known of a judge: each whole verdict, what it remembers, and how it ends."""
    said: list[object] = []
    try:
        said += [way(each) for each in entries]
        said.append(judge.finish())
    except ImageRefused as refused:
        said += [refused.code, refused.detail]
    seen = judge._seen
    remembered = (seen.kinds, seen.stamps, seen.symlinks, seen.origins, seen.names_of, seen.open_to_all)
    return [*said, judge.entries, judge.total_bytes, judge.implied, judge._names, *remembered]


class Forgetful(dict[bytes, bytes]):
    """Knows no directory: every entry takes the long way."""

    def get(self, key: bytes, default: Any = None) -> Any:
        return default


def ways_differ(kind: type[Judge], entries: list[Entry], how: dict[str, Any]) -> bool:
    short, long = kind(**how), kind(**how)
    long._parents = Forgetful()

    return everything_said(short, short.judge, entries) != everything_said(long, long.judge, entries)


def test_the_short_way_is_the_long_way(rng: random.Random) -> None:
    for _ in range(ARCHIVES):
        entries, how = drawn_archive(rng), drawn_judging(rng)

        assert not ways_differ(Judge, entries, how), (entries, how)


NEW_RULES: dict[str, Callable[[Entry], bool]] = {
    "owner": lambda each: each.uid > 1000,
    "group": lambda each: each.gid > 1000,
    "both owners": lambda each: each.uid == 1000 and each.gid == 7,
    "time": lambda each: each.mtime_ns // SECOND > 1 << 31,
    "fraction of a second": lambda each: each.mtime_ns % SECOND != 0,
    "group may write": lambda each: bool(each.mode & 0o020),
    "sticky file": lambda each: each.kind is EntryKind.FILE and bool(each.mode & 0o1000),
    "byte in a name": lambda each: b"~" in each.name,
    "end of a name": lambda each: each.name.endswith(b" "),
    "size": lambda each: each.size > 40,
    "sparse": lambda each: each.sparse is not None,
    "directory": lambda each: each.kind is EntryKind.DIRECTORY and each.name.endswith(b"/"),
}


@pytest.mark.parametrize("rule", NEW_RULES)
def test_a_new_rule_that_the_short_way_skips_would_be_noticed(rule: str, rng: random.Random) -> None:
    class Stricter(Judge):
        def _judge_unusual(self, entry: Entry) -> Verdict:
            verdict = super()._judge_unusual(entry)
            verdict.left_out |= NEW_RULES[rule](entry)
            return verdict

    assert any(ways_differ(Stricter, drawn_archive(rng), drawn_judging(rng)) for _ in range(ARCHIVES))


def test_what_is_accepted_lies_inside_and_below_directories(rng: random.Random) -> None:
    for policy in [*Policy] * (ARCHIVES // 10):
        made: dict[bytes, EntryKind] = {}
        judge = Judge(policy, LIMITS)
        for each in drawn_archive(rng):
            verdict = judge.judge(each)
            if not verdict.acceptable:
                assert any(finding.severity is ArchiveSeverity.ERROR for finding in verdict.findings)
                continue
            parts = verdict.path.split(b"/")
            above = [made.get(b"/".join(parts[:at]), EntryKind.DIRECTORY) for at in range(1, len(parts))]
            assert not {b"..", b"."} & set(parts)
            assert not verdict.path.startswith(b"/")
            assert set(above) <= {EntryKind.DIRECTORY}
            assert made.get(verdict.path, each.kind) is each.kind
            assert verdict.path not in made or each.kind is EntryKind.DIRECTORY
            made[verdict.path] = each.kind


def test_a_refused_entry_counts_as_not_there() -> None:
    judge = Judge(Policy.STRICT, Limits())
    refused = judge.judge(entry(b"a", EntryKind.FIFO))
    taken = judge.judge(entry(b"a"))

    assert (refused.acceptable, taken.acceptable) == (False, True)


def test_the_total_is_told_once_however_many_files_follow() -> None:
    judge = Judge(Policy.STRICT, LIMITS)
    codes = [[finding.code for finding in judge.judge(entry(b"%d" % at, size=400)).findings] for at in range(5)]

    assert codes == [[], [], [Reason.TOTAL_SIZE], [], []]
    assert judge.total_bytes == 2000


def test_depth_is_limited_on_the_short_way_too() -> None:
    judge = Judge(Policy.STRICT, LIMITS)
    verdicts = [judge.judge(entry(name)) for name in (b"a/b/c", b"a/b/d", b"a/b/c2", b"a/b/e/f", b"a/b/e/g")]

    assert [verdict.acceptable for verdict in verdicts] == [True, True, True, False, False]


def test_a_directory_spelt_with_a_dot_does_not_mislead_the_next_entry() -> None:
    judge = Judge(Policy.STRICT, Limits())
    verdicts = [
        judge.judge(entry(b"a/b/.", EntryKind.DIRECTORY)),
        judge.judge(entry(b"a/b/c")),
        judge.judge(entry(b"a/./d")),
    ]

    assert [verdict.path for verdict in verdicts] == [b"a/b", b"a/b/c", b"a/d"]


@pytest.mark.parametrize("policy", list(Policy))
def test_nothing_at_all_is_an_empty_archive(policy: Policy) -> None:
    assert [finding.code for finding in Judge(policy, Limits()).finish()] == [Reason.EMPTY_ARCHIVE]


@pytest.mark.parametrize("below, layer", [(b"a/b", True), (b"a/b", False), (b"a/.wh.b", False)])
def test_only_a_whiteout_of_a_layer_may_be_useless(below: bytes, layer: bool) -> None:
    judge = Judge(Policy.DISTRO, Limits(), layer=layer)
    judge.judge(entry(b"a"))
    refused = judge.judge(entry(below))

    assert [finding.code for finding in refused.findings] == [Reason.PARENT_NOT_DIRECTORY]


def test_directories_that_names_imply_count_and_the_limit_is_inclusive() -> None:
    taken = Judge(Policy.STRICT, Limits(entries=3)).judge(entry(b"a/b/c"))

    assert taken.acceptable
    with pytest.raises(ImageRefused) as refused:
        Judge(Policy.STRICT, Limits(entries=2)).judge(entry(b"a/b/c"))
    assert refused.value.code == Reason.TOO_MANY_ENTRIES


def test_of_two_headers_of_one_thing_it_is_told_which_says_what() -> None:
    judge = Judge(Policy.DISTRO, Limits())
    first = Entry(b"a", EntryKind.DIRECTORY, 0o755, 1, 2, 0, 0, 3, 0)
    second = Entry(b"a", EntryKind.DIRECTORY, 0o700, 4, 5, 0, 0, 6, 0)
    third = Entry(b"a", EntryKind.DIRECTORY, 0o700, 4, 5, 0, 0, 6, 0, xattrs=((b"user.x", b"y"),))
    details = [finding.detail for each in (first, second, third) for finding in judge.judge(each).findings]

    changed = "mode 0700 instead of 0755, owner 4 instead of 1, group 5 instead of 2, time 6 ns instead of 3 ns"
    assert details == [f"{changed}: the last counts", "other extended attributes: the last counts"]
