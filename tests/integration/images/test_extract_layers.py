"""Layers, applied by the real child: what OCI says about whiteouts, and what a layer may do to those below it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.parallel import LayeredTree
from holdfast_images.archive.tree import Attributes
from holdfast_images.errors import ImageRefused
from tests.hostile.corpus import ATTACKS, Attack
from tests.support.images.archives import archive, directory, hardlink, member, symlink
from tests.support.images.extracting import canaries, extracted, facts, oci

F, D, S, H = member, directory, symlink, hardlink


pytestmark = pytest.mark.usefixtures("writers")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def applied(target: Path, *layers: list[bytes]) -> Path:
    """Where the layers were applied."""
    extracted(oci(*(archive(*layer) for layer in layers), compression="none"), target)
    return target / "rootfs"


def names(root: Path) -> list[str]:
    return sorted(set(facts(root)) - {"."})


def test_a_later_layer_replaces_a_file(target: Path) -> None:
    root = applied(target, [F(b"etc/a", b"old"), F(b"etc/b", b"kept")], [F(b"etc/a", b"new")])

    assert (root / "etc/a").read_bytes() == b"new"
    assert (root / "etc/b").read_bytes() == b"kept"


def test_a_whiteout_hides_a_file_and_a_whole_directory(target: Path) -> None:
    lower = [F(b"a/x"), F(b"a/y"), F(b"b/deep/er/x"), F(b"c")]
    root = applied(target, lower, [F(b"a/.wh.x"), F(b".wh.b")])

    assert names(root) == ["a", "a/y", "c"]


@pytest.mark.parametrize("first", ["whiteout", "entry"])
def test_a_whiteout_does_not_hide_what_its_own_layer_brings(target: Path, first: str) -> None:
    entries = [D(b"d"), F(b"d/new", b"new"), F(b"f", b"new")]
    marks = [F(b".wh.d"), F(b".wh.f")]
    upper = marks + entries if first == "whiteout" else entries + marks
    root = applied(target, [D(b"d"), F(b"d/old"), D(b"d/sub"), F(b"d/sub/old"), F(b"f", b"old")], upper)

    assert names(root) == ["d", "d/new", "f"]
    assert (root / "f").read_bytes() == b"new"


@pytest.mark.parametrize("first", ["mark", "entry"])
def test_an_opaque_directory_shows_only_its_own_layer(target: Path, first: str) -> None:
    entries = [F(b"d/new"), F(b"d/sub/new")]
    mark = [D(b"d"), F(b"d/.wh..wh..opq")]
    upper = mark + entries if first == "mark" else [D(b"d"), *entries, mark[1]]
    root = applied(target, [F(b"d/old"), F(b"d/sub/old"), F(b"other")], upper)

    assert names(root) == ["d", "d/new", "d/sub", "d/sub/new", "other"]


def test_an_opaque_root_hides_everything_below(target: Path) -> None:
    root = applied(target, [F(b"a/x"), F(b"b")], [F(b".wh..wh..opq"), F(b"c")])

    assert names(root) == ["c"]


def test_whiteouts_of_what_is_not_there_change_nothing(target: Path) -> None:
    root = applied(target, [F(b"a")], [F(b".wh.b"), F(b"missing/.wh.c"), F(b"missing/.wh..wh..opq")])

    assert names(root) == ["a"]


def test_what_was_hidden_may_come_again(target: Path) -> None:
    root = applied(target, [F(b"d/a", b"1")], [F(b".wh.d")], [F(b"d/b", b"3")])

    assert names(root) == ["d", "d/b"]


def test_a_directory_that_appears_again_keeps_its_content_and_is_told_about_anew(target: Path) -> None:
    root = applied(
        target, [D(b"d", mode=0o700, mtime=1), F(b"d/a")], [D(b"d", mode=0o751, mtime=1_000_000)], [F(b"d/b")]
    )

    assert names(root) == ["d", "d/a", "d/b"]
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o751
    assert (root / "d").stat().st_mtime == 1_000_000


def test_the_root_is_told_about_by_the_layers(target: Path) -> None:
    root = applied(target, [D(b"./", mode=0o711, mtime=9), F(b"./a")])

    assert stat.S_IMODE(root.stat().st_mode) == 0o711
    assert root.stat().st_mtime == 9


KINDS = {"file": [F(b"x", b"f")], "directory": [D(b"x"), F(b"x/inner", b"i")], "symlink": [S(b"x", b"etc")]}


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_anything_may_become_anything_in_a_later_layer(target: Path, before: str, after: str) -> None:
    base = [D(b"etc"), F(b"etc/canary", b"c")]
    root = applied(target, base + KINDS[before], KINDS[after])

    kind = facts(root)["x"].kind
    assert kind == {"file": "-", "directory": "d", "symlink": "l"}[after]
    assert (root / "etc/canary").read_bytes() == b"c"
    assert ("x/inner" in names(root)) == (after == "directory")


def test_a_hard_link_may_lead_to_a_file_of_a_lower_layer(target: Path) -> None:
    root = applied(target, [F(b"d/a", b"x")], [H(b"b", b"d/a")])

    assert (root / "b").stat().st_ino == (root / "d/a").stat().st_ino


def test_a_replaced_file_leaves_its_other_names_alone(target: Path) -> None:
    root = applied(target, [F(b"a", b"old"), H(b"b", b"a")], [F(b"a", b"new")])

    assert (root / "b").read_bytes() == b"old"
    assert (root / "a").read_bytes() == b"new"


def test_a_hard_link_to_something_else_than_a_file_of_a_lower_layer_is_refused(target: Path) -> None:
    for number, lower in enumerate(([S(b"a", b"/etc/passwd")], [D(b"a")], [F(b"b")])):
        with pytest.raises(ImageRefused) as refused:
            applied(target.with_name(f"target{number}"), lower, [H(b"link", b"a")])
        assert refused.value.code == "HARDLINK_TARGET"


# --- symbolic links of lower layers on the way --------------------------------------------------------------


@pytest.mark.parametrize("link", [b"usr/lib", b"/usr/lib", b"./usr//lib/", b"usr/../usr/lib", b"other"])
def test_a_link_of_a_lower_layer_is_followed_inside_the_root(target: Path, link: bytes) -> None:
    lower = [D(b"usr/lib"), F(b"usr/lib/old"), S(b"other", b"usr/lib"), S(b"lib", link)]
    root = applied(target, lower, [F(b"lib/new", b"n"), D(b"lib/sub"), F(b"lib/sub/x"), F(b"lib/.wh.old")])

    assert names(root / "usr/lib") == ["new", "sub", "sub/x"]
    assert (root / "lib").is_symlink()


@pytest.mark.parametrize("link", [b"/", b"/etc", b"etc/../etc", b"etc"])
def test_a_link_that_points_outside_of_the_host_stays_inside_the_root(
    tmp_path: Path, target: Path, link: bytes
) -> None:
    with canaries(tmp_path):
        root = applied(target, [D(b"etc"), S(b"d", link)], [F(b"d/pwned", b"x"), F(b"d/.wh.passwd")])

    assert {"etc/pwned", "pwned"} & set(names(root))
    assert not Path("/etc/pwned").exists()
    assert not Path("/pwned").exists()


@pytest.mark.parametrize("path", [b"../../../../etc", b"/../../etc/.", b"etc/../../../etc"])
def test_above_the_root_is_the_root(tmp_path: Path, path: bytes) -> None:
    """The rules refuse links that climb; should one be there, it is followed as a process in the root would."""
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/d").symlink_to(os.fsdecode(path))
    root = os.open(tmp_path / "root", os.O_RDONLY)
    umask = os.umask(0)
    tree = LayeredTree(root, depth=64, keep_owner=False)
    tree.add_symlink(b"d/inside", Attributes(0o777, 0, 0, 5), b"x")
    tree.finish()
    os.umask(umask)
    os.close(root)

    assert names(tmp_path / "root") == ["d", "etc", "etc/inside"]


def test_a_link_to_nothing_makes_what_it_points_to(target: Path) -> None:
    root = applied(target, [S(b"run", b"/var/run")], [F(b"run/pid", b"1")])

    assert (root / "var/run/pid").read_bytes() == b"1"
    assert stat.S_IMODE((root / "var").stat().st_mode) == 0o755


@pytest.mark.parametrize("loop", [[S(b"a", b"a")], [S(b"a", b"b"), S(b"b", b"a")], [S(b"a", b"a/a")]])
def test_a_loop_of_links_is_refused(target: Path, loop: list[bytes]) -> None:
    with pytest.raises(ImageRefused) as refused:
        applied(target, loop, [F(b"a/x")])
    assert refused.value.code == "SYMLINK_LOOP"


def test_a_chain_of_links_may_be_as_long_as_linux_follows(target: Path) -> None:
    chain = [S(b"l%d" % number, b"l%d" % (number + 1)) for number in range(40)]
    root = applied(target.with_name("target-40"), [D(b"l40"), *chain], [F(b"l0/x")])
    with pytest.raises(ImageRefused):
        applied(target, [D(b"l41"), *chain, S(b"l40", b"l41")], [F(b"l0/x")])

    assert (root / "l40/x").exists()


def test_links_cannot_make_paths_deeper_than_the_limit(target: Path) -> None:
    deep = b"/".join([b"d"] * 200)
    with pytest.raises(ImageRefused) as refused:
        applied(target, [D(deep, form="pax"), S(b"l", deep, form="pax")], [F(b"l/" + b"d/" * 100 + b"x", form="pax")])
    assert refused.value.code == "MAX_DEPTH"


def test_a_file_of_a_lower_layer_on_the_way_is_refused(target: Path) -> None:
    with pytest.raises(ImageRefused) as refused:
        applied(target, [F(b"a")], [F(b"a/b")])
    assert refused.value.code == "PARENT_NOT_DIRECTORY"


@pytest.mark.parametrize(
    "lower, upper",
    [
        ([D(b"etc"), S(b"e", b"etc")], [F(b"e/passwd", mode=0o666)]),
        ([D(b"etc"), S(b"e", b"/etc")], [D(b"e/ssh", mode=0o777)]),
        ([F(b"x", mode=0o666)], [H(b"etc/passwd", b"x", mode=0o644)]),
    ],
    ids=["file", "directory", "hard link"],
)
def test_lower_layers_do_not_lead_what_everybody_may_write_to_critical_places(
    target: Path, lower: list[bytes], upper: list[bytes]
) -> None:
    with pytest.raises(ImageRefused) as refused:
        applied(target, lower, upper)
    assert refused.value.code == "WORLD_WRITABLE_CRITICAL"


def test_what_a_link_alias_has_hidden_and_written_is_the_same_layer(target: Path) -> None:
    """The whiteout comes by one name, the entry by the other."""
    root = applied(
        target,
        [D(b"usr/lib"), F(b"usr/lib/x", b"old"), F(b"usr/lib/y", b"old"), S(b"lib", b"usr/lib")],
        [F(b"usr/lib/x", b"new"), F(b"lib/.wh.x"), F(b"lib/.wh.y")],
    )

    assert names(root / "usr/lib") == ["x"]
    assert (root / "usr/lib/x").read_bytes() == b"new"


def test_a_directory_that_was_replaced_by_other_names_is_no_obstacle_to_a_whiteout(target: Path) -> None:
    root = applied(
        target,
        [D(b"usr/lib"), S(b"lib", b"usr/lib"), S(b"lib64", b"usr/lib")],
        [F(b"usr/lib/d/x"), F(b"lib/d"), D(b"lib64/d"), F(b"lib64/d/.wh.x")],
    )

    assert names(root / "usr/lib") == ["d"]


def test_a_link_that_becomes_a_directory_is_not_followed_any_more(target: Path) -> None:
    root = applied(target, [D(b"real"), S(b"d", b"real")], [D(b"d"), F(b"d/x", b"1")], [F(b"d/y", b"2")])

    assert names(root) == ["d", "d/x", "d/y", "real"]


def test_more_directories_than_are_kept_open(target: Path) -> None:
    many = range(600)
    lower = [F(b"d%d/e/f" % number, b"%d" % number) for number in many]
    upper = [H(b"d%d/e/g" % number, b"d%d/e/f" % ((number + 300) % 600)) for number in many]
    upper += [F(b"d%d/.wh.e" % number) for number in range(100)]
    root = applied(target, lower, upper)

    assert (root / "d500/e/g").read_bytes() == b"200"
    assert sorted(os.listdir(root / "d5/e")) == ["g"]


def test_limits_count_all_layers_together(target: Path) -> None:
    layers = [archive(*(F(b"%d-%d" % (layer, number)) for number in range(8))) for layer in range(3)]
    with pytest.raises(ImageRefused) as refused:
        extracted(oci(*layers), target, limits=Limits(entries=20))
    assert refused.value.code == "TOO_MANY_ENTRIES"


@pytest.mark.parametrize("attack", [each for each in ATTACKS if each.layer], ids=lambda each: each.name)
def test_no_attack_in_a_layer_reaches_anything_outside(tmp_path: Path, target: Path, attack: Attack) -> None:
    with canaries(tmp_path), pytest.raises(ImageRefused) as refused:
        extracted(oci(attack.build(attack.forms[0])), target, policy=attack.policies[0], limits=attack.limits)

    assert refused.value.code == attack.code


def test_a_whiteout_below_a_link_of_its_own_layer_takes_nothing_away(tmp_path: Path, target: Path) -> None:
    lower = archive(D(b"kept"), F(b"kept/file", b"x"), D(b"d"), F(b"d/file", b"y"))
    upper = archive(S(b"d", b"kept"), F(b"d/.wh.file"))
    with canaries(tmp_path):
        done = extracted(oci(lower, upper), target, policy=Policy.DISTRO)
    root = target / "rootfs"

    assert (root / "kept/file").read_bytes() == b"x"
    assert os.readlink(root / "d") == "kept"
    assert "USELESS_WHITEOUT" in {finding.code for finding in done.warnings}
