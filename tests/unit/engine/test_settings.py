"""Settings of a worker are checked when they are made, not where they first go wrong."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import WorkerSettings
from holdfast.errors import SettingsError

NUMBERS = [float("nan"), float("inf"), -1, "1", True, None, 10**30]


@pytest.mark.parametrize("name", ["lease", "recovery_interval", "timeout_grace", "stop_grace"])
@pytest.mark.parametrize("value", NUMBERS)
def test_a_time_that_is_no_number_of_seconds_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        WorkerSettings(**{name: value})


@pytest.mark.parametrize("value", [*NUMBERS, 0, 1.5, 2.0])
def test_a_concurrency_that_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match="concurrency"):
        WorkerSettings(concurrency=value)


def test_what_can_be_meant_is_accepted() -> None:
    settings = WorkerSettings(concurrency=1, lease=0.1, recovery_interval=1, timeout_grace=0, stop_grace=0)

    assert (settings.concurrency, settings.lease) == (1, 0.1)
