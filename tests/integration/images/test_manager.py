"""Every use case of the image manager, by its public class, on both stores."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import JobState
from holdfast.errors import StoreError
from holdfast_images import ImageManager, Settings
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.errors import (
    CatalogConflict,
    ForeignData,
    ImageBusy,
    ImageRefused,
    Interrupted,
    InvalidName,
    ObjectNotFound,
    PoolUnusable,
    UnknownImage,
)
from holdfast_images.messages import ImageFailure, Processed, StageProgress
from holdfast_images.settings import Backend
from tests.acceptance.images.driving import HONEST, HOSTILE, Gate
from tests.support.backends import Backend as Home
from tests.support.backends import PostgresBackend

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
both_stores = pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)

KILLED = """
import os, signal, sys
from holdfast.crash_points import set_hook
from holdfast_images import ImageManager, Settings

def die(name):
    if name == "effect.extract.after":
        os.kill(os.getpid(), signal.SIGKILL)

set_hook(die)
with ImageManager.open(sys.argv[1], Settings(data=sys.argv[2], host="alpha")) as images:
    images.process(images.request(sys.argv[3], image_id="demo"))
"""


class Stop:
    """What a signal is to a command."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.descriptor, self._end = os.pipe()

    def now(self) -> None:
        self.received = "test"
        os.write(self._end, b".")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=str(tmp_path / "data"), host="alpha")


@pytest.fixture
def images(home: Home, settings: Settings) -> Iterator[ImageManager]:
    with ImageManager.open(home.place, settings, actor="test") as images:
        yield images


@pytest.fixture
def source(tmp_path: Path) -> str:
    return file_of(tmp_path, HONEST)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    with gate.server.running():
        yield gate
        gate.open()


def file_of(directory: Path, content: bytes, name: str = "image.tar") -> str:
    path = directory / name
    path.write_bytes(content)
    return f"file://{path}"


def outcomes(processed: Processed) -> list[str]:
    return [stage.outcome for stage in processed.stages.values()]


# --- processing -----------------------------------------------------------------------------------------------


@both_stores
def test_an_image_is_processed_once_and_found_without_the_engine_then(
    images: ImageManager, home: Home, settings: Settings, source: str
) -> None:
    told: list[Sequence[StageProgress]] = []
    request = images.request(source, image_id="demo")
    before = images.find(request)
    done = images.process(request, on_progress=told.append)
    with ImageManager.open(home.place, settings) as again:
        found = again.process(request)

        assert "engine" not in vars(again)
    assert before is None
    assert done.checksum == hashlib.sha256(HONEST).hexdigest()
    assert Path(done.snapshot_path, "rootfs/etc/hostname").read_text() == "demo\n"
    assert (outcomes(done), done.was_there) == (["completed"] * 3, False)
    assert (outcomes(found), found.was_there) == (["handoff"] * 3, True)
    assert found.snapshot_path == done.snapshot_path
    assert [each.stage for each in told[-1]] == ["download", "unpack", "activate"]
    assert all(each.has_ended for each in told[-1])


@both_stores
def test_what_ended_a_job_is_raised_as_it_was(images: ImageManager, tmp_path: Path) -> None:
    with pytest.raises(ImageRefused) as refused:
        images.process(file_of(tmp_path, HOSTILE))
    with pytest.raises(ObjectNotFound):
        images.process(f"file://{tmp_path}/nowhere.tar")
    with pytest.raises(InvalidName):
        images.process("ftp://host/image.tar")
    with pytest.raises(InvalidName, match="no bucket"):
        images.request(key="image.tar")

    assert (refused.value.code, refused.value.entry) == ("ABSOLUTE_SYMLINK", "rootfs/etc/shadow")
    assert images.images() == [] or images.images()[0].image.download_status == "failed"


@both_stores
def test_of_several_images_each_has_its_own_end(images: ImageManager, tmp_path: Path, source: str) -> None:
    images.process(source)
    requests = [source, file_of(tmp_path, HOSTILE, "hostile.tar"), file_of(tmp_path, HONEST, "other.tar")]
    first, second, third = images.process_all(requests)

    assert isinstance(first, Processed)
    assert isinstance(second, ImageFailure)
    assert isinstance(third, Processed)
    assert first.was_there
    assert isinstance(second.error, ImageRefused)
    assert outcomes(third) == ["completed"] * 3


