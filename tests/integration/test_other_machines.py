"""On a store that machines share, nobody judges a worker of another machine by what this machine knows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast import Engine
from holdfast.core.values import parse_worker_id
from holdfast.store import liveness
from holdfast.worker.leases import FORGET_AFTER_MS, Recovery
from holdfast.worker.telemetry import Telemetry
from tests.integration.fleet_app import Work, fleet_flow
from tests.support.backends import PostgresBackend, SqliteBackend
from tests.support.bench import SettableClock

GONE_PID = 4_194_304


def worker_like_us(**differences: object) -> str:
    us = parse_worker_id(liveness.new_worker_id())
    assert us is not None
    return str(msgspec.structs.replace(us, **differences))


def test_another_boot_is_dead_on_one_machine_and_unknown_on_a_shared_store() -> None:
    """Two machines may have one name; their boots are never the same."""
    other = worker_like_us(boot="another")

    assert liveness.is_dead(other, one_machine=True)
    assert not liveness.is_dead(other, one_machine=False)


@pytest.mark.parametrize("one_machine", [True, False])
def test_a_process_of_this_boot_and_namespace_is_judged_by_its_pid(one_machine: bool) -> None:
    assert liveness.is_dead(worker_like_us(pid=GONE_PID), one_machine=one_machine)
    assert not liveness.is_dead(worker_like_us(), one_machine=one_machine)


@pytest.mark.parametrize("one_machine", [True, False])
def test_a_process_of_another_namespace_or_host_is_never_judged(one_machine: bool) -> None:
    assert not liveness.is_dead(worker_like_us(pid=GONE_PID, namespace=1), one_machine=one_machine)
    assert not liveness.is_dead(worker_like_us(pid=GONE_PID, host="elsewhere"), one_machine=one_machine)


JUDGE_AS_ANOTHER_USER = """
import os, sys
from holdfast.store import liveness
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
living, gone = sys.argv[1:]
assert not os.path.exists(f"/proc/{os.getppid()}"), "other users' processes are to be hidden"
print(liveness.is_dead(living), liveness.pidfd_of(living), liveness.is_dead(gone))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_process_that_proc_hides_from_this_user_is_not_taken_for_dead() -> None:
    """With hidepid=2 the processes of other users cannot be seen, but they are there."""
    words = ["sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$0" -c "$@"', sys.executable]
    judged = subprocess.run(
        ["unshare", "-m", *words, JUDGE_AS_ANOTHER_USER, worker_like_us(), worker_like_us(pid=GONE_PID)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert judged.stdout.split() == ["False", "None", "True"], judged.stderr


def test_no_descriptor_is_opened_for_a_pid_of_another_boot() -> None:
    """The same pid is alive here, and is somebody else."""
    assert liveness.pidfd_of(worker_like_us(boot="another", pid=1)) is None


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[Engine, SettableClock]]:
    clock = SettableClock()
    backend = PostgresBackend(tmp_path)
    with Engine.open(backend.place, flows=[fleet_flow], clock=clock) as engine:
        yield engine, clock


def test_the_leases_of_a_worker_on_another_machine_are_left_to_run_out(shared: tuple[Engine, SettableClock]) -> None:
    engine, clock = shared
    engine.submit(fleet_flow, Work(1))
    elsewhere = worker_like_us(boot="another", pid=GONE_PID)
    flows = {"fleet": fleet_flow.fingerprint}
    engine.store.claim(worker_id=elsewhere, flows=flows, limit=1, lease_ms=30_000)
    recovery = Recovery(engine.store, worker_id=liveness.new_worker_id(), telemetry=Telemetry())

    early = recovery.run_once()
    clock.advance(31)
    late = recovery.run_once()
    recovery.close()

    assert early == []
    assert [one.owner for one in late] == [elsewhere]


def test_explain_takes_a_worker_of_another_machine_for_live_while_it_is_heard_of(
    shared: tuple[Engine, SettableClock],
) -> None:
    engine, clock = shared
    job_id = engine.submit(fleet_flow, Work(1))
    alone = engine.explain(job_id).code
    engine.store.announce(worker_id=worker_like_us(boot="another", pid=GONE_PID), flows=["fleet"])
    clock.advance(89)
    heard = engine.explain(job_id).code
    clock.advance(2)
    silent = engine.explain(job_id).code

    assert heard != alone
    assert silent == alone


def test_a_machine_that_is_gone_for_good_is_forgotten(shared: tuple[Engine, SettableClock]) -> None:
    engine, clock = shared
    engine.store.announce(worker_id=worker_like_us(boot="another"), flows=["fleet"])
    recovery = Recovery(engine.store, worker_id=liveness.new_worker_id(), telemetry=Telemetry())
    recovery.run_once()
    before = len(engine.store.workers())
    clock.advance(FORGET_AFTER_MS / 1000 + 1)
    recovery.run_once()
    recovery.close()

    assert before == 1
    assert engine.store.workers() == []


def test_a_file_is_used_by_one_machine_and_a_server_by_many(tmp_path: Path) -> None:
    file, server = SqliteBackend(tmp_path), PostgresBackend(tmp_path)

    assert file.open(None).one_machine
    assert not server.open(None).one_machine
    file.close()
    server.close()


def test_the_time_of_a_server_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = PostgresBackend(tmp_path)
    store = backend.open(None)
    right = time.time()
    monkeypatch.setattr(time, "time", lambda: right + 3600)
    monkeypatch.setattr(time, "time_ns", lambda: int((right + 3600) * 1e9))

    assert abs(store.now() / 1000 - right) < 60
    backend.close()
