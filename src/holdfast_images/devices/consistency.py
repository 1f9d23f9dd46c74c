"""thin_check of a pool, which must not be in use meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast import Finding, Severity
from holdfast_images.devices import block_device
from holdfast_images.devices.activation import Activation
from holdfast_images.devices.dm_control import DeviceMapper, MapperError
from holdfast_images.devices.dm_table import CommandResult, run
from holdfast_images.devices.mounts import MountedRegistry, is_live
from holdfast_images.devices.pool_record import PoolRecord, WrongFile, alone, read_record
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import DeviceBusy, ImageError, PoolUnusable, printable

CHECK_TIMEOUT = 3600.0


def check_metadata(root: str | Path, *, repair: bool = False) -> CommandResult:
    """thin_check of a pool that is not in use: all its devices are inactive. With `repair` needs_check is cleared.

    Only a flag is ever cleared, and only if nothing is wrong; broken metadata is thin_repair's, to another disk.
    """
    root = Path(root).absolute()
    record = read_record(root)
    if record is None:
        raise PoolUnusable(f"there is no pool at {root}", hint="make one: holdfast pool create")
    with alone(root):
        return _check_alone(root, record, repair=repair)


def _check_alone(root: Path, record: PoolRecord, *, repair: bool) -> CommandResult:
    try:
        DeviceMapper().remove(record.name)
    except MapperError as error:
        raise DeviceBusy(
            f"devices of pool {record.name} are in use", hint="deactivate all snapshots first: holdfast snapshots"
        ) from error
    options = ["--clear-needs-check-flag"] if repair else []
    node = record.metadata.open()
    answer = run("thin_check", *options, node, timeout=CHECK_TIMEOUT, accept=(0, 1))
    if answer.status != 0:
        raise PoolUnusable(
            f"the metadata of pool {record.name} is damaged: {(answer.errors or answer.output).strip()}",
            hint=f"thin_repair -i {node} -o <another device>, then put that in its place in {root}/pool.json",
        )
    return answer


# --- Records, pool, device mapper, mounts and loop devices, held against each other. The catalog is its owner's to
# add.


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A device of ours in the device mapper's table."""

    name: str
    suspended: bool = False
    passing: bool = False
    """Shown for a moment, by a process that is gone."""
    wrong: str = ""
    """How it is shown otherwise than it was recorded."""
    without_node: bool = False
    renamed: str = ""
    """The name of the recorded device that is shown by this one."""


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What each place says."""

    recorded: dict[int, str] = {}
    unreadable: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    in_pool: frozenset[int] = frozenset()
    unlisted: str = ""
    """Why the pool does not say what is in it."""
    shown: tuple[Shown, ...] = ()
    abandoned_mounts: tuple[str, ...] = ()
    loop_devices: dict[str, tuple[str, ...]] = {}
    """File of the pool to the loop devices that show it."""
    wrong_files: tuple[WrongFile, ...] = ()
    """Files of the pool that are not the ones in use, or cut off."""
    elsewhere: dict[str, str] = {}
    """Name of a device that is not ours to the device of ours that it shows."""


def gather_facts(records: MountedRegistry, thin_pool: ThinPool, showing: Activation) -> PoolFacts:
    """One look at all of it, which changes nothing but a frozen copy of the pool's metadata that comes and goes."""
    recorded, unreadable, abandoned = {}, [], []
    identities = {}
    for name in records.names():
        _, identity = records.read(name)
        if identity is None or identity.name != name:
            unreadable.append(name)
        else:
            recorded[identity.id] = name
            identities[name] = identity
        abandoned += [mount.point for mount in records.mounts_of(name) if not is_live(mount.point)]
    in_pool, unlisted = _listed(thin_pool)
    record = thin_pool.record
    files = [backing.path for backing in (record.metadata, record.data) if backing.is_file]
    return PoolFacts(
        recorded=recorded,
        unreadable=tuple(unreadable),
        leftovers=tuple(name for name in records.leftovers() if not records.is_locked(name)),
        in_pool=in_pool,
        unlisted=unlisted,
        shown=tuple(
            Shown(
                name=info.name,
                suspended=info.suspended,
                passing=showing.is_abandoned(info),
                wrong=showing.wrong(info, identities.get(info.name)),
                without_node=info.has_table and not showing.is_reachable(info),
                renamed=showing.renamed(info, recorded),
            )
            for info in showing.ours()
            if info.name != record.name and (showing.is_abandoned(info) or not showing.is_passing(info))
        ),
        wrong_files=tuple(thin_pool.wrong_files()),
        elsewhere=dict(showing.elsewhere(recorded)),
        abandoned_mounts=tuple(abandoned),
        loop_devices={file: tuple(block_device.attached(Path(file))) for file in files},
    )


