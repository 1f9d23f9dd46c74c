"""An engine, a worker and a context of real parts, and one small image as a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine
from holdfast.core.records import JobResult
from holdfast_images.archive import sandbox
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.process import QUEUE_LIMITS, all_flows
from tests.support.images.processing import results_of
from tests.support.images.small_image import context_at, request_for, small_image

Process = Callable[..., dict[str, JobResult]]


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[FlowContext]:
    ctx = context_at(tmp_path)
    yield ctx
    ctx.catalog.close()


@pytest.fixture
def engine(tmp_path: Path, ctx: FlowContext) -> Iterator[Engine]:
    with Engine.open(tmp_path / "state", flows=all_flows(ctx)) as engine:
        for queue, limit in QUEUE_LIMITS.items():
            engine.queue(queue, limit=limit)
        with engine.worker(concurrency=16):
            yield engine


@pytest.fixture(params=[1, 2], ids=["one-process", "two-processes"])
def writers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many processes write, however small the archive: two make the same of it as one."""
    count: int = request.param
    monkeypatch.setattr(sandbox, "worthwhile_processes", lambda _: count)
    return count


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source.tar"
    source.write_bytes(small_image())
    return source


@pytest.fixture
def process(engine: Engine, source: Path) -> Process:
    """Process the image to its end; the stages that were reached, and `process` itself."""

    def process(**options: Any) -> dict[str, JobResult]:
        return results_of(engine, request_for(source, **options))

    return process
