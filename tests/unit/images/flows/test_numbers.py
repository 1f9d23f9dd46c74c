"""The numbers of the image flows: retries, limits per class of errors, timeouts, queues. Changing one is a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.core.flow import Step
from holdfast_images.errors import CatalogUnavailable, DeviceBusy, SourceChanged, SourceUnavailable
from holdfast_images.flows.context import FlowContext, Timeouts
from holdfast_images.flows.process import all_flows, queue_limits

FILES: dict[Any, int] = {OSError: 2}
NETWORK: dict[Any, int] = {SourceUnavailable: 5, SourceChanged: 5}
DEVICES: dict[Any, int] = {DeviceBusy: 2}
DATABASE: dict[Any, int] = {CatalogUnavailable: 5}

# Kind, tries after the first, jitter, seconds, and limits of their own for classes of errors.
STEPS: dict[str, dict[str, tuple[Any, ...]]] = {
    "download-image": {
        "check-exists": ("exponential", 3, False, None, FILES),
        "download": ("exponential", 5, True, 300.0, {**NETWORK, **FILES}),
        "validate": ("fixed", 2, False, None, {}),
        "store-metadata": ("exponential", 5, True, None, {**DATABASE, **FILES}),
    },
    "unpack-image": {
        "check-unpacked": ("exponential", 3, False, None, {**DEVICES, **FILES}),
        "create-device": ("fixed", 3, False, None, {}),
        # 30 minutes for the process that extracts, all of them, and half a minute to tell that they are over.
        "extract-layers": ("fixed", 2, False, 1830.0, {}),
        "verify-layout": ("fixed", 2, False, None, {}),
        "update-db": ("exponential", 5, False, None, DATABASE),
    },
    "activate-image": {
        "check-snapshot": ("exponential", 3, False, None, {**DEVICES, **FILES}),
        "create-snapshot": ("fixed", 3, False, None, {}),
        "register": ("exponential", 5, True, None, DATABASE),
    },
}
QUEUES = {"download-image": "downloads", "unpack-image": "unpacking", "activate-image": ""}


@pytest.fixture
def ctx(tmp_path: Path) -> FlowContext:
    return FlowContext(catalog=None, devices=None, images=tmp_path)  # type: ignore[arg-type] # nothing is run


def kind(step: Step) -> str:
    return "fixed" if step.retry.factor == 1.0 else "exponential"


@pytest.mark.parametrize("name", STEPS)
def test_the_whole_table_is_as_it_was_decided(ctx: FlowContext, name: str) -> None:
    [flow] = [each for each in all_flows(ctx) if each.name == name]
    steps = {
        step.name: (kind(step), step.retry.retries, step.retry.jitter, step.timeout, dict(step.retry.limits))
        for step in flow.steps
    }

    assert steps == STEPS[name]
    assert list(steps) == list(STEPS[name])
    assert flow.queue == QUEUES[name]


def test_the_queues_have_their_limits(ctx: FlowContext) -> None:
    assert queue_limits(ctx) == {"downloads": 5, "unpacking": 2}


def test_downloads_have_five_minutes_and_extractions_thirty() -> None:
    assert (Timeouts().download, Timeouts().extract) == (5 * 60, 30 * 60)


def test_a_flow_without_progress_is_stalled_after_ten_minutes(ctx: FlowContext) -> None:
    assert {flow.stall_after for flow in all_flows(ctx)} == {600.0}