def _listed(thin_pool: ThinPool) -> tuple[frozenset[int], str]:
    try:
        return frozenset(thin_pool.ids()), ""
    except ImageError as error:
        return frozenset(), str(error)


def differences(facts: PoolFacts) -> Iterator[Finding]:
    """Everything that does not agree. Pure."""
    yield from _differing_ids(facts)
    for name in facts.unreadable:
        yield _difference(
            "unreadable-record",
            name,
            "its record cannot be read: process the image again, or holdfast snapshot activate; what it holds is kept",
        )
    for name in facts.leftovers:
        yield _difference("leftover", name, "left by a crash: holdfast gc")
    names = {*facts.recorded.values(), *facts.unreadable}
    for shown in facts.shown:
        if shown.passing:
            yield _difference("abandoned-look", shown.name, "shown for a process that is gone: holdfast gc")
        elif shown.renamed:
            message = f"{shown.renamed} was renamed to this: holdfast snapshot activate {shown.renamed}"
            yield _difference("renamed-device", shown.name, message)
        elif shown.name not in names:
            yield _difference("unknown-device", shown.name, f"shown, and not recorded: dmsetup remove {shown.name}")
        elif shown.wrong:
            message = f"shown as '{shown.wrong}': holdfast snapshot activate {shown.name}"
            yield _difference("wrong-table", shown.name, message)
        elif shown.without_node:
            message = f"active, and /dev/mapper/{shown.name} is gone: holdfast snapshot activate {shown.name}"
            yield _difference("missing-node", shown.name, message)
        if shown.suspended:
            yield _difference("suspended", shown.name, f"whoever touches it hangs: dmsetup resume {shown.name}")
    for name, device in sorted(facts.elsewhere.items()):
        message = f"another program shows {device} by this name: close it, then dmsetup remove {name}"
        yield _difference("shown-elsewhere", name, message)
    for wrong in facts.wrong_files:
        yield _difference(wrong.code, wrong.path, f"{wrong.error}: {wrong.error.hint}")
    for point in facts.abandoned_mounts:
        yield _difference("abandoned-mount", point, "mounted by a process that is gone: holdfast gc")
    for file, nodes in sorted(facts.loop_devices.items()):
        if len(nodes) != 1 and file not in {wrong.path for wrong in facts.wrong_files}:
            shown_by = " and ".join(nodes) or "no loop device"
            yield _difference("loop-devices", file, f"shown by {shown_by}: it must be one")


def _differing_ids(facts: PoolFacts) -> Iterator[Finding]:
    if facts.unlisted:
        if not facts.wrong_files:  # which are why, and told of
            yield _difference("pool-unlisted", "pool", facts.unlisted)
        return
    for thin_id in sorted(facts.recorded.keys() - facts.in_pool):
        yield _difference("device-lost", facts.recorded[thin_id], f"the pool has no device {thin_id}")
    if not facts.leftovers and not facts.unreadable:  # whose it may be
        for thin_id in sorted(facts.in_pool - facts.recorded.keys()):
            yield _difference(
                "unknown-id",
                f"id {thin_id}",
                "in the pool, and nothing of ours: it stays, and takes its room",
            )


def _difference(code: str, subject: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, subject=printable(subject), message=printable(message))
