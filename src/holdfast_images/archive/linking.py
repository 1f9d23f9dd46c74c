"""Rules about symbolic and hard links. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_images.archive import names
from holdfast_images.archive.attributes import CRITICAL, Remark, by_policy, error
from holdfast_images.archive.entry import Entry, Kind, Limits, Policy
from holdfast_images.archive.reasons import Reason
from holdfast_images.archive.seen import Seen, Stamp

TARGET_BYTES = 4095
LINKS_PER_FILE = 65_000
"""What ext4 counts, the first name included."""


def judged_symlink(entry: Entry, path: bytes, seen: Seen, policy: Policy) -> Iterator[Remark]:
    """A target must be short enough, relative in strict, and must not climb above the root of the image."""
    target = entry.linkname
    shown = names.printable(target[:256])
    if len(target) > TARGET_BYTES:
        yield error(Reason.LINK_TOO_LONG, f"the target has {len(target)} bytes, {TARGET_BYTES} are possible")
    elif target.startswith(b"/") and policy is Policy.STRICT:
        yield by_policy(policy, Reason.ABSOLUTE_SYMLINK, f"-> {shown}", instead="as a path inside the image")
    elif _climbs(path, target, seen):
        yield error(Reason.SYMLINK_ESCAPES, f"-> {shown} leads above the root of the image")


def _climbs(path: bytes, target: bytes, seen: Seen) -> bool:
    """By the text of the target alone; links on its way are followed when all are known."""
    parts = path.split(b"/")
    root = seen.root_of(parts)
    depth = root if target.startswith(b"/") else len(parts) - 1
    for part in names.components(target):
        depth += -1 if part == b".." else 1
        if depth < root:
            return True
    return False


def goes_back(target: bytes) -> bool:
    """Is there a '..' after a name? Only then can another link on its way change where it leads."""
    named = False
    for part in names.components(target):
        if part != b"..":
            named = True
        elif named:
            return True
    return False


def judged_hardlink(
    entry: Entry, path: bytes, seen: Seen, limits: Limits, *, layer: bool
) -> tuple[bytes, Remark | None]:
    """The target as a path in the archive, or why it may not be linked to."""
    target = entry.linkname
    parts = names.components(target)
    shown = names.printable(target[:256])
    link = b"/".join(parts)
    problem = names.problem(target, parts, depth=limits.depth, length=limits.name_bytes)
    if problem is not None or not parts:
        return b"", error(Reason.HARDLINK_ESCAPES, f"-> {shown}: {problem[1] if problem else 'it is the root'}")
    if seen.root_of(path.split(b"/")) != seen.root_of(parts):
        return b"", error(Reason.HARDLINK_ESCAPES, f"-> {shown} is outside of the root file system")
    obstacle = seen.obstacle(parts)
    if obstacle is not None:
        return b"", error(Reason.HARDLINK_ESCAPES, f"-> {shown} leads through {names.printable(obstacle[0])}")
    kind = seen.kinds.get(link)
    if link == path:
        return b"", error(Reason.HARDLINK_TARGET, f"-> {shown} is the entry itself")
    if kind is Kind.SYMLINK:
        return b"", error(Reason.HARDLINK_TO_SYMLINK, f"-> {shown} is a symbolic link")
    if kind is None and not layer:
        return b"", error(Reason.HARDLINK_TARGET, f"-> {shown} has not come before")
    if kind not in {None, Kind.FILE, Kind.HARDLINK}:
        return b"", error(Reason.HARDLINK_TARGET, f"-> {shown} is no file")
    count = seen.names_of.get(seen.origins.get(link, link), 0)
    if count + 2 > LINKS_PER_FILE:
        return b"", error(Reason.TOO_MANY_LINKS, f"-> {shown} has {LINKS_PER_FILE} names already")
    return link, None


def differing_header(policy: Policy, said: Stamp, first: Stamp) -> list[Remark]:
    """A hard link whose header gives its file another mode, owner or time: some readers heed it, others do not."""
    what = differences(said, first)
    return [by_policy(policy, Reason.HARDLINK_HEADER, what, instead="the file's own are kept")] if what else []


def differing_directory(policy: Policy, said: Stamp, first: Stamp) -> list[Remark]:
    """A directory that occurs twice: for some readers the first counts, for others the last."""
    what = differences(said, first)
    return [by_policy(policy, Reason.DUPLICATE_DIRECTORY, what, instead="the last counts")] if what else []


def differences(said: Stamp, first: Stamp) -> str:
    """What two headers of one thing say differently; nothing if they agree."""
    # Not the size: neither the header of a hard link nor that of a directory has one.
    if said[:4] == first[:4] and said[5] == first[5]:
        return ""
    what = [
        f"{name} {form.format(mine)} instead of {form.format(other)}"
        for name, form, mine, other in zip(
            ("mode", "owner", "group", "time"), ("{:04o}", "{}", "{}", "{} ns"), said, first, strict=False
        )
        if mine != other
    ]
    return ", ".join(what) or "other extended attributes"


def judged_first_name(path: bytes, link: bytes, seen: Seen) -> list[Remark]:
    """A hard link has the mode of the file that it is another name of, not the one in its own header."""
    first = seen.origins.get(link, link)
    if first not in seen.open_to_all or seen.inside(path) not in CRITICAL:
        return []
    return [error(Reason.WORLD_WRITABLE_CRITICAL, f"everybody may write to {names.printable(first)}, which it is")]