@both_stores
def test_an_image_that_was_submitted_is_waited_for_later(images: ImageManager, source: str) -> None:
    submission = images.submit(source, source)
    [job, same] = submission.jobs
    done = images.wait(job.job_id)

    assert job == same
    assert not submission.has_worker
    assert done.image_id == job.image_id
    assert images.find(source) is not None


@both_stores
def test_a_worker_that_is_there_does_the_work(
    images: ImageManager, home: Home, settings: Settings, source: str
) -> None:
    with ImageManager.open(home.place, settings) as other, other.engine.worker(concurrency=4) as worker:
        other.prepare()
        done = images.process(source)
        owners = {
            each.lease_owner
            for stage in done.stages.values()
            for each in images.engine.store.executions(stage.job_id or "")
        }

        assert images.submit(f"{source}.absent").has_worker
        assert owners == {worker.worker_id}


@both_stores
def test_waiting_can_be_stopped_and_the_same_call_goes_on(images: ImageManager, gate: Gate) -> None:
    stop, request = Stop(), images.request(gate.url, image_id="demo")

    def stop_when_asked() -> None:
        gate.asked.wait(PATIENCE)
        stop.now()

    threading.Thread(target=stop_when_asked).start()
    with pytest.raises(Interrupted):
        images.process(request, stop=stop)
    gate.open()
    done = images.process(request)

    assert done.image_id == "demo"
    assert [job.state for job in images.status("demo").jobs if job.flow.startswith("process-image")] == ["succeeded"]


@both_stores
def test_two_managers_at_once_are_one_job(home: Home, settings: Settings, gate: Gate) -> None:
    def process() -> Processed:
        with ImageManager.open(home.place, settings) as images:
            return images.process(images.request(gate.url, image_id="demo"))

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(process) for _ in range(2)]
        assert gate.asked.wait(PATIENCE)
        gate.open()
        one, other = (each.result(PATIENCE) for each in running)

    assert one.snapshot_id == other.snapshot_id
    with ImageManager.open(home.place, settings) as images:
        assert images.verify(deep=True) == []
        assert len(images.snapshots()) == 1


@both_stores
def test_a_killed_process_is_gone_on_with(images: ImageManager, home: Home, source: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, home.place, tmp_path / "data", source],
        env=environment,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    left = images.status("demo")
    done = images.process(images.request(source, image_id="demo"))

    assert killed.returncode == -9, killed.stderr
    assert any(job.is_unfinished for job in left.jobs)
    assert left.device is None
    assert done.stages["download"].outcome == "completed"
    assert images.verify(deep=True) == []
    assert len([job for job in images.status("demo").jobs if job.flow.startswith("process-image")]) == 1


# --- looking --------------------------------------------------------------------------------------------------


@both_stores
def test_images_and_snapshots_are_listed(images: ImageManager, source: str) -> None:
    done = images.process(images.request(source, image_id="demo"))
    [listed], [snapshot] = images.images(), images.snapshots(active=True)

    assert (listed.image.image_id, listed.image.local_path) == ("demo", done.local_path)
    assert (listed.device_name, listed.snapshots) == (done.device_name, ("snap-demo",))
    assert snapshot.device_path == done.snapshot_path
    assert images.images("failed") == []
    assert images.counts() == {("image", "completed"): 1, ("device", "verified"): 1, ("snapshot", "active"): 1}


@both_stores
def test_an_image_on_its_way_is_told_with_its_step_by_its_id_and_its_key(
    images: ImageManager, home: Home, settings: Settings, gate: Gate
) -> None:
    submitted = images.submit(images.request(gate.url, image_id="demo")).jobs[0]
    with ImageManager.open(home.place, settings) as other, ThreadPoolExecutor(1) as pool:
        running = pool.submit(other.wait, submitted.job_id)
        assert gate.asked.wait(PATIENCE)
        by_key = images.status(s3_key=gate.url)
        steps = [job.current.step for job in images.status("demo").jobs if job.current is not None]
        gate.open()
        done = running.result(PATIENCE)
    report = images.status(s3_key=gate.url)

    assert by_key.image_id == "demo"
    assert "download" in steps
    assert report.image is not None
    assert report.image.checksum == done.checksum
    assert [each.snapshot_name for each in report.snapshots] == ["snap-demo"]
    assert {job.state for job in report.jobs} == {JobState.SUCCEEDED}


