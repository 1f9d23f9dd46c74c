"""process-image, killed at every crash point: the same end, one commit per job, nothing leaked."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine, Flow, JobState
from holdfast.testing import NOON, CrashExplorer, Scenario, VirtualClock, run_until_idle
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.flows.context import FlowContext, uuids_of
from holdfast_images.flows.process import all_flows
from holdfast_images.flows.schemas import DeactivateRequest, RemoveRequest, key_of
from tests.support.images.archives import member
from tests.support.images.children import orphans
from tests.support.images.small_image import IMAGE_ID, context_at, request_for, small_image, tree_of
from tests.support.waiting import eventually

HOSTILE = member(b"rootfs/usr/bin", b"", mode=0o4755)


NEW = small_image(member(b"rootfs/etc/new", b"new"))


class Images:
    """Builds the flows anew for each life, and takes from the life before what a dead process would not have."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.prepared: Path | None = None
        """Where a state is that each life begins with a copy of."""
        self._contexts: list[FlowContext] = []

    def prepare(self, directory: Path) -> None:
        """An image without snapshots, whose object is replaced then."""
        clock = VirtualClock(NOON - 3_600_000)  # the lives begin at noon
        removal = DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}", delete=True)
        with Engine.open(directory / "state", flows=self.flows(directory), clock=clock) as engine:
            for flow, request in (("process-image", request_for(self.source)), ("deactivate-snapshot", removal)):
                job = engine.submit(flow, request)
                run_until_idle(engine, clock)
                assert engine.store.job(job).state is JobState.SUCCEEDED
            # A life submits its jobs if it finds none.
            engine.store.prune(before=NOON, limit=100, actor="test", dry_run=False)
            assert engine.store.jobs() == []
        self.close()
        self.prepared = directory
        self.source.write_bytes(NEW)

    def submit_update(self, engine: Engine) -> None:
        request = request_for(self.source, sha256=hashlib.sha256(NEW).hexdigest())
        engine.submit("process-image", request, key=key_of(request))

    def flows(self, directory: Path) -> list[Flow[Any, Any]]:
        self.close()
        if self.prepared is not None and not (directory / "state").exists():
            shutil.copytree(self.prepared / "state", directory / "state")
        ctx = context_at(directory)
        self._contexts.append(ctx)
        return all_flows(ctx)

    def submit(self, engine: Engine) -> None:
        request = request_for(self.source)
        engine.submit("process-image", request, key=key_of(request))

    def submit_removal(self, engine: Engine) -> None:
        request = request_for(self.source)
        process = engine.prepare("process-image", request, key=key_of(request))
        removal = RemoveRequest(image_id=IMAGE_ID, force=True)
        # In one transaction: a crash between two submits would be the submitter's to repeat.
        engine.submit_many([process, engine.prepare("remove-image", removal, run_after=process.job_id)])

    def observe(self, engine: Engine, directory: Path) -> object:
        """Jobs, rows, files and devices; ids and times left out."""
        catalog = self._contexts[-1].catalog
        state = directory / "state"
        image = catalog.get_image_by_id(IMAGE_ID)
        unpacked = catalog.get_unpacked_image_by_id(IMAGE_ID)
        snapshots = catalog.list_snapshots()
        return {
            "jobs": sorted((job.flow, job.state) for job in engine.store.jobs(limit=100)),
            "image": image and (image.s3_key, image.checksum, image.download_status, image.activation_status),
            "unpacked": unpacked and (unpacked.device_id, unpacked.file_count, unpacked.layout_verified),
            "snapshots": [(row.snapshot_id, row.snapshot_name, row.active) for row in snapshots],
            "locks": catalog.list_image_locks(),
            "reservations": [(row.device_id, row.snapshot_name) for row in catalog.list_reservations()],
            "refusals": [row.code for row in catalog.list_refusals()],
            "updates": catalog.list_updates(),
            "held": unpacked and image and _holds(self._contexts[-1], unpacked.device_name, image.checksum or ""),
            "violations": catalog.violations(),
            "images": sorted(path.name for path in (state / "images").iterdir()) if image else None,
            "devices": sorted(path.name for path in (state / "devices").iterdir()),
            "trees": {
                row.snapshot_name: tree_of(self._contexts[-1].devices.path_of(row.snapshot_name)) for row in snapshots
            },
        }

    def close(self) -> None:
        for ctx in self._contexts:
            ctx.catalog.close()
            assert isinstance(ctx.devices, DirectoryDevices)
            ctx.devices.close()
        self._contexts.clear()


def _holds(ctx: FlowContext, name: str, checksum: str) -> bool:
    """Does the device hold the content that the row says?"""
    found = ctx.devices.look(name)
    return found is not None and found.uuid in uuids_of(IMAGE_ID, checksum)


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Images]:
    source = tmp_path / "source.tar"
    source.write_bytes(small_image())
    images = Images(source)
    yield images
    images.close()


@pytest.mark.parametrize("kill", [False, True], ids=["in process", "SIGKILL"])
def test_the_pipeline_survives_a_sample_of_crashes(images: Images, tmp_path: Path, seed: int, kill: bool) -> None:
    scenario = Scenario(flows=images.flows, submit=images.submit, observe=images.observe)
    report = CrashExplorer(scenario, tmp_path).explore(kill=kill, singles=8, pairs=2, seed=seed)
    print(report)

    assert report.histories == 10
    assert not report.violations, str(report)


@pytest.mark.timeout(400)  # twelve histories, each with the whole pipeline twice
def test_new_content_takes_the_place_of_the_old_wherever_it_crashes(images: Images, tmp_path: Path, seed: int) -> None:
    images.prepare(tmp_path / "prepared")
    scenario = Scenario(flows=images.flows, submit=images.submit_update, observe=images.observe)
    report = CrashExplorer(scenario, tmp_path / "lives").explore(kill=True, singles=10, pairs=2, seed=seed)
    print(report)

    assert not report.violations, str(report)


def test_a_refused_image_leaves_nothing_wherever_it_crashes(images: Images, tmp_path: Path, seed: int) -> None:
    images.source.write_bytes(small_image(HOSTILE))
    scenario = Scenario(flows=images.flows, submit=images.submit, observe=images.observe)
    explorer = CrashExplorer(scenario, tmp_path)
    report = explorer.explore(kill=True, singles=6, seed=seed)
    print(report)

    assert not report.violations, str(report)
    with Engine.open(tmp_path / "history-00001" / "state") as engine:
        [process] = [job for job in engine.store.jobs() if job.flow == "process-image"]
        assert process.state is JobState.FAILED


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["process", "refused", "removed", "updated"])
def test_the_pipeline_survives_sigkill_at_every_point(images: Images, tmp_path: Path, seed: int, name: str) -> None:
    if name == "refused":
        images.source.write_bytes(small_image(HOSTILE))
    if name == "updated":
        images.prepare(tmp_path / "prepared")
    submit = {"removed": images.submit_removal, "updated": images.submit_update}.get(name, images.submit)
    scenario = Scenario(flows=images.flows, submit=submit, observe=images.observe)
    report = CrashExplorer(scenario, tmp_path / "lives").explore(kill=True, pairs=20, seed=seed)
    print(f"{name}: {report}")

    assert len(report.points) >= 40
    assert not report.violations, str(report)
    eventually(lambda: not orphans(), "no child is left")
