"""A fresh directory with an app for each test, and one whose jobs have all ended, to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.driving import Holdfast


@pytest.fixture
def holdfast(tmp_path: Path) -> Holdfast:
    """The command, with an app and without a state."""
    return Holdfast(tmp_path)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Holdfast:
    """A state with a job in each final state and a pipeline. To be looked at, never to be changed."""
    holdfast = Holdfast(tmp_path_factory.mktemp("history"))
    for flow in ("greet", "doomed", "broken", "both"):
        holdfast.submit(flow, '{"name": "you"}', "--key", f"key-{flow}")
    holdfast.submit("later", '{"name": "you"}', "--priority", "7")
    holdfast.run_all()
    return holdfast


@pytest.fixture
def jobs_of_history(history: Holdfast) -> dict[str, str]:
    """flow → job id, of the state that has all."""
    return {job["flow"]: job["job_id"] for job in history.json("jobs")["jobs"]}
