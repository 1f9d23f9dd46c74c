"""Two hosts on one PostgreSQL: each has its own devices, rows and jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Engine, JobState
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.process import all_flows
from holdfast_images.flows.schemas import RemoveRequest, key_of
from tests.support.backends import PostgresBackend
from tests.support.images.small_image import IMAGE_ID, request_for, small_image

HOSTS = ("alpha", "beta")


class Host:
    """A context and an engine that knows its flows."""

    def __init__(self, place: str, name: str, directory: Path) -> None:
        self.name = name
        self.ctx = FlowContext(
            catalog=Catalog.open(place, host=name),
            devices=DirectoryDevices.open(directory),
            images=directory / "images",
            host=name,
        )
        self.engine = Engine.open(place, flows=all_flows(self.ctx), actor=name)

    def submit(self, source: Path) -> str:
        request = request_for(source)
        return self.engine.submit(self.ctx.flow_name("process-image"), request, key=key_of(request))

    def close(self) -> None:
        self.engine.close()
        self.ctx.catalog.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    backend = PostgresBackend(tmp_path)
    with ExitStack() as stack:
        hosts = []
        for name in HOSTS:
            host = Host(backend.place, name, tmp_path / name)
            stack.callback(host.close)
            hosts.append(host)
        yield hosts
    backend.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source.tar"
    source.write_bytes(small_image())
    return source


def test_each_host_processes_the_image_for_itself(hosts: list[Host], source: Path) -> None:
    alpha, beta = hosts
    jobs = [host.submit(source) for host in hosts]
    with alpha.engine.worker(), beta.engine.worker():
        results = [host.engine.wait(job, timeout=60) for host, job in zip(hosts, jobs, strict=True)]
    paths = [[row.device_path for row in host.ctx.catalog.list_snapshots()] for host in hosts]

    assert [result.state for result in results] == [JobState.SUCCEEDED] * 2
    assert jobs[0] != jobs[1]
    assert [len(each) for each in paths] == [1, 1]
    assert all(f"/{host.name}/" in each[0] for host, each in zip(hosts, paths, strict=True))
    assert [host.ctx.catalog.violations() for host in hosts] == [[], []]


def test_the_jobs_of_one_host_are_left_alone_by_the_others(hosts: list[Host], source: Path) -> None:
    alpha, beta = hosts
    job = alpha.submit(source)
    with beta.engine.worker():
        beta.engine.wait(beta.submit(source), timeout=60)
        waiting = alpha.engine.store.job(job).state
    with alpha.engine.worker():
        result = alpha.engine.wait(job, timeout=60)

    assert waiting is JobState.PENDING
    assert result.state is JobState.SUCCEEDED


def test_removing_an_image_from_one_host_leaves_it_on_the_other(hosts: list[Host], source: Path) -> None:
    alpha, beta = hosts
    with alpha.engine.worker(), beta.engine.worker():
        for host in hosts:
            host.engine.wait(host.submit(source), timeout=60)
        removal = RemoveRequest(image_id=IMAGE_ID, force=True)
        removed = alpha.engine.wait(alpha.engine.submit(alpha.ctx.flow_name("remove-image"), removal), timeout=60)

    assert removed.state is JobState.SUCCEEDED
    assert alpha.ctx.catalog.list_images() == []
    assert alpha.ctx.devices.found() == []
    assert [row.image_id for row in beta.ctx.catalog.list_images()] == [IMAGE_ID]
    assert len(beta.ctx.devices.found()) == 2
