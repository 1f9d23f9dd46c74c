"""The file: where it may be, who may read it, what is promised of it, and what is refused and left as it was."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    BadInput,
    SettingsError,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreReadOnly,
    StoreTooNew,
    StoreUnsafe,
)
from holdfast.store.open import open_store
from holdfast.store.sqlite import database as place
from tests.support.bench import Bench, SettableClock

is_root = os.geteuid() == 0


def digest(directory: Path) -> dict[str, str]:
    """Every file below a directory, by its content. Only for files that no connection of this process has open."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def make_store(directory: Path, jobs: int = 3) -> None:
    store = open_store(directory)
    bench = Bench(store, SettableClock())
    for _ in range(jobs):
        bench.submit()
    store.close()


# --- a good place ------------------------------------------------------------------------------------------


def test_a_new_database_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_store(tmp_path / "state")
        store = open_store(tmp_path / "state")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir() if path.is_file()}
        store.close()
    finally:
        os.umask(before)

    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert modes["holdfast.db"] == 0o600
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("synchronous, level", [("FULL", 2), ("NORMAL", 1)])
def test_the_promised_settings_are_in_force_on_every_connection(tmp_path: Path, synchronous: str, level: int) -> None:
    store = open_store(tmp_path, synchronous=synchronous)
    database = store._database  # type: ignore[attr-defined]
    promised = {
        "journal_mode": "wal",
        "synchronous": level,
        "foreign_keys": 1,
        "busy_timeout": 5000,
        "cache_size": -10000,
        "temp_store": 2,
    }
    in_force = [
        {pragma: connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in promised}
        for connection in (database._writer, database.reader())
    ]
    store.close()

    assert in_force == [promised, promised]


def test_less_than_the_promised_durability_is_not_to_be_had(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        open_store(tmp_path, synchronous="OFF")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{0}", "{0}/holdfast.db", "sqlite:///{0}/holdfast.db", "sqlite:///{0}"])
def test_a_place_can_be_given_in_several_ways(tmp_path: Path, text: str) -> None:
    make_store(tmp_path)

    store = open_store(text.format(tmp_path))
    try:
        assert len(store.jobs()) == 3
        assert store.url == f"sqlite:///{tmp_path}/holdfast.db"
    finally:
        store.close()


@pytest.mark.parametrize("text", ["", "mysql://localhost/x", "sqlite://"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        open_store(text)

    assert not Path("holdfast.db").exists()


@pytest.mark.parametrize("setting", [None, 7, b"state"], ids=str)
def test_a_setting_that_is_not_set_names_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: Any
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError, match="is not the place of a store"):
        open_store(setting)
    assert list(tmp_path.iterdir()) == []


def test_names_with_odd_characters_are_only_names(tmp_path: Path) -> None:
    odd = tmp_path / "a b?c#d%e&mode=ro'"

    make_store(odd)

    assert (odd / "holdfast.db").exists()


def test_a_second_open_in_one_process_does_not_cost_the_first_its_locks(tmp_path: Path) -> None:
    """POSIX drops all locks a process has on a file when it closes any descriptor of it, however it was opened.

    Without its lock the first connection writes on into a log that the next process to close has removed.
    """
    clock = SettableClock()
    first = open_store(tmp_path, clock=clock)
    Bench(first, clock).submit()
    second = open_store(tmp_path, clock=clock)
    look = (
        "from holdfast.store.open import open_store\n"
        f"store = open_store({str(tmp_path)!r}); print(len(store.jobs())); store.close()"
    )

    def seen_by_another_process() -> int:
        return int(subprocess.run([sys.executable, "-c", look], capture_output=True, check=True).stdout)

    before = seen_by_another_process()
    Bench(first, clock).submit()
    after = seen_by_another_process()
    first.close()
    second.close()

    assert (before, after) == (1, 2), "a submit that was acknowledged is lost"


def test_several_processes_may_open_a_new_database_at_once(tmp_path: Path) -> None:
    script = f"from holdfast.store.open import open_store; open_store({str(tmp_path / 'new')!r}).close()"
    openers = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(6)]
    errors = [opener.communicate(timeout=60)[1].decode() for opener in openers]

    store = open_store(tmp_path / "new")
    findings = list(store.integrity(deep=True))
    store.close()

    assert errors == [""] * 6
    assert findings == []


# --- read only ---------------------------------------------------------------------------------------------


def test_a_store_opened_for_reading_can_be_looked_at_and_not_written(tmp_path: Path) -> None:
    make_store(tmp_path)
    store = open_store(tmp_path, read_only=True)
    try:
        assert len(store.jobs()) == 3
        with pytest.raises(StoreReadOnly):
            Bench(store, SettableClock()).submit()
    finally:
        store.close()


def test_a_store_that_does_not_exist_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        open_store(tmp_path / "nowhere", read_only=True)

    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(is_root, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreReadOnly) as caught:
            open_store(tmp_path)
    finally:
        tmp_path.chmod(0o700)

    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


READ_ONLY_SCRIPT = """
import os, sys, tempfile
from holdfast.errors import StoreReadOnly
from holdfast.store.open import open_store
with tempfile.TemporaryDirectory() as directory:
    open_store(directory).close()  # imports all there is, while it can still be read
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    open_store(sys.argv[1])
except StoreReadOnly as error:
    print("refused:", error.hint)
"""


@pytest.mark.skipif(not is_root, reason="only root can become another user")
@pytest.mark.parametrize("exists", [True, False], ids=["a database of another user", "an empty directory"])
def test_a_user_without_the_right_to_write_is_refused(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    if exists:
        make_store(directory)
    for each in [*tmp_path.parents, tmp_path, directory]:
        if str(each).startswith("/tmp/"):
            each.chmod(0o755)
    before = digest(directory)

    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY_SCRIPT, directory], capture_output=True, check=False, cwd="/"
    )

    assert done.stdout.startswith(b"refused: "), done.stderr.decode()
    assert digest(directory) == before


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")

    with pytest.raises(StoreReadOnly):
        open_store(tmp_path / "state")

    assert (tmp_path / "state").read_text() == "not a directory"


