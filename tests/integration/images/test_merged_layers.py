"""What is judged of all layers together is what they make on disk; and what only all of them show is refused."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_images.archive.compression import open_stream
from holdfast_images.archive.entry import Entry, EntryKind, Limits, Policy, Reason
from holdfast_images.archive.extract import Extraction
from holdfast_images.archive.inspection import MergedLayers
from holdfast_images.archive.parallel import LayeredTree
from holdfast_images.archive.reader import TarReader
from holdfast_images.archive.rules import Judge
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import archive, descriptor, directory, hardlink, member, symlink
from tests.support.images.extracting import extracted, inspected_by_child, oci

F, D, S, H = member, directory, symlink, hardlink
NAMES = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3).map(b"/".join)
TARGETS = st.lists(st.sampled_from([b"a", b"b", b"c", b"..", b"."]), min_size=1, max_size=4).map(b"/".join)
ENTRIES = st.one_of(
    st.builds(lambda name, size: F(name, b"x" * size), NAMES, st.integers(0, 20)),
    st.builds(D, NAMES),
    st.builds(S, NAMES, TARGETS),
    st.builds(H, NAMES, NAMES),
    st.builds(lambda name: F(b"/".join([*name.split(b"/")[:-1], b".wh." + name.rpartition(b"/")[2]])), NAMES),
    st.builds(lambda name: F(name + b"/.wh..wh..opq"), NAMES),
)
LAYERS = st.lists(st.lists(ENTRIES, min_size=1, max_size=6), min_size=1, max_size=4)
LIMITS = Limits()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def on_disk(root: Path) -> dict[bytes, tuple[EntryKind, bytes]]:
    found = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in folders + files:
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, os.fsencode(root))
            if os.path.islink(path):
                found[inside] = (EntryKind.SYMLINK, os.readlink(path))
            else:
                found[inside] = (EntryKind.DIRECTORY if os.path.isdir(path) else EntryKind.FILE, b"")
    return found


@given(LAYERS)
@settings(max_examples=400)
def test_the_merged_tree_is_the_one_on_disk(layers: list[list[bytes]]) -> None:
    """Every layer is applied to both; where one refuses, so does the other."""
    root = Path(tempfile.mkdtemp(prefix="merged-"))
    fd = os.open(root, os.O_RDONLY)
    umask = os.umask(0)
    # A judge of its own per layer, and the two trees side by side.
    tree = LayeredTree(fd, depth=LIMITS.depth, keep_owner=False)
    work = Extraction(Policy.DISTRO, LIMITS, keep_setuid=False, progress=lambda *_: None)
    merged = MergedLayers(Policy.DISTRO, LIMITS)
    try:
        for layer in layers:
            content = archive(*layer)
            wanted = refusal(partial(apply, merged, content))
            tree.begin_layer()
            got = refusal(partial(write, work, tree, content))
            assert (wanted is None) == (got is None), (wanted, got)
            if wanted is not None:
                return
        tree.close()

        links = {path: (EntryKind.SYMLINK, target) for path, target in merged.symlinks.items()}
        kinds = {path: (kind, b"") for path, kind in merged.kinds.items() if kind is not EntryKind.SYMLINK}
        assert kinds | links == on_disk(root)
        files = {entry.stat().st_ino: entry.stat().st_size for entry in walk_files(root)}
        assert merged.totals() == (
            sum(k is not EntryKind.DIRECTORY for k in merged.kinds.values()),
            sum(files.values()),
        )
    finally:
        os.umask(umask)
        os.close(fd)
        shutil.rmtree(root)


def walk_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if not path.is_symlink() and path.is_file()]


def refusal(do: Callable[[], None]) -> str | None:
    try:
        do()
    except ImageRefused as refused:
        return refused.code
    return None


def write(work: Extraction, tree: LayeredTree, content: bytes) -> None:
    with descriptor(content) as fd, closing(open_stream(fd, limits=LIMITS)) as stream:
        work.write(stream, tree, layer="layer")


def apply(merged: MergedLayers, content: bytes) -> None:
    merged.begin_layer()
    judge = Judge(Policy.DISTRO, LIMITS, layer=True)
    with descriptor(content) as fd, closing(open_stream(fd, limits=LIMITS)) as stream:
        entries: list[Entry] = list(TarReader(stream, LIMITS))
    for entry in entries:
        verdict = judge.judge(entry)
        errors = [finding for finding in verdict.findings if finding.severity == "error"]
        if errors:
            raise ImageRefused(errors[0].code, errors[0].detail)
        merged.apply(entry, verdict)
    if errors := [finding for finding in judge.finish() if finding.severity == "error"]:
        raise ImageRefused(errors[0].code, errors[0].detail)


def codes(target: Path, policy: Policy, *layers: list[bytes]) -> set[str]:
    """The errors of inspecting; extracting must be refused for one of them."""
    content = oci(*(archive(*layer) for layer in layers), compression="none")
    shutil.rmtree(target, ignore_errors=True)
    report = inspected_by_child(content, target, policy)
    found = {finding.code for finding in report.findings if finding.severity == "error"}
    if found:
        with pytest.raises(ImageRefused) as refused:
            extracted(content, target, policy=policy)
        assert refused.value.code in found
    else:
        extracted(content, target, policy=policy)
    return found


DEEP = [b"p%d" % number for number in range(8)]


@pytest.mark.parametrize("policy", list(Policy))
def test_a_link_that_a_later_layer_makes_lead_out_is_refused(target: Path, policy: Policy) -> None:
    """By its text, and in its own layer, it stays inside; the layer above turns the directories on its way to links."""
    lower = [*(D(b"/".join(DEEP[: at + 1])) for at in range(8)), D(b"etc")]
    lower.append(S(b"etc/secret", b"../" + b"/".join(DEEP) + b"/.." * 8 + b"/etc/passwd", form="pax"))
    upper = [S(name, b".") for name in DEEP]

    assert codes(target, policy, lower, upper) == {Reason.SYMLINK_ESCAPES}


def test_a_link_is_judged_where_it_really_lies(target: Path) -> None:
    """Written by way of a lower layer's link it is nearer to the root than its name says."""
    lower = [D(b"a/b/c"), S(b"a/b/c/up", b"../../..")]
    upper = [S(b"a/b/c/up/secret", b"../../../../etc/passwd")]

    assert codes(target, Policy.STRICT, lower, upper) == {Reason.SYMLINK_ESCAPES}


