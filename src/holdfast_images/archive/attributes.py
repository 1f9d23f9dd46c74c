"""Rules about modes, owners, extended attributes, times and kinds of entries. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast_images.archive.entry import Entry, Kind, Limits, Policy, Severity
from holdfast_images.archive.names import printable
from holdfast_images.archive.reasons import Reason

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
    severity: Severity
    detail: str


def error(reason: Reason, detail: str) -> Remark:
    """The entry, and so the image, is refused."""
    return Remark(reason, Severity.ERROR, detail)


def warning(reason: Reason, detail: str) -> Remark:
    """The entry is taken, and people are told."""
    return Remark(reason, Severity.WARNING, detail)


def by_policy(policy: Policy, reason: Reason, detail: str, *, instead: str) -> Remark:
    """Strict refuses it and names the policy that takes it; distro tells what is done instead."""
    if policy is Policy.STRICT:
        return error(reason, f"{detail}; policy distro would take it ({instead})")
    return warning(reason, f"{detail}: {instead}")


def judged_mode(entry: Entry, policy: Policy, *, keep_setuid: bool, inside: bytes) -> tuple[int, list[Remark]]:
    """The mode the entry gets, and what is wrong with the one it has. `inside` is its path in the image."""
    mode, remarks = entry.mode, []
    if mode & PRIVILEGED and entry.kind is Kind.DIRECTORY:
        # On a directory they give nobody any privilege, only the group to new files.
        remarks.append(by_policy(policy, Reason.SETGID_DIRECTORY, f"mode {mode:04o}", instead="kept"))
    elif mode & PRIVILEGED and entry.kind is not Kind.SYMLINK and (policy is Policy.STRICT or not keep_setuid):
        mode &= ~PRIVILEGED
        remarks.append(by_policy(policy, Reason.SETUID, f"mode {entry.mode:04o}", instead="bits stripped"))
    if mode & 0o002 and entry.kind is not Kind.SYMLINK and inside in CRITICAL:
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
        elif _is_portable(name) and entry.kind in {Kind.FILE, Kind.DIRECTORY}:
            kept.append((name, value))
        elif _is_portable(name) and entry.kind is Kind.SYMLINK:
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
    if entry.kind in {Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE}:
        major, minor = entry.device
        what = f"{'character' if entry.kind is Kind.CHARACTER_DEVICE else 'block'} device {major}:{minor}"
        if inside.startswith(b"dev/") and (major, minor) != (0, 0):
            yield by_policy(policy, Reason.DEVICE_NODE, what, instead="left out")
        else:
            yield error(Reason.DEVICE_NODE, what)
    elif entry.kind is Kind.FIFO:
        if inside.startswith((b"dev/", b"run/")):
            yield by_policy(policy, Reason.FIFO, "a named pipe", instead="left out")
        else:
            yield error(Reason.FIFO, "a named pipe")
