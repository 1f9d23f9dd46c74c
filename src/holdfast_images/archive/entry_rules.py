"""Rules about modes, owners, extended attributes, times and kinds of entries. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast_images.archive import entry as names
from holdfast_images.archive.entry import ArchiveSeverity, Entry, EntryKind, Limits, Policy, Reason, folded, printable

LATEST_NS = 15_032_385_535 * 1_000_000_000
"""The last second that ext4 can keep, in the year 2446."""
PRIVILEGED = 0o6000
CRITICAL = frozenset(
    (
        b" bin boot etc lib lib32 lib64 libx32 opt root sbin srv usr var home usr/bin usr/lib usr/lib64 usr/libexec "
        b"usr/local usr/local/bin usr/local/lib usr/local/sbin usr/sbin usr/share etc/passwd etc/shadow etc/group "
        b"etc/gshadow etc/sudoers etc/sudoers.d etc/crontab etc/cron.d etc/cron.daily etc/cron.hourly etc/cron.weekly "
        b"etc/cron.monthly etc/ld.so.conf etc/ld.so.conf.d etc/ld.so.preload etc/ld.so.cache etc/pam.d etc/profile "
        b"etc/profile.d etc/environment etc/ssh etc/ssh/sshd_config etc/ssl etc/systemd etc/systemd/system etc/init.d "
        b"etc/hosts etc/nsswitch.conf etc/subuid etc/subgid etc/securetty etc/shells etc/fstab etc/inittab root/.ssh "
        b"root/.ssh/authorized_keys usr/lib/systemd usr/lib/systemd/system"
    ).split(b" ")
)
"""Seen from the root of the image; the empty one is the root itself."""


class Remark(NamedTuple):
    """A rule that an entry breaks."""

    reason: Reason
    severity: ArchiveSeverity
    detail: str


def error(reason: Reason, detail: str) -> Remark:
    """The entry, and so the image, is refused."""
    return Remark(reason, ArchiveSeverity.ERROR, detail)


def warning(reason: Reason, detail: str) -> Remark:
    """The entry is taken, and people are told."""
    return Remark(reason, ArchiveSeverity.WARNING, detail)


def by_policy(policy: Policy, reason: Reason, detail: str, *, instead: str) -> Remark:
    """Strict refuses it and names the policy that takes it; distro tells what is done instead."""
    if policy is Policy.STRICT:
        return error(reason, f"{detail}; policy distro would take it ({instead})")
    return warning(reason, f"{detail}: {instead}")


def judged_mode(entry: Entry, policy: Policy, *, keep_setuid: bool, inside: bytes) -> tuple[int, list[Remark]]:
    """The mode the entry gets, and what is wrong with the one it has. `inside` is its path in the image."""
    mode, remarks = entry.mode, []
    if mode & PRIVILEGED and entry.kind is EntryKind.DIRECTORY:
        # On a directory they give nobody any privilege, only the group to new files.
        remarks.append(by_policy(policy, Reason.SETGID_DIRECTORY, f"mode {mode:04o}", instead="kept"))
    elif mode & PRIVILEGED and entry.kind is not EntryKind.SYMLINK and (policy is Policy.STRICT or not keep_setuid):
        mode &= ~PRIVILEGED
        remarks.append(by_policy(policy, Reason.SETUID, f"mode {entry.mode:04o}", instead="bits stripped"))
    if mode & 0o002 and entry.kind is not EntryKind.SYMLINK and inside in CRITICAL:
        remarks.append(error(Reason.WORLD_WRITABLE_CRITICAL, f"mode {entry.mode:04o}: everybody may write to it"))
    return mode, remarks


def judged_time(mtime_ns: int) -> tuple[int, list[Remark]]:
    """The time the entry gets."""
    if 0 <= mtime_ns <= LATEST_NS:
        return mtime_ns, []
    clamped = min(max(mtime_ns, 0), LATEST_NS)
    return clamped, [
        warning(Reason.TIME_CLAMPED, f"modified {mtime_ns / 1e9:.0f} s after 1970, set to {clamped // 1_000_000_000} s")
    ]


def judged_xattrs(
    entry: Entry, policy: Policy, limits: Limits, *, keep_setuid: bool
) -> tuple[tuple[tuple[bytes, bytes], ...], list[Remark]]:
    """The extended attributes the entry gets."""
    if not entry.xattrs:
        return (), []
    kept: list[tuple[bytes, bytes]] = []
    remarks: list[Remark] = []
    if len(entry.xattrs) > limits.xattrs_per_entry:
        detail = f"{len(entry.xattrs)} extended attributes, {limits.xattrs_per_entry} are allowed"
        return (), [error(Reason.TOO_MANY_XATTRS, detail)]
    for name, value in entry.xattrs:
        shown = printable(name)
        if len(value) > limits.xattr_bytes:
            detail = f"{shown} has {len(value)} bytes, {limits.xattr_bytes} are allowed"
            remarks.append(error(Reason.XATTR_TOO_LARGE, detail))
        elif name == b"security.capability":
            if policy is Policy.STRICT or not keep_setuid:
                remarks.append(by_policy(policy, Reason.FILE_CAPABILITY, f"it has {shown}", instead="stripped"))
            else:
                kept.append((name, value))
        elif _is_portable(name) and entry.kind in {EntryKind.FILE, EntryKind.DIRECTORY}:
            kept.append((name, value))
            if not value:
                # A pax record without a value takes back what was said before: to programs in Go there is nothing.
                remarks.append(by_policy(policy, Reason.EMPTY_XATTR, f"{shown} has no value", instead="kept"))
        elif _is_portable(name) and entry.kind is EntryKind.SYMLINK:
            # Linux has no such thing, and who tries to set it fails.
            detail = f"a symbolic link cannot have {shown}"
            remarks.append(by_policy(policy, Reason.BAD_XATTR, detail, instead="left out"))
        else:
            remarks.append(warning(Reason.XATTR_STRIPPED, f"{shown} is not carried over"))
    return tuple(kept), remarks


def _is_portable(name: bytes) -> bool:
    """Does it mean the same on every host? Overlay attributes would make a layer of the image on the next mount."""
    return name.startswith(b"user.") and not name.startswith(b"user.overlay.")


def judged_kind(entry: Entry, policy: Policy, inside: bytes) -> Iterator[Remark]:
    """Device nodes and pipes: trees made by debootstrap have them, and every system makes its own at boot."""
    if entry.kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
        major, minor = entry.device
        what = f"{'character' if entry.kind is EntryKind.CHARACTER_DEVICE else 'block'} device {major}:{minor}"
        if inside.startswith(b"dev/") and (major, minor) != (0, 0):
            yield by_policy(policy, Reason.DEVICE_NODE, what, instead="left out")
        else:
            yield error(Reason.DEVICE_NODE, what)
    elif entry.kind is EntryKind.FIFO:
        if inside.startswith((b"dev/", b"run/")):
            yield by_policy(policy, Reason.FIFO, "a named pipe", instead="left out")
        else:
            yield error(Reason.FIFO, "a named pipe")


# --- What the entries of one archive have made so far: the tree against which the next one is judged. Pure ---

IMAGE_ROOT = b"rootfs"
"""The directory of a plain image that becomes the root file system."""
LINKS_FOLLOWED = 40
"""As many as Linux follows."""
STEPS_PER_ENTRY = 40
"""Components on the way of a link, on average: honest links have a handful."""
STEPS_AT_LEAST = 200_000
STICKY, WORLD_WRITABLE = 0o1000, 0o002
TWINS_AT_ONCE = 512
"""They are copied for it, and may be long."""

Stamp = tuple[int, int, int, int, int, int]
"""Mode, uid, gid, time, size and the hash of the extended attributes, as a header gives them, which may be large.

