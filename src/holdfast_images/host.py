"""Whose data directory it is: a file in it names the state that its files and devices belong to.

The catalog of one state knows nothing of what another has put there, and would collect it as left over. So a data
directory belongs to one state; a second one is refused before it reads or removes anything.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from enum import Enum
from functools import cached_property
from pathlib import Path

import msgspec

from holdfast.errors import StoreError, StoreReadOnly
from holdfast_images.catalog.catalog import Catalog, database_path, is_postgres
from holdfast_images.catalog.tables import HostClaim, Image, Snapshot, UnpackedImage, is_made
from holdfast_images.devices.directory import DirectoryDevices, content_path
from holdfast_images.devices.protocol import Devices
from holdfast_images.errors import ForeignData, ImageElsewhere, InvalidName, NotPermitted, UnknownImage
from holdfast_images.flows.context import FlowContext, Timeouts
from holdfast_images.settings import HOST_NAME, Backend, Settings, data_directory

FILE = "owner.json"
ASIDE = "owner.json.new"
SEE_IMAGES = "see which there are: holdfast images"
SEE_SNAPSHOTS = "see which there are: holdfast snapshots"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. Fields are only ever added; what is not known is empty."""

    store: str
    """The id that the catalog's database was given when it was made."""
    database: str = ""
    """The path of a SQLite file."""
    directory: str = ""
    """Where the data directory was when this was written: elsewhere, it has been moved or copied as a whole."""
    host: str = ""
    """The host's name in a store that hosts share."""
    machine: str = ""
    """What tells the machine itself from others, whatever it is called."""
    id: str = ""
    """Of the directory itself: drawn by chance when it was first marked."""


class DataClaim(Enum):
    """What an owner may do with a directory."""

    OWN = "own"
    ADOPT = "adopt"
    """Nobody else can have it: it was never marked, was moved with its state, or its database was replaced."""
    FOREIGN = "foreign"


def judge(marked: Owner | None, own: Owner, *, is_another: bool) -> DataClaim:
    """Pure. `is_another`: the marked database is there, and is not the one that asks."""
    if marked is None:
        return DataClaim.ADOPT
    if (marked.store, marked.host) != (own.store, own.host):
        # A database that was deleted and made anew at the same path has the data of the one before.
        replaced = marked.host == own.host and marked.database != "" and marked.database == own.database
        return DataClaim.ADOPT if replaced else DataClaim.FOREIGN
    if own.host and marked.machine and own.machine and marked.machine != own.machine:
        # On a server, what the other machine makes here is in the same rows.
        return DataClaim.FOREIGN
    if own.host and not (marked.id and marked.machine == own.machine):
        return DataClaim.ADOPT
    if (marked.database, marked.directory) == (own.database, own.directory):
        return DataClaim.OWN
    # A copy of a state has a copy of its data; a copy of a database alone would share the data of the original.
    return DataClaim.FOREIGN if marked.directory == own.directory and is_another else DataClaim.ADOPT


def check_owner(data: Path, own: Owner) -> None:
    """Raise ForeignData if the directory belongs to another state. Changes nothing."""
    _refuse_foreign(data, own, read_owner(data))


def claim_data(data: Path, own: Owner, *, by_order: bool = False) -> Owner:
    """Make the directory this owner's, or raise ForeignData if it belongs to another; what it is marked with now.

    `by_order`: of an operator, who knows that nobody else has it any more.
    Crash: marked or not; what is not marked belongs to whoever asks next.
    """
    marked = read_owner(data)
    if (
        not by_order
        and marked is not None
        and marked == msgspec.structs.replace(own, id=marked.id)
        and (marked.id or not own.host)
    ):
        return marked
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(data) as directory:
        marked = read_owner(data)
        claim = DataClaim.ADOPT if by_order else _refuse_foreign(data, own, marked)
        if marked is not None and claim is DataClaim.OWN:
            return marked
        # Another id by order: the directory may be a copy of one that somebody else still has.
        kept = marked.id if marked is not None and not by_order else ""
        own = msgspec.structs.replace(own, id=kept or os.urandom(16).hex())
        _write(directory, own)
        return own