@both_stores
def test_what_nobody_knows_is_said_to_be_unknown(images: ImageManager, source: str) -> None:
    images.process(source)
    for ask in (
        lambda: images.status("nobody"),
        lambda: images.status(s3_key="nobody.tar"),
        lambda: images.snapshot("nobody", "more"),
        lambda: images.remove("nobody"),
        lambda: images.verify("nobody"),
        lambda: images.activate("nobody"),
        lambda: images.deactivate("nobody"),
        lambda: images.locks.release(["nobody"]),
    ):
        with pytest.raises(UnknownImage):
            ask()
    with pytest.raises(InvalidName):
        images.status()


@both_stores
def test_the_journal_of_an_image_is_read_and_followed(images: ImageManager, tmp_path: Path, source: str) -> None:
    images.process(images.request(source, image_id="demo"))
    images.process(file_of(tmp_path, HONEST, "other.tar"))
    events = images.events("demo")
    followed = list(images.follow("demo", since=0, stop_when=lambda: True))

    assert {event.image_id for event in events} == {"demo"}
    assert {event.flow.partition(".")[0] for event in events} == {
        "process-image",
        "download-image",
        "unpack-image",
        "activate-image",
    }
    assert events[0].actor == "test"
    assert {(each.job_id, each.seq) for each in followed} == {(each.job_id, each.seq) for each in events}
    assert len(images.events()) > len(events)


@both_stores
def test_looking_makes_no_database(home: Home, settings: Settings) -> None:
    with ImageManager.open(home.place, settings) as images:
        for look in (images.images, images.snapshots, images.events, images.verify, images.collect, images.host):
            with pytest.raises(StoreError, match=r"there is no Holdfast database|has no tables of images"):
                look()
        assert next(flow.name for flow in images.flows).startswith("process-image")
        assert images.check() == []
        assert images.repair() == []

    if isinstance(home, PostgresBackend):
        assert home.query(f"SELECT to_regnamespace('{home.schema}')") == [(None,)]
    else:
        assert not Path(home.place).exists()
    assert settings.data is not None
    assert not Path(settings.data).exists()


def test_a_list_needs_neither_a_pool_nor_root(tmp_path: Path, source: str) -> None:
    with ImageManager.open(tmp_path / "state") as images:
        images.process(images.request(source, image_id="demo"))
    thin = Settings(backend=Backend.DEVICEMAPPER)
    with ImageManager.open(tmp_path / "state", thin) as images:
        assert [each.device_path for each in images.snapshots()] == ["/dev/mapper/snap-demo"]
        assert images.status("demo").image is not None
        with pytest.raises(PoolUnusable):
            images.pool.status()
        with pytest.raises(PoolUnusable):
            images.process(images.request(source, image_id="demo", snapshot_name="more"))


# --- snapshots and removal ------------------------------------------------------------------------------------


@both_stores
def test_snapshots_are_made_taken_out_of_use_and_brought_back(images: ImageManager, source: str) -> None:
    images.process(images.request(source, image_id="demo"))
    made = images.snapshot("demo", "more")
    again = images.snapshot("demo", "more")
    out = images.deactivate("more")
    [back] = images.activate("more")
    every = images.activate()
    gone = images.deactivate("more", delete=True)

    assert (made.created, again.created) == (True, False)
    assert made.snapshot_path == again.snapshot_path == back.snapshot_path
    assert (out.deactivated, out.deleted, gone.deleted) == (True, False, True)
    assert [each.error for each in every] == [None, None]
    assert [each.snapshot_name for each in images.snapshots()] == ["snap-demo"]
    with pytest.raises(InvalidName):
        images.snapshot("demo", "control")


@both_stores
def test_an_image_with_snapshots_is_removed_only_by_force(images: ImageManager, source: str) -> None:
    done = images.process(images.request(source, image_id="demo"))
    with pytest.raises(CatalogConflict):
        images.remove("demo")
    removed = images.remove("demo", force=True)

    assert (removed.image_id, removed.snapshots) == ("demo", ("snap-demo",))
    assert not Path(done.local_path).exists()
    assert images.images() == []


# --- archives and maintenance ---------------------------------------------------------------------------------


