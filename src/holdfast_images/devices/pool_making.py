"""The beginning of a pool: what it is going to be made of, and whether that may be taken."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from holdfast_images.devices.disk_users import refuse_in_use
from holdfast_images.devices.disks import disk_at
from holdfast_images.devices.dm_table import LEAST_METADATA, metadata_bytes
from holdfast_images.devices.pool_record import (
    Backing,
    PoolRecord,
    is_blank,
    make_file,
    read_superblock,
    sync_directory,
)
from holdfast_images.errors import InvalidName, PoolUnusable

METADATA_FILE = "pool-metadata.img"
DATA_FILE = "pool-data.img"
LEAST_DATA = 16 << 20


def new_record(
    root: Path, name: str, size: int, metadata: str | None, data: str | None, low_water_bytes: int | None
) -> PoolRecord:
    """What is going to be a pool. Raises InvalidName, NoSpace. Crash: files that the next one takes."""
    if (metadata is None) != (data is None):
        raise InvalidName("a pool needs two block devices, or none", hint="give both --metadata and --data")
    if metadata is not None and data is not None:
        if os.path.samestat(os.stat(metadata), os.stat(data)) or os.stat(metadata).st_rdev == os.stat(data).st_rdev:
            raise InvalidName(f"{metadata} and {data} are one disk", hint="give a pool two block devices")
        disks = disk_at(metadata), disk_at(data)
        for path, disk, least in ((metadata, disks[0], LEAST_METADATA), (data, disks[1], LEAST_DATA)):
            if disk.size < least:
                raise InvalidName(f"{path} is too small for a pool: {disk.size} bytes", hint=f"at least {least}")
        size = disks[1].size
        backings = (
            Backing(path=metadata, is_file=False, disk=disks[0]),
            Backing(path=data, is_file=False, disk=disks[1]),
        )
    else:
        if size < LEAST_DATA:
            raise InvalidName(f"a pool of {size} bytes is too small", hint=f"--size of at least {LEAST_DATA}")
        # Metadata that cannot be written damage the pool, so their room is taken at once.
        make_file(root / METADATA_FILE, metadata_bytes(size), allocate=True)
        make_file(root / DATA_FILE, size, allocate=False)
        sync_directory(root)
        backings = (
            Backing(path=str(root / METADATA_FILE), is_file=True),
            Backing(path=str(root / DATA_FILE), is_file=True),
        )
    return PoolRecord(
        name=name,
        mark=secrets.randbits(62) | 1,
        metadata=backings[0],
        data=backings[1],
        low_water_bytes=size // 10 if low_water_bytes is None else low_water_bytes,
    )


def is_begun(record: PoolRecord, name: str, size: int, metadata: str | None, data: str | None) -> bool:
    """Is it the beginning of what is asked for, and not of something else that came to nothing?"""
    if metadata is not None or data is not None:
        given = (metadata, data)
    else:
        root = Path(record.data.path).parent
        given = (str(root / METADATA_FILE), str(root / DATA_FILE))
        if not record.data.is_file or not os.path.isfile(given[1]) or os.path.getsize(given[1]) != size:
            return False
    return (record.name, record.metadata.path, record.data.path) == (name, *given)


def refuse_used(record: PoolRecord, *, repeated: bool, force: bool) -> None:
    """Raise PoolUnusable if something is on its disks; of a pool that was cut short its own beginning may be."""
    for backing in (record.metadata, record.data):
        backing.refuse_other_disk()
        refuse_in_use(backing.open())
    superblock = read_superblock(record.metadata.open()) if repeated else None
    begun = superblock is not None and superblock.transaction_id in (0, record.mark)
    for backing in (record.data,) if begun else (record.metadata, record.data):
        if not force and not is_blank(backing.open()):
            raise PoolUnusable(
                f"{backing.path} holds something already, which a new pool would destroy",
                hint="wipefs --all it if it is not needed, or give --force",
            )