def forget_mark(data: Path, marked: Owner) -> None:
    """Take the mark away again, if it is this one."""
    with _alone(data):
        if read_owner(data) == marked:
            (data / FILE).unlink()


def is_marked(directory: str, mark_id: str) -> bool:
    """Is there a directory with this mark?"""
    try:
        marked = read_owner(Path(directory))
    except (ForeignData, NotPermitted):
        return False
    return marked is not None and marked.id == mark_id


def machine_id() -> str:
    """What tells this machine from others, as far as it has been told; not the id itself, which is to stay on it."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text and text != "uninitialized":
            return hashlib.sha256(f"holdfast {text}".encode()).hexdigest()[:32]
    return ""


def read_owner(data: Path) -> Owner | None:
    """What the directory is marked with; ForeignData if that cannot be read."""
    try:
        return msgspec.json.decode((data / FILE).read_bytes(), type=Owner)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotPermitted.told(error) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise ForeignData(
            f"whose data is in {data} cannot be told: {FILE}: {error}",
            hint=f"if no other state uses it, remove {data / FILE}",
        ) from error


def _refuse_foreign(data: Path, own: Owner, marked: Owner | None) -> DataClaim:
    claim = judge(marked, own, is_another=marked is not None and _is_another(marked, own))
    if marked is None or claim is not DataClaim.FOREIGN:
        return claim
    if marked.store == own.store and marked.host != own.host:
        raise ForeignData(
            f"{data} holds the files and devices of host {marked.host}, and this host is called {own.host}",
            hint=f"if this host was renamed, let it keep its name here: HOLDFAST_HOST={marked.host};"
            " if hosts share the directory, give each its own --data",
        )
    if marked.store == own.store and marked.host:
        raise ForeignData(
            f"{data} holds the files and devices of another machine that is called {marked.host}, too",
            hint="give this machine a name of its own (HOLDFAST_HOST) and its own --data;"
            " if it has taken the place of that one for good: holdfast host adopt",
        )
    whose = marked.database or f"store {marked.store}"
    whose += f", host {marked.host}" if marked.host else ""
    raise ForeignData(
        f"{data} holds the files and devices of another state: {whose}",
        hint=f"give each state its own --data; if that state is gone for good, remove {data / FILE}",
    )


def _is_another(marked: Owner, own: Owner) -> bool:
    """Is what is marked still there, and something else than what asks?"""
    try:
        return not os.path.samefile(marked.database, own.database)
    except OSError:
        return False


@contextmanager
def _alone(data: Path) -> Iterator[int]:
    directory = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(directory)


def _write(directory: int, own: Owner) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(ASIDE, flags, 0o600, dir_fd=directory)
    try:
        os.write(descriptor, msgspec.json.encode(own) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(ASIDE, FILE, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


# --- This host's part of a store: its catalog, its data directory and its devices, each opened when it is first
# used.


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a data directory is: who asks for it, who has marked it, and who has the name of this host."""

    asking: Owner
    marked: Owner | None
    known: HostClaim | None


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """How a data directory is marked now, and who had the name of this host before."""

    marked: Owner
    before: HostClaim | None


