"""thin_check of a pool, which must not be in use meanwhile."""

from __future__ import annotations

from pathlib import Path

from holdfast_images.devices.commands import Answer, run
from holdfast_images.devices.dm_control import DeviceMapper, MapperError
from holdfast_images.devices.pool_record import PoolRecord, alone, read_record
from holdfast_images.errors import DeviceBusy, PoolUnusable

CHECK_TIMEOUT = 3600.0


def check_metadata(root: str | Path, *, repair: bool = False) -> Answer:
    """thin_check of a pool that is not in use: all its devices are inactive. With `repair` needs_check is cleared.

    Only a flag is ever cleared, and only if nothing is wrong; broken metadata is thin_repair's, to another disk.
    """
    root = Path(root).absolute()
    record = read_record(root)
    if record is None:
        raise PoolUnusable(f"there is no pool at {root}", hint="make one: holdfast pool create")
    with alone(root):
        return _check_alone(root, record, repair=repair)


def _check_alone(root: Path, record: PoolRecord, *, repair: bool) -> Answer:
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