def test_a_directory_in_the_place_of_the_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db").mkdir()

    with pytest.raises(StoreError):
        open_store(tmp_path)

    assert (tmp_path / "holdfast.db").is_dir()


# --- foreign, damaged, too new: refused, and left as they were ---------------------------------------------


def foreign_text(path: Path) -> None:
    path.write_text("dear diary\n" * 100)


def foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
        other.execute("INSERT INTO customers VALUES ('Alice')")
        other.commit()


def foreign_database_with_our_table_names(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE jobs (name TEXT)")
        other.execute("CREATE TABLE holdfast_migrations (version INTEGER)")
        other.commit()


def truncated(path: Path) -> None:
    make_store(path.parent, jobs=200)
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def truncated_within_the_first_page(path: Path) -> None:
    make_store(path.parent)
    os.truncate(path, 1000)


def damaged_first_page(path: Path) -> None:
    make_store(path.parent)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3000)


def damaged_header(path: Path) -> None:
    make_store(path.parent)
    with path.open("r+b") as file:
        file.write(b"SQLite format 4\0")


@pytest.mark.parametrize(
    "make, error",
    [
        (foreign_text, StoreForeign),
        (foreign_database, StoreForeign),
        (foreign_database_with_our_table_names, StoreForeign),
        (truncated, StoreCorrupt),
        (truncated_within_the_first_page, StoreCorrupt),
        (damaged_first_page, StoreCorrupt),
        (damaged_header, StoreForeign),
    ],
)
def test_what_is_not_a_whole_store_of_ours_is_refused_and_left_as_it_was(
    tmp_path: Path, make: object, error: type[StoreError]
) -> None:
    make(tmp_path / "holdfast.db")  # type: ignore[operator]
    before = digest(tmp_path)

    with pytest.raises(error) as caught:
        open_store(tmp_path)

    assert caught.value.hint
    assert digest(tmp_path) == before


