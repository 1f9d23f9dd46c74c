"""The judge on entries as such: the short way through the rules agrees with the long one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_images.archive.entry import Entry, Kind, Limits, Policy, Severity
from holdfast_images.archive.reasons import Reason
from holdfast_images.archive.rules import Judge, Verdict

PART = st.one_of(
    st.sampled_from([b"a", b"b", b"rootfs", b".", b"..", b"", b".wh.a", b"etc", b"x" * 256, b"\n", b"A"]),
    st.binary(min_size=1, max_size=3).filter(lambda name: b"\0" not in name and b"/" not in name),
)
NAMES = st.lists(PART, min_size=1, max_size=5).map(b"/".join).filter(bool)
SECOND = 1_000_000_000
ENTRIES = st.builds(
    lambda name, kind, mode, owner, size, time, target, xattrs, remarks: Entry(
        name,
        kind,
        mode,
        owner[0],
        owner[1],
        size if kind is Kind.FILE else 0,
        0,
        time,
        0,
        target if kind in {Kind.SYMLINK, Kind.HARDLINK} else b"",
        xattrs,
        remarks=remarks,
    ),
    NAMES,
    st.sampled_from(list(Kind)),
    st.sampled_from([0o644, 0o755, 0o777, 0o4755, 0o1777]),
    st.tuples(st.sampled_from([0, 1000]), st.sampled_from([0, 7])),
    st.integers(0, 600),
    st.sampled_from([0, 5 * SECOND, -SECOND, 1 << 70]),
    NAMES,
    st.sampled_from([(), (), (), ((b"user.x", b"y"),), ((b"security.capability", b"y"),)]),
    st.sampled_from([(), (), (), ((Reason.PAX_UNKNOWN, "x"),), ((Reason.SIZE_OVERRIDDEN, "x"),)]),
)
LIMITS = Limits(file_bytes=500, total_bytes=1000, depth=3)


def entry(name: bytes, kind: Kind = Kind.FILE, **fields: int) -> Entry:
    return Entry(name, kind, fields.get("mode", 0o644), 0, 0, fields.get("size", 0), 0, 0, 0)


@given(st.lists(ENTRIES, max_size=12), st.sampled_from(list(Policy)), st.booleans())
@settings(max_examples=500)
def test_the_short_way_is_the_long_way(entries: list[Entry], policy: Policy, layer: bool) -> None:
    short, long = Judge(policy, LIMITS, layer=layer), Judge(policy, LIMITS, layer=layer)
    verdicts = [(short.judge(each), _the_long_way(long, each)) for each in entries]

    assert [one for one, _ in verdicts] == [other for _, other in verdicts]
    assert short.finish() == long.finish()
    assert (short.total_bytes, short.implied, short._names) == (long.total_bytes, long.implied, long._names)


def _the_long_way(judge: Judge, each: Entry) -> Verdict:
    judge.entries += 1
    return judge._judge_unusual(each)


@given(st.lists(ENTRIES, max_size=12), st.sampled_from(list(Policy)))
def test_what_is_accepted_lies_inside_and_below_directories(entries: list[Entry], policy: Policy) -> None:
    judge = Judge(policy, LIMITS)
    made: dict[bytes, Kind] = {}
    for each in entries:
        verdict = judge.judge(each)
        if not verdict.acceptable:
            assert any(finding.severity is Severity.ERROR for finding in verdict.findings)
            continue
        parts = verdict.path.split(b"/")
        assert not {b"..", b"."} & set(parts)
        assert not verdict.path.startswith(b"/")
        assert all(made.get(b"/".join(parts[:at]), Kind.DIRECTORY) is Kind.DIRECTORY for at in range(1, len(parts)))
        assert made.get(verdict.path, each.kind) is each.kind
        assert verdict.path not in made or each.kind is Kind.DIRECTORY
        made[verdict.path] = each.kind


def test_a_refused_entry_counts_as_not_there() -> None:
    judge = Judge(Policy.STRICT, Limits())
    refused = judge.judge(entry(b"a", Kind.FIFO))
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
        judge.judge(entry(b"a/b/.", Kind.DIRECTORY)),
        judge.judge(entry(b"a/b/c")),
        judge.judge(entry(b"a/./d")),
    ]

    assert [verdict.path for verdict in verdicts] == [b"a/b", b"a/b/c", b"a/d"]


@pytest.mark.parametrize("policy", list(Policy))
def test_nothing_at_all_is_an_empty_archive(policy: Policy) -> None:
    assert [finding.code for finding in Judge(policy, Limits()).finish()] == [Reason.EMPTY_ARCHIVE]