All names of one file share one.
"""


class Seen:
    """Names, their kinds and the targets of links. Only what was accepted is kept, so a directory stays one."""

    def __init__(self, *, layer: bool) -> None:
        self._layer = layer
        self.kinds: dict[bytes, EntryKind] = {}
        self.symlinks: dict[bytes, bytes] = {}
        self.stamps: dict[bytes, Stamp] = {}
        """Of directories, and of every name of a file: a hard link has that of the file it is another name of."""
        self.origins: dict[bytes, bytes] = {}
        """Hard link -> the file it is another name of."""
        self.names_of: dict[bytes, int] = {}
        """File -> how many hard links it has."""
        self.open_to_all: dict[bytes, int] = {}
        """Files and directories that everybody may write to -> their modes."""
        self.steps = 0
        """Components that were gone through to see where links lead."""

    def obstacle(self, parts: list[bytes]) -> tuple[bytes, EntryKind] | None:
        """The first thing on the way to a name that is no directory."""
        path = b""
        for part in parts[:-1]:
            path = path + b"/" + part if path else part
            kind = self.kinds.get(path)
            if kind is not None and kind is not EntryKind.DIRECTORY:
                return path, kind
        return None

    def add_parents(self, path: bytes) -> list[bytes]:
        """Directories that no entry has named are there as well; returns those that were not known."""
        added = []
        path = path.rpartition(b"/")[0]
        while path and path not in self.kinds:
            self.kinds[path] = EntryKind.DIRECTORY
            added.append(path)
            path = path.rpartition(b"/")[0]
        return added

    def set_mode(self, path: bytes, mode: int) -> None:
        """Remember whether everybody may write to it; what was told last counts."""
        if mode & WORLD_WRITABLE:
            self.open_to_all[path] = mode
        else:
            self.open_to_all.pop(path, None)

    def root_of(self, parts: list[bytes]) -> int:
        """How many components lead to the root of the image that a name lies in."""
        return int(not self._layer and len(parts) > 1 and parts[0] == IMAGE_ROOT)

    def inside(self, path: bytes) -> bytes:
        """The path as seen from the root of the image."""
        if self._layer or not (path + b"/").startswith(IMAGE_ROOT + b"/"):
            return path
        return path[len(IMAGE_ROOT) + 1 :]

    def climbs_out(self, path: bytes, target: bytes) -> bool:
        """Does following this symbolic link, and the links on its way, lead above the root of the image?"""
        parts = path.split(b"/")
        root = self.root_of(parts)
        at = parts[:root] if target.startswith(b"/") else parts[:-1]
        return self._follow(at, target, root)

    def is_winding(self) -> bool:
        """Have the links taken more steps than honest ones do?"""
        return self.steps > max(STEPS_AT_LEAST, len(self.kinds) * STEPS_PER_ENTRY)

    def trusted_but_open(self) -> Iterator[tuple[bytes, Remark]]:
        """What the system trusts and everybody may write to, by whatever links it is reached."""
        roots = ([],) if self._layer else ([], [IMAGE_ROOT])
        for root in roots:
            for inside in sorted(CRITICAL):
                at = list(root)
                if inside and not self._follow(at, inside, len(root)):
                    path = b"/".join([*root, inside])
                    found = self._open_on_the_way(at)
                    if found is not None and found != path:
                        detail = f"everybody may write to {printable(found)}, where it leads"
                        yield path, error(Reason.WORLD_WRITABLE_CRITICAL, detail)

    def _open_on_the_way(self, at: list[bytes]) -> bytes | None:
        """The thing itself, if everybody may write to it, or a directory above it in which anybody could replace it."""
        path = b"/".join(at)
        if self.origins.get(path, path) in self.open_to_all:
            return path
        while at := at[:-1]:
            path = b"/".join(at)
            if self.open_to_all.get(path, STICKY) & STICKY == 0:
                return path
        return None

    def _follow(self, at: list[bytes], target: bytes, root: int) -> bool:
        """Go from a directory along a path, changing `at`; True if that leads above the root."""
        left = target.split(b"/")[::-1]
        followed = 0
        while left:
            part = left.pop()
            self.steps += 1
            if part in {b"", b"."}:
                continue
            if part == b"..":
                if len(at) <= root:
                    return True
                at.pop()
                continue
            at.append(part)
            link = self.symlinks.get(b"/".join(at))
            if link is not None:
                followed += 1
                if followed > LINKS_FOLLOWED:
                    return False  # it leads nowhere
                del at[root if link.startswith(b"/") else -1 :]
                left.extend(link.split(b"/")[::-1])
        return False

    def twins(self) -> tuple[int, str]:
        """How many names differ from another only in case or Unicode form, and one such pair for people."""
        # Many at once: no name has a NUL, and most archives are plain ASCII.
        # By their hashes, which take no more memory for a long name; two that are equal by chance are looked at.
        different: set[int] = set()
        names = list(self.kinds)
        for start in range(0, len(names), TWINS_AT_ONCE):
            lowered = b"\0".join(names[start : start + TWINS_AT_ONCE]).lower().split(b"\0")
            different.update(hash(name if name.isascii() else folded(name)) for name in lowered)
        if len(different) == len(names):
            return 0, ""
        del different, names
        first: dict[int, bytes] = {}
        count, example = 0, ""
        for path in self.kinds:
            other = first.setdefault(hash(folded(path)), path)
            if other is not path and folded(other) == folded(path):
                count += 1
                example = example or f"{printable(other)} and {printable(path)}"
        return count, example


# --- Rules about symbolic and hard links. Pure ----------------------------------------------------------

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
    if kind is EntryKind.SYMLINK:
        return b"", error(Reason.HARDLINK_TO_SYMLINK, f"-> {shown} is a symbolic link")
    if kind is None and not layer:
        return b"", error(Reason.HARDLINK_TARGET, f"-> {shown} has not come before")
    if kind not in {None, EntryKind.FILE, EntryKind.HARDLINK}:
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
