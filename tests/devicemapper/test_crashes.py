"""process-image on thin devices, killed: what it had mounted and shown outlives it, and the next process copes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine, Flow
from holdfast.testing import CrashExplorer, Scenario
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.process import all_flows
from holdfast_images.flows.schemas import key_of
from tests.devicemapper.flow_context import context, faults, image_of, request_for, seen
from tests.devicemapper.pools import open_devices, remove_everything


class Images:
    """The flows built anew for each life, over the pool of its history."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self._open: tuple[FlowContext, DeviceMapperDevices] | None = None

    def flows(self, directory: Path) -> list[Flow[Any, Any]]:
        self.close()
        devices = open_devices(directory / "state")
        ctx = context(directory / "state", devices)
        self._open = ctx, devices
        return all_flows(ctx)

    def submit(self, engine: Engine) -> None:
        request = request_for(self.source)
        engine.submit("process-image", request, key=key_of(request))

    def observe(self, engine: Engine, directory: Path) -> object:
        assert self._open is not None
        return seen(*self._open), faults(*self._open)

    def close(self) -> None:
        if self._open is not None:
            ctx, devices = self._open
            ctx.catalog.close()
            devices.close()
            self._open = None


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Images]:
    source = tmp_path / "source.tar"
    source.write_bytes(image_of(60, 20_000))
    images = Images(source)
    yield images
    images.close()
    remove_everything()


def test_the_pipeline_survives_a_sample_of_kills(images: Images, tmp_path: Path, seed: int) -> None:
    scenario = Scenario(flows=images.flows, submit=images.submit, observe=images.observe)
    report = CrashExplorer(scenario, tmp_path).explore(kill=True, singles=4, pairs=1, seed=seed)
    print(report)

    assert report.crashes == 6
    assert not report.violations, str(report)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_the_pipeline_survives_kills_at_every_point(images: Images, tmp_path: Path, seed: int) -> None:
    scenario = Scenario(flows=images.flows, submit=images.submit, observe=images.observe)
    report = CrashExplorer(scenario, tmp_path).explore(kill=True, pairs=10, seed=seed)
    print(report)

    assert not report.violations, str(report)
