"""The same crashes on PostgreSQL: a killed worker leaves a connection that the server has to give up."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec
import pytest

from holdfast.testing import CrashExplorer, Scenario
from tests.crash.scenarios import SCENARIOS
from tests.support.backends import shared_server


def on_postgres(scenario: Scenario) -> Scenario:
    """Each history in a schema of its own, the user's table of effects in the same."""
    prefix = f"c_{secrets.token_hex(4)}"

    def place(directory: Path) -> str:
        schema = f"{prefix}_{directory.name.replace('-', '_')}"
        return f"{shared_server().url}?holdfast_schema={schema}&options=-csearch_path%3D{schema}"

    return msgspec.structs.replace(scenario, place=place)


@pytest.mark.parametrize("kill", [False, True], ids=["in process", "SIGKILL"])
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_kind_of_flow_survives_a_sample_of_crashes(name: str, kill: bool, tmp_path: Path, seed: int) -> None:
    report = CrashExplorer(on_postgres(SCENARIOS[name]), tmp_path).explore(kill=kill, singles=6, pairs=2, seed=seed)
    print(f"{name}: {report}")

    assert report.histories == 8
    assert not report.violations, str(report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_kind_of_flow_survives_sigkill_at_every_point(name: str, tmp_path: Path, seed: int) -> None:
    report = CrashExplorer(on_postgres(SCENARIOS[name]), tmp_path).explore(kill=True, pairs=40, seed=seed)
    print(f"{name}: {report}")

    assert not report.violations, str(report)
