"""These tests need a kernel with a device mapper that may be used at will: `python -m tests.guest` boots one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Engine
from holdfast.core.records import JobResult
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import UDEV
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.process import QUEUE_LIMITS, all_flows
from tests.devicemapper.flow_context import context, image_of, request_for
from tests.devicemapper.pools import open_devices, remove_everything
from tests.support.images.device_backends import IN_GUEST
from tests.support.images.processing import results_of

Process = Callable[..., dict[str, JobResult]]

# Collected in the guest only: there each of them runs, here none of them is a test.
collect_ignore_glob = [] if IN_GUEST else ["test_*.py"]
# And these where a udevd runs: python -m tests.guest udev
collect_ignore = [] if UDEV.exists() and IN_GUEST else ["udev"]


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[DeviceMapperDevices]:
    devices = open_devices(tmp_path, patience=0.3)
    yield devices
    devices.close()
    remove_everything()


@pytest.fixture
def ctx(tmp_path: Path, devices: DeviceMapperDevices) -> Iterator[FlowContext]:
    ctx = context(tmp_path, devices)
    yield ctx
    ctx.catalog.close()


@pytest.fixture
def engine(tmp_path: Path, ctx: FlowContext) -> Iterator[Engine]:
    with Engine.open(tmp_path, flows=all_flows(ctx)) as engine:
        for queue, limit in QUEUE_LIMITS.items():
            engine.queue(queue, limit=limit)
        with engine.worker(concurrency=4):
            yield engine


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source.tar"
    source.write_bytes(image_of(60, 20_000))
    return source


@pytest.fixture
def process(engine: Engine, source: Path) -> Process:
    """Process the image to its end; the stages that were reached, and `process` itself."""

    def process(**options: object) -> dict[str, JobResult]:
        return results_of(engine, request_for(source, **options))  # type: ignore[arg-type]

    return process