def test_damage_in_the_middle_of_the_file_is_found_by_the_check(tmp_path: Path) -> None:
    make_store(tmp_path, jobs=500)
    size = (tmp_path / "holdfast.db").stat().st_size
    with (tmp_path / "holdfast.db").open("r+b") as file:
        for page in range(size // 4096 // 2, size // 4096):
            file.seek(page * 4096)
            file.write(os.urandom(4096))
    store = open_store(tmp_path)
    try:
        codes = {finding.code for finding in store.integrity(deep=True)}
    finally:
        store.close()

    assert "sqlite-damaged" in codes


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db").touch()

    make_store(tmp_path)

    assert (tmp_path / "holdfast.db").stat().st_size > 0


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    make_store(tmp_path)
    with closing(sqlite3.connect(tmp_path / "holdfast.db", isolation_level=None)) as newer:
        newer.execute("INSERT INTO holdfast_migrations VALUES (9999, 'from_the_future', 1)")
    before = digest(tmp_path)

    with pytest.raises(StoreTooNew) as caught:
        open_store(tmp_path)

    assert "9999" in str(caught.value)
    assert caught.value.hint
    assert digest(tmp_path) == before


def test_a_refused_open_leaves_no_file_open(tmp_path: Path) -> None:
    make_store(tmp_path)
    with closing(sqlite3.connect(tmp_path / "holdfast.db", isolation_level=None)) as newer:
        newer.execute("INSERT INTO holdfast_migrations VALUES (9999, 'from_the_future', 1)")
    errors = []
    for _ in range(20):
        try:
            open_store(tmp_path)
        except StoreTooNew as error:
            errors.append(error)

    still_open = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert len(errors) == 20
    assert [name for name in still_open if name.startswith(str(tmp_path))] == []


# --- network file systems ----------------------------------------------------------------------------------

MOUNTS = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /proc rw,nosuid - proc proc rw
30 21 0:50 / /mnt/nfs rw,relatime shared:1 - nfs4 server:/export rw,vers=4.2
31 21 0:51 / /mnt/nfs-not-really rw - xfs /dev/vdb rw
32 21 0:52 / /mnt/with\\040space rw - cifs //server/share rw
33 21 0:53 / /mnt/over rw - nfs server:/a rw
34 33 0:54 / /mnt/over rw - ext4 /dev/vdc rw
35 21 0:55 / /mnt/nfs/local rw - ext4 /dev/vdd rw
36 21 0:56 / /mnt/fuse rw - fuse.sshfs me@host: rw
37 21 0:57 / /mnt/back\\134slash rw - 9p host rw
a line that makes no sense
"""


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/var/lib/holdfast", "ext4"),
        ("/", "ext4"),
        ("/mnt/nfs", "nfs4"),
        ("/mnt/nfs/state/deep", "nfs4"),
        ("/mnt/nfs-not-really/state", "xfs"),
        ("/mnt/nfsx", "ext4"),
        ("/mnt/with space/state", "cifs"),
        ("/mnt/over/state", "ext4"),
        ("/mnt/nfs/local/state", "ext4"),
        ("/mnt/fuse/state", "fuse.sshfs"),
        ("/mnt/back\\slash/state", "9p"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_innermost_visible_mount(path: str, kind: str) -> None:
    assert place.file_system_of(path, MOUNTS) == kind


def test_no_mounts_at_all_say_nothing() -> None:
    assert place.file_system_of("/anywhere", "") is None


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.s3fs", "lustre", "virtiofs"]
)
def test_a_network_file_system_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(place, "file_system_of", lambda _path, _mounts: kind)

    with pytest.raises(StoreUnsafe, match=kind) as caught:
        open_store(tmp_path / "state")

    assert caught.value.hint
    assert not (tmp_path / "state" / "holdfast.db").exists()


def test_a_symbolic_link_into_a_network_file_system_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "local").symlink_to(tmp_path / "remote")
    asked: list[str] = []

    def file_system_of(path: str, _mounts: str) -> str:
        asked.append(path)
        return "nfs" if path.startswith(str(tmp_path / "remote")) else "ext4"

    monkeypatch.setattr(place, "file_system_of", file_system_of)

    with pytest.raises(StoreUnsafe):
        open_store(tmp_path / "local")

    assert asked == [str(tmp_path / "remote")]


def test_a_database_that_is_a_link_into_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "holdfast.db").symlink_to(tmp_path / "remote" / "holdfast.db")
    monkeypatch.setattr(
        place, "file_system_of", lambda path, _mounts: "nfs" if path.startswith(str(tmp_path / "remote")) else "ext4"
    )

    with pytest.raises(StoreUnsafe):
        open_store(tmp_path / "local")

    assert not (tmp_path / "remote" / "holdfast.db").exists()