def test_an_archive_is_inspected_wherever_it_is(tmp_path: Path, source: str, gate: Gate) -> None:
    gate.open()
    images = ImageManager.open(tmp_path / "state")
    hostile = images.inspect(file_of(tmp_path, HOSTILE, "hostile.tar").removeprefix("file://"))

    assert images.inspect(source).report.acceptable
    assert images.inspect(gate.url).fetched_bytes == len(HONEST)
    assert "ABSOLUTE_SYMLINK" in {each.code for each in hostile.report.findings}
    with pytest.raises(ObjectNotFound):
        images.inspect(tmp_path / "nowhere.tar")
    with pytest.raises(InvalidName):
        images.inspect()
    assert not (tmp_path / "state").exists()


@both_stores
def test_what_is_wrong_or_left_over_is_found_and_collected(images: ImageManager, tmp_path: Path, source: str) -> None:
    done = images.process(images.request(source, image_id="demo"))
    (tmp_path / "data/images/lost.tar").write_bytes(b"x")
    found = [each.code for each in images.verify()]
    planned = images.collect(dry_run=True)
    collected = images.collect()
    Path(done.local_path).unlink()

    assert found == ["left-over-file"]
    assert [each.subject for each in planned.actions] == ["lost.tar"]
    assert planned.removed == []
    assert [each.subject for each in collected.removed] == ["lost.tar"]
    assert [each.code for each in images.verify("demo")] == ["file-missing"]


@both_stores
def test_locks_are_listed_and_released_unless_a_job_goes_on_with_them(images: ImageManager, home: Home) -> None:
    job = images.submit("file:///nowhere.tar").jobs[0]
    with Catalog.open(home.place, host="alpha" if home.name == "postgres" else None) as catalog:
        catalog.acquire_image_lock("one", f"job:{job.job_id}")
        catalog.acquire_image_lock("two", "job:gone")
    states = {lock.image_id: lock.state for lock in images.locks.held()}
    stale = [lock.image_id for lock in images.locks.stale()]
    with pytest.raises(ImageBusy):
        images.locks.release(["one"])
    released = [lock.image_id for lock in images.locks.release_stale()]
    forced = [lock.image_id for lock in images.locks.release(["one"], force=True)]

    assert states == {"one": "pending", "two": "gone"}
    assert stale == released == ["two"]
    assert forced == ["one"]
    assert images.locks.held() == []


@both_stores
def test_the_data_of_another_state_is_refused_until_it_is_adopted(
    images: ImageManager, tmp_path: Path, settings: Settings, source: str
) -> None:
    images.process(images.request(source, image_id="demo"))
    own = images.host()
    with ImageManager.open(tmp_path / "other", settings) as other:
        with pytest.raises(ForeignData):
            other.process(source)
        report, adoption = other.host(), other.adopt()

    assert own.marked is not None
    assert own.marked.store == own.asking.store
    assert report.asking.store != own.asking.store
    assert report.marked == own.marked
    assert adoption.marked.store == report.asking.store
    with pytest.raises(ForeignData):
        images.verify()


# --- the walk -------------------------------------------------------------------------------------------------


def test_one_command_resolves_its_settings_and_parses_its_place_once(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast_images.cli.main import main

    once = {
        ("holdfast_images.settings", "load_settings"),
        ("holdfast.store.place", "database_path"),
        ("holdfast_images.catalog.catalog", "open"),
        ("holdfast.store.open", "open_store"),
        ("holdfast_images.host", "open_devices"),
        ("holdfast_images.host", "claim_data"),
    }
    seen: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        called = (str(frame.f_globals.get("__name__")), frame.f_code.co_name)
        caller = frame.f_back.f_globals.get("__name__") if frame.f_back is not None else None
        # Engine and tables take a place by themselves: theirs is the other side of the border.
        if event == "call" and called in once and (called[1] != "database_path" or caller == "holdfast_images.host"):
            seen[called] += 1

    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "state"))
    before = sys.getprofile()
    interval = sys.getswitchinterval()
    operators = logging.getLogger("holdfast.operators")
    handlers, propagate, disabled = list(operators.handlers), operators.propagate, logging.root.manager.disable
    sys.setprofile(profile)
    try:
        code = main(["process-image", "--source", source, "-q"])
    finally:
        sys.setprofile(before)
        sys.setswitchinterval(interval)
        # A command is a process of its own, and what it says of the log holds to its end.
        operators.handlers, operators.propagate = handlers, propagate
        logging.disable(disabled)

    assert code == 0, capsys.readouterr().err
    assert seen == dict.fromkeys(once, 1)