class LocalHost(FlowContext):
    """What the steps work with at one place under one set of settings. Opens nothing of the engine.

    The place is parsed once. Nothing is opened before it is used: flows that are only drawn, a pool that is only
    asked for its room and an archive that is only inspected leave no trace.
    """

    def __init__(self, place: str | Path, settings: Settings) -> None:
        self.place = place
        self.settings = settings
        self.limits = settings.limits
        self.source = settings.source
        self.timeouts = Timeouts(download=settings.download_timeout, extract=settings.extract_timeout)
        self.device_size = settings.device_size
        self.connections = settings.connections
        self._opened = ExitStack()
        self._is_claimed = False

    # --- where it is ---

    @cached_property
    def database(self) -> Path | None:
        """The database file; None if the store is on a server, which hosts share."""
        return None if is_postgres(self.place) else database_path(self.place)

    @cached_property
    def host(self) -> str:  # type: ignore[override] # read-only here
        """The name of this host in a store that hosts share; empty in one that has a single host."""
        if self.database is not None:
            return ""
        name = self.settings.host or os.uname().nodename
        if not HOST_NAME.fullmatch(name):
            raise InvalidName(
                f"this host is called {name!r}, which cannot be part of the names of its flows",
                hint="give it another name here: HOLDFAST_HOST, or host in the settings file;"
                " 1 to 64 letters, digits, '.', '_' and '-'",
            )
        return name

    @cached_property
    def data(self) -> Path:
        """The data directory: files and devices."""
        return data_directory(self.settings, self.database)

    @cached_property
    def images(self) -> Path:  # type: ignore[override] # as above
        """The directory of the downloaded files."""
        return self.data / "images"

    def path_of(self, name: str) -> Path:
        """Where a device or snapshot of this name is. Needs no pool and no root: what is recorded can be listed."""
        if self.settings.backend is Backend.DEVICEMAPPER:
            from holdfast_images.devices.dm_control import NODES  # noqa: PLC0415 - seldom asked for

            return NODES / name
        return content_path(self.data, name)

    def refuse_missing(self) -> None:
        """Raise StoreError if the database is a file that is not there, or has no catalog: looking makes none."""
        if "catalog" in vars(self):
            return  # it is open
        if self.database is None:
            if not self.has_catalog:
                raise StoreError(
                    "the store has no tables of images, or none of this version",
                    hint="process-image and worker make the tables, if their role may; looking leaves no trace",
                )
            return
        if not self.has_database:
            raise StoreError(
                f"there is no Holdfast database at {self.database}",
                hint="point --state or HOLDFAST_STATE to it; worker and submit make a new one",
            )

    @property
    def has_database(self) -> bool:
        """Is the file there, if it is one? StoreReadOnly if that cannot be seen."""
        if self.database is None:
            return True
        try:
            return self.database.exists()
        except PermissionError as error:
            raise StoreReadOnly(
                f"cannot look into {self.database.parent}: {error.strerror}",
                hint="fix its owner or mode, or choose another --state",
            ) from error

    # --- what is not here ---

    def missing_image(self, image_id: str) -> UnknownImage:
        """The error for an image that this host does not have: other hosts of the store may."""
        copies = self.catalog.copies_of_image(image_id)
        return _missing(f"image {image_id!r}", [each.host for each in copies], SEE_IMAGES)

    def missing_snapshot(self, name: str) -> UnknownImage:
        """The same for a snapshot."""
        return _missing(f"snapshot {name}", self.catalog.hosts_of_snapshot(name), SEE_SNAPSHOTS)

    # --- rows, with the paths that they have here, whatever was recorded elsewhere ---

    def image_here(self, row: Image) -> Image:
        """An image with the path of its file."""
        return msgspec.structs.replace(row, local_path=str(self.recorded_file(row)))

    def device_here(self, row: UnpackedImage) -> UnpackedImage:
        """A device with its path."""
        return msgspec.structs.replace(row, device_path=str(self.path_of(row.device_name)))

    def snapshot_here(self, row: Snapshot) -> Snapshot:
        """A snapshot with its path."""
        return msgspec.structs.replace(row, device_path=str(self.path_of(row.snapshot_name)))

    # --- its parts ---

    @property
    def has_catalog(self) -> bool:
        """Was an image ever processed at this place? Makes nothing."""
        return is_made(self.place)

    @cached_property
    def catalog(self) -> Catalog:  # type: ignore[override] # as above
        """The catalog in the engine's database: that of this host, if hosts share it."""
        return self._opened.enter_context(Catalog.open(self.place, host=self.host or None))

    @cached_property
    def devices(self) -> Devices:  # type: ignore[override] # as above
        """The backend of the settings. Raises PoolUnusable if it has no pool, ForeignData if it is another state's."""
        self.check_owner()
        return self._opened.enter_context(closing(open_devices(self.data, self.settings)))

    def close(self) -> None:
        """Close what was opened."""
        self._opened.close()

    # --- whose it is ---

    def check_owner(self) -> None:
        """Raise ForeignData if the data directory is another state's, or the name of this host another machine's."""
        own = self.owner()
        check_owner(self.data, own)
        if own.host:
            _refuse_other_machine(self.catalog.get_host(), own, read_owner(self.data))

    def claim(self) -> None:
        """Mark the data directory and the name of this host as this one's; ForeignData if they are another's.

        Crash: marked or not; what is not marked belongs to whoever asks next.
        """
        if self._is_claimed:
            return
        from holdfast_images.spawn import import_paths  # noqa: PLC0415 - what is finished is found without

        import_paths()  # a missing package would be told only after the download
        self.check_owner()
        before, own = read_owner(self.data), self.owner()
        known = self.catalog.get_host() if own.host else None
        marked = claim_data(self.data, own)
        if own.host and (known is None or known.directory != own.directory):
            claim = HostClaim(host=own.host, machine=own.machine, data_id=marked.id, directory=own.directory)
            try:
                take = self.catalog.claim_host if known is None else self.catalog.adopt_host
                _refuse_other_machine(take(claim), own, marked)
            except ForeignData:
                if before is None:
                    forget_mark(self.data, marked)  # another machine was faster to take the name
                raise
        self._is_claimed = True

    def adopt(self) -> Adoption:
        """Make the data directory, and the name of this host, this machine's, whoever had them.

        For an operator who knows that nobody else uses them any more. Crash: the directory alone, or both.
        """
        own = self.owner()
        before = self.catalog.get_host() if own.host else None
        marked = claim_data(self.data, own, by_order=True)
        if own.host:
            self.catalog.adopt_host(
                HostClaim(host=own.host, machine=own.machine, data_id=marked.id, directory=own.directory)
            )
        return Adoption(marked=marked, before=before)

    def report(self) -> HostReport:
        """Whose the data directory and the name are. Changes nothing."""
        own = self.owner()
        known = self.catalog.get_host() if own.host else None
        return HostReport(asking=own, marked=read_owner(self.data), known=known)

    def owner(self) -> Owner:
        """Who asks for the data directory."""
        return Owner(
            store=self.catalog.store_id(),
            database=os.path.realpath(self.database) if self.database is not None else "",
            directory=os.path.realpath(self.data),
            host=self.host,
            machine=machine_id() if self.host else "",
        )


