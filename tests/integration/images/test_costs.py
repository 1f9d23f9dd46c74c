"""What reading, extracting and downloading cost, in numbers that no noise can move: calls, bytes and passes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast_images import durable
from holdfast_images import spawn as bare_python
from holdfast_images import spawn as batches
from holdfast_images.archive import compression, tree
from holdfast_images.archive import decoders as inflating
from holdfast_images.archive.decoders import PIECE
from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.extract import extract
from holdfast_images.archive.image_format import inspect
from holdfast_images.archive.parallel import SharedTree, start_second_writer
from holdfast_images.archive.tree import Attributes
from holdfast_images.devices import directory as directory_backend
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.devices.protocol import Device
from holdfast_images.source import partial
from holdfast_images.source.fetch import fetch
from holdfast_images.source.location import location_of
from tests.support.images.archives import COMPRESSIONS, Compression, archive, compressed, descriptor, directory, member

FILES = 200
DIRECTORIES = 4
LIMITS = Limits()


class CountingOs:
    """The module os, for one module: counts the calls of its functions, and the bytes they have read."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes_read = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if callable(real) else real

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            answer = real(*arguments, **named)
            if name in {"pread", "preadv"}:
                self.bytes_read += answer if isinstance(answer, int) else len(answer)
            return answer

        return call


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CountingOs:
    found = CountingOs()
    for module in (tree, compression, inflating, partial, batches):
        monkeypatch.setattr(module, "os", found)
    return found


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def image(size: int, **fields: Any) -> bytes:
    """Files of this size in some directories, all of them of the user who runs this."""
    fields = {"uid": os.geteuid(), "gid": os.getegid(), **fields}
    names = [b"rootfs/%d" % number for number in range(DIRECTORIES)]
    files = [
        member(b"%s/%d" % (name, number), b"x" * size, **fields)
        for name in names
        for number in range(FILES // DIRECTORIES)
    ]
    return archive(directory(b"rootfs", **fields), *(directory(name, **fields) for name in names), *files)


def extracted(content: bytes, target: Path) -> None:
    """In this process: what is shut in cannot be counted."""
    target.mkdir()
    umask = os.umask(0)
    try:
        with descriptor(content) as fd, opened(target) as place:
            extract(
                fd,
                place,
                spool=-1,
                policy=Policy.STRICT,
                limits=Limits(file_bytes=1 << 40),
                keep_setuid=False,
                keep_owner=os.geteuid() == 0,
                progress=lambda *_: None,
            )
    finally:
        os.umask(umask)


def judged(content: bytes) -> None:
    with descriptor(content) as fd:
        report = inspect(fd, spool=-1, policy=Policy.STRICT, limits=LIMITS, keep_setuid=False, progress=lambda *_: None)
    assert report.acceptable, report.findings


def test_a_file_is_extracted_by_four_calls(
    tmp_path: Path, counted: CountingOs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_images.archive.confinement.limit_file_size", lambda _: None)
    content = image(5000)
    extracted(content, tmp_path / "target")
    opened_directories = 1 + DIRECTORIES

    # A file that begins in one buffer and ends in the next takes two.
    assert FILES <= counted.calls["write"] <= FILES + len(content) // compression.BUFFER + 1
    assert counted.calls["open"] == FILES + opened_directories
    assert counted.calls["close"] == FILES + opened_directories
    assert counted.calls["utime"] == FILES + opened_directories
    assert counted.calls["mkdir"] == opened_directories
    assert counted.calls["fchmod"] == opened_directories
    assert counted.calls["fchown"] == 0


def test_files_given_to_a_second_process_cost_the_first_a_call_a_batch(tmp_path: Path, counted: CountingOs) -> None:
    files = 3 * batches.TURN
    with opened(tmp_path) as place:
        second = start_second_writer(place, limits=LIMITS, keep_owner=False)
        assert second is not None
        shared = SharedTree(place, depth=LIMITS.depth, keep_owner=False, second=second)
        shared.add_directory(b"d", Attributes(0o755, 0, 0, 1))
        counted.calls.clear()
        for number in range(files):
            shared.add_file(b"d/%d" % number, Attributes(0o644, 0, 0, 1), 1, (memoryview(b"x"),))
        shared.stop_sharing()

    assert len(os.listdir(tmp_path / "d")) == files
    assert counted.calls["write"] == files / batches.TURN
    assert counted.calls["open"] == 1  # the directory, to see that it is there


def test_a_plain_archive_is_read_once(counted: CountingOs) -> None:
    content = image(5000)
    judged(content)

    # The beginning is read twice: to see what kind of archive it is.
    assert counted.bytes_read <= len(content) + compression.LITTLE + 64


def test_content_of_large_files_is_not_read_by_a_scan(counted: CountingOs) -> None:
    judged(image(300_000))

    # Besides: the beginning twice, and the zeros at the end.
    assert counted.calls["preadv"] <= FILES + 4
    assert counted.bytes_read <= (FILES + 4) * compression.LITTLE


@pytest.mark.parametrize("form", [form for form in COMPRESSIONS if form != "none"])
def test_a_compressed_archive_is_decompressed_once(counted: CountingOs, form: Compression) -> None:
    noise = b"".join(member(b"rootfs/%d" % number, os.urandom(50_000), uid=0, gid=0) for number in range(40))
    content = compressed(archive(directory(b"rootfs"), noise), form)
    judged(content)

    beginning = compression.BUFFER + 2 * PIECE
    assert counted.bytes_read <= len(content) + beginning + 64


def test_a_download_syncs_its_file_and_its_directory_once(tmp_path: Path, counted: CountingOs) -> None:
    origin = tmp_path / "origin"
    origin.write_bytes(bytes(20 << 20))
    fetch(location_of(f"file://{origin}"), tmp_path / "image.tar", limit=1 << 30)

    assert counted.calls["fsync"] == 2
    assert counted.calls["posix_fallocate"] == 1


def test_a_device_and_its_snapshot_are_waited_for_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[object] = []
    monkeypatch.setattr(directory_backend, "sync_file_system", syncs.append)
    uuid = "0b9b5a10-0000-4000-8000-000000000001"
    origin = Device(id=1, name="thin-1", uuid=uuid, size=1 << 20)
    devices = DirectoryDevices.open(tmp_path)
    devices.create(origin)
    (devices.path_of("thin-1") / "file").write_bytes(b"content")
    devices.seal(origin)
    sealed = len(syncs)
    devices.snapshot(origin, Device(id=2, name="snap-1", uuid=uuid, size=1 << 20))
    devices.close()

    assert (sealed, len(syncs)) == (1, 2)


def test_the_flusher_keeps_no_failure_from_the_sync_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells a failed write once to each open file: a duplicate of the same one would take it away."""
    monkeypatch.setattr(durable, "FLUSH_EVERY", 0.0)
    with opened(tmp_path) as place:
        with durable.Flusher(place) as flusher:
            own = flusher._descriptor
            fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_NONBLOCK)
            shared = fcntl.fcntl(place, fcntl.F_GETFL) & os.O_NONBLOCK

        assert os.path.samestat(os.fstat(place), os.stat(tmp_path))
    assert not shared


# --- the start of a child -------------------------------------------------------------------------------------


NEVER_IN_A_CHILD = set(
    "ast click importlib.util inspect logging runpy site socket sqlite3 ssl subprocess tempfile urllib".split()
)
MOST_MODULES_OF_A_CHILD = 162


@pytest.mark.parametrize("module", ["holdfast_images.archive.extract", "holdfast_images.devices.copy_tree"])
def test_a_child_imports_only_what_it_needs(module: str) -> None:
    told = bare_python.START.replace(".main(sys.argv[2])", ";print(*sys.modules, flush=True)")
    words = [module, "no job", *bare_python.import_paths()]
    command = [sys.executable, "-I", "-S", "-c", told, *words]
    found = set(subprocess.run(command, env={}, capture_output=True, text=True, check=True).stdout.split())

    assert module in found
    assert found & NEVER_IN_A_CHILD == set()
    assert len(found) <= MOST_MODULES_OF_A_CHILD