@pytest.mark.parametrize("entry", [F(b"l/x"), F(b"l/.wh.x"), F(b"l/.wh..wh..opq"), H(b"h", b"l/x")])
def test_no_link_leads_back_from_what_is_not_there(target: Path, entry: bytes) -> None:
    lower = [D(b"etc"), F(b"etc/x"), S(b"l", b"gone/../etc")]

    assert codes(target, Policy.STRICT, lower, [entry]) == {Reason.PARENT_NOT_DIRECTORY}
    assert codes(target, Policy.DISTRO, lower, [entry]) == {Reason.PARENT_NOT_DIRECTORY}
    assert codes(target, Policy.STRICT, [D(b"gone"), *lower], [entry]) == set()


def test_a_link_that_a_later_layer_takes_away_is_no_harm(target: Path) -> None:
    lower = [D(b"a"), S(b"a/l", b"../b/../../etc"), S(b"b", b"a")]

    assert codes(target, Policy.STRICT, [D(b"a/x"), S(b"a/l", b"x/../../b")], [F(b"a/.wh.l"), S(b"b", b"a")]) == set()
    assert codes(target, Policy.STRICT, lower) == {Reason.SYMLINK_ESCAPES}


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_what_everybody_may_write_to_is_no_etc_in_any_layer(target: Path, mode: int) -> None:
    lower, upper = [D(b"data", mode=mode), F(b"data/passwd")], [S(b"etc", b"data")]

    assert codes(target, Policy.STRICT, lower, upper) == {Reason.WORLD_WRITABLE_CRITICAL}
    assert codes(target, Policy.STRICT, upper, lower) == {Reason.WORLD_WRITABLE_CRITICAL}


def test_a_hard_link_to_a_lower_layer_has_its_header(target: Path) -> None:
    lower = [F(b"key", b"secret", mode=0o600)]

    assert codes(target, Policy.STRICT, lower, [H(b"name", b"key", mode=0o666)]) == {Reason.HARDLINK_HEADER}
    assert codes(target, Policy.DISTRO, lower, [H(b"name", b"key", mode=0o666)]) == set()
    assert (target / "rootfs/name").stat().st_mode & 0o777 == 0o600


def test_a_hard_link_cannot_replace_the_directory_of_its_file(target: Path) -> None:
    assert codes(target, Policy.STRICT, [F(b"a/b", b"x")], [H(b"a", b"a/b")]) == {Reason.HARDLINK_TARGET}


def test_what_is_counted_is_what_is_there_in_the_end(target: Path) -> None:
    lower = [F(b"a", b"x" * 500), F(b"b", b"x" * 1000), H(b"c", b"b"), D(b"d"), F(b"d/e", b"x" * 7)]
    upper = [F(b".wh.a"), F(b"b", b"y" * 10), F(b".wh.d")]
    made = extracted(oci(archive(*lower), archive(*upper), compression="none"), target)

    assert (made.file_count, made.total_bytes) == (2, 1010)


def test_directories_implied_in_several_layers_are_limited_together(target: Path) -> None:
    layers = [archive(F(b"%d/b/c/d/e" % number)) for number in range(3)]
    content = oci(*layers, compression="none")
    limits = Limits(entries=12)
    report = inspected_by_child(content, target, Policy.STRICT, limits=limits)

    assert report.entries > limits.entries
    assert {finding.code for finding in report.findings} == {Reason.TOO_MANY_ENTRIES}
    with pytest.raises(ImageRefused) as refused:
        extracted(content, target, policy=Policy.STRICT, limits=limits)
    assert refused.value.code == Reason.TOO_MANY_ENTRIES