def _missing(what: str, hosts: Sequence[str], hint: str) -> UnknownImage:
    if not hosts:
        return UnknownImage(f"there is no {what}", hint=hint)
    return ImageElsewhere(
        f"there is no {what} on this host: it is on {', '.join(hosts)}",
        hosts=hosts,
        hint="a command for that host is run there; over HTTP, ask the server that runs there",
    )


def open_devices(data: Path, settings: Settings) -> Devices:
    """The backend of the settings, where nothing hangs that a crash has left. Raises PoolUnusable if it has no pool."""
    if settings.backend is Backend.DEVICEMAPPER:
        from holdfast_images.devices.devicemapper import DeviceMapperDevices  # noqa: PLC0415 - seldom asked for
        from holdfast_images.devices.thin_pool import ThinPool  # noqa: PLC0415 - as above

        devices = DeviceMapperDevices(data, ThinPool.open(data), read_origins=settings.read_origins)
        devices.showing.resume_all()
        return devices
    return DirectoryDevices(data)


def _refuse_other_machine(known: HostClaim | None, own: Owner, marked: Owner | None) -> None:
    if known is None:
        return
    if known.machine and own.machine and known.machine != own.machine:
        raise ForeignData(
            f"{own.host} is the name of another machine in this store, whose files and devices are in"
            f" {known.directory} there",
            hint="a command for that host is run there; give this one a name of its own (HOLDFAST_HOST), or,"
            " if it has taken that one's place for good: holdfast host adopt",
        )
    is_copy = known.directory != own.directory and is_marked(known.directory, known.data_id)
    if is_copy or known.data_id != (marked.id if marked is not None else ""):
        raise ForeignData(
            f"host {own.host} has its files and devices in {known.directory}, and {own.directory} is another directory",
            hint=f"use --data {known.directory}; if another machine has that name too, give this one a name of its own"
            " (HOLDFAST_HOST); if that directory is gone for good: holdfast host adopt",
        )
