"""Is this a place for a database? A file on a local file system, readable by its owner only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from holdfast.errors import StoreReadOnly, StoreUnsafe

NETWORK_FILE_SYSTEMS = frozenset(
    "9p afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.s3fs fuse.sshfs glusterfs gpfs lustre ncpfs nfs nfs4 "
    "ocfs2 gfs2 orangefs smb3 smbfs vboxsf virtiofs".split()
)


def prepare_file(path: Path) -> None:
    """Make the directory (0700) and an empty file (0600) if they are not there; refuse a network file system."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = Path(os.path.realpath(path))
        refuse_network(target.parent)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if not target.exists():
            _make_empty(target)
    except PermissionError as error:
        raise StoreReadOnly(
            f"cannot write in {path.parent}: {error.strerror}",
            hint="choose another directory with --state, or fix its owner",
        ) from error
    except (NotADirectoryError, FileExistsError) as error:
        raise StoreReadOnly(f"{path.parent} is not a directory", hint="choose another with --state") from error
    except OSError as error:
        raise StoreReadOnly(
            f"cannot make {path}: {error.strerror or error}", hint="see the message; nothing was changed"
        ) from error


def _make_empty(path: Path) -> None:
    """An empty file with mode 0600, made aside and linked into place.

    Nobody else can have it open when our descriptor is closed: closing one drops all locks a process has on a file.
    """
    import tempfile  # noqa: PLC0415 - half of an interpreter's start, for a file that is made once

    descriptor, aside = tempfile.mkstemp(prefix=".", suffix=".new", dir=path.parent)
    os.close(descriptor)
    try:
        os.link(aside, path)
    except FileExistsError:
        pass  # another process was faster
    finally:
        os.unlink(aside)


def refuse_network(directory: Path) -> None:
    """Raise StoreUnsafe on a file system whose locks and shared memory cannot be trusted."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return
    kind = file_system_of(os.path.realpath(directory), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnsafe(
            f"{directory} is on a network file system ({kind}), where SQLite can lose or corrupt data",
            hint="put the state on a local disk, or share it through PostgreSQL: --store postgresql://…",
        )


def file_system_of(path: str, mountinfo: str) -> str | None:
    """The type of the file system that holds `path`, by the text of /proc/self/mountinfo."""
    best, best_kind = "", None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        holds = path == mount or path.startswith(mount.rstrip("/") + "/")
        # The last of two mounts on one place is the visible one.
        if holds and len(mount) >= len(best):
            best, best_kind = mount, after.split()[0]
    return best_kind
