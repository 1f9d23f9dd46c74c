"""process-image, killed at every crash point: the same end, one commit per job, nothing leaked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine, Flow, JobState
from holdfast.testing import CrashExplorer, Scenario
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.flows.messages import RemoveRequest, key_of
from holdfast_images.flows.process import all_flows
from holdfast_images.flows.workshop import Workshop
from tests.support.images.archives import member
from tests.support.images.children import orphans
from tests.support.images.small_image import IMAGE_ID, request_for, small_image, tree_of, workshop_at
from tests.support.waiting import eventually

HOSTILE = member(b"rootfs/usr/bin", b"", mode=0o4755)


class Images:
    """Builds the flows anew for each life, and takes from the life before what a dead process would not have."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self._shops: list[Workshop] = []

    def flows(self, directory: Path) -> list[Flow[Any, Any]]:
        self.close()
        shop = workshop_at(directory)
        self._shops.append(shop)
        return all_flows(shop)

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
        catalog = self._shops[-1].catalog
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
            "violations": catalog.violations(),
            "images": sorted(path.name for path in (state / "images").iterdir()) if image else None,
            "devices": sorted(path.name for path in (state / "devices").iterdir()),
            "trees": {row.snapshot_name: tree_of(Path(row.device_path)) for row in snapshots},
        }

    def close(self) -> None:
        for shop in self._shops:
            shop.catalog.close()
            assert isinstance(shop.devices, DirectoryDevices)
            shop.devices.close()
        self._shops.clear()


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
@pytest.mark.parametrize("name", ["process", "refused", "removed"])
def test_the_pipeline_survives_sigkill_at_every_point(images: Images, tmp_path: Path, seed: int, name: str) -> None:
    if name == "refused":
        images.source.write_bytes(small_image(HOSTILE))
    submit = images.submit_removal if name == "removed" else images.submit
    scenario = Scenario(flows=images.flows, submit=submit, observe=images.observe)
    report = CrashExplorer(scenario, tmp_path).explore(kill=True, pairs=20, seed=seed)
    print(f"{name}: {report}")

    assert len(report.points) >= 40
    assert not report.violations, str(report)
    eventually(lambda: not orphans(), "no child is left")
