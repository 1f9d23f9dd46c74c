"""The same random histories on both stores, under the same clock: the same answers, errors, states and journals."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.states import Disposition, JobState
from holdfast.core.step import PATH_AFTER_FAILURE, PATH_GIVEN_BACK, EndCode
from holdfast.core.values import ulid_from
from holdfast.errors import HoldfastError
from holdfast.store.commands import Claim, StoreTransaction
from tests.support import bench as writes
from tests.support.backends import Backend, PostgresBackend, SqliteBackend
from tests.support.bench import FINGERPRINT, LEASE_MS, OPERATOR, OTHER, WORKER, Bench, SettableClock, definition_of

HISTORIES = 12
LENGTH = 70
ULID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")
SEALS = re.compile(r"(?<=steps\\\":\\\"\d:)[0-9a-f]{32}")
"""Digests of what ids of executions are part of."""
FLOWS = {"demo": FINGERPRINT, "changed": definition_of("2", "changed")["fingerprint"]}

Op = Callable[["Player"], Any]


class Player:
    """One store and what a history has met on it so far."""

    def __init__(self, backend: Backend, clock: SettableClock) -> None:
        self.backend = backend
        self.bench = Bench(backend.open(clock), clock)
        self.store = self.bench.store
        self.claims: list[tuple[Claim, str]] = []
        self.jobs: list[str] = []
        self._names: dict[str, str] = {}

    def play(self, op: Op) -> object:
        """The answer to one operation, or the class of its error."""
        try:
            answer = op(self)
        except HoldfastError as error:
            return type(error).__name__
        return self.normal(answer)

    def normal(self, value: Any) -> str:
        """As text that is the same on both stores: ids of executions are numbered, exceptions are their class."""
        text = msgspec.json.encode(value, enc_hook=lambda one: type(one).__name__).decode()
        return ULID.sub(self._name_of, SEALS.sub("seals", text))

    def _name_of(self, match: re.Match[str]) -> str:
        ulid = match[0]
        return ulid if ulid in self.jobs else self._names.setdefault(ulid, f"id-{len(self._names)}")

    def picture(self) -> list[str]:
        """Everything that can be seen, except the hashes, which contain the ids of executions."""
        store = self.store
        seen: list[Any] = []
        for job_id in self.jobs:
            try:
                seen += [store.job(job_id), store.executions(job_id), store.steps(job_id), store.children(job_id)]
            except HoldfastError as error:
                seen.append(type(error).__name__)
            journal = [msgspec.to_builtins(entry) for entry in store.journal(job_id)]
            seen += [{k: v for k, v in entry.items() if "hash" not in k} for entry in journal]
        seen += [
            store.queues(),
            sorted(map(list, store.counts().items())),
            store.next_due(),
            sorted(store.pruned_heads()),
            sorted(map(list, self.backend.query("SELECT * FROM keys"))),
        ]
        seen.append(sorted(e.exec_id for e in store.under_way()))
        return [self.normal(one) for one in seen]


class History:
    """Draws operations; a claim or job is named by its number, which is the same on both stores."""

    def __init__(self, rng: random.Random, clock: SettableClock, players: list[Player]) -> None:
        self.rng = rng
        self.clock = clock
        self.players = players

    def next(self) -> tuple[str, Op]:
        kinds = [name for name in dir(self) if name.startswith("op_")]
        weights = [{"op_submit": 4, "op_claim": 4, "op_write": 10}.get(kind, 1) for kind in kinds]
        [kind] = self.rng.choices(kinds, weights)
        return kind, getattr(self, kind)()

    def job(self) -> str:
        jobs = self.players[0].jobs
        return self.rng.choice(jobs) if jobs else ulid_from(1, 1)

    def op_submit(self) -> Op:
        rng = self.rng
        batch = []
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            job_id = ulid_from(self.clock(), rng.getrandbits(79))
            parent = self.job() if self.players[0].jobs and rng.random() < 0.2 else None
            batch.append(
                self.players[0].bench.new_job(
                    job_id=job_id,
                    flow=rng.choice(["demo", "demo", "changed"]),
                    key=rng.choice([None, None, "k1", "k2", "k3"]),
                    key_lasts_ms=rng.choice([0, 0, 5000, None]),
                    queue=rng.choice(["", "narrow", "other"]),
                    priority=rng.choice([0, 0, -5, 7]),
                    not_before=rng.choice([0, 0, self.clock() + 5000]),
                    run_after=self.job() if self.players[0].jobs and rng.random() < 0.3 else None,
                    parent=parent,
                    child_name="c" if parent else None,
                    failure_limit=rng.choice([1, 3]),
                    crash_limit=rng.choice([1, 5]),
                    request='{"text":"ü 100% \\u2028 \'"}',
                )
            )

        def submit(player: Player) -> Any:
            player.jobs += [job.job_id for job in batch]
            return player.store.submit(batch, actor="client")

        return submit

    def op_claim(self) -> Op:
        worker, limit = self.rng.choice([WORKER, OTHER]), self.rng.choice([1, 2, 10])

        def claim(player: Player) -> Any:
            claims = player.store.claim(worker_id=worker, flows=FLOWS, limit=limit, lease_ms=LEASE_MS)
            player.claims += [(claim, worker) for claim in claims]
            return claims

        return claim

    def op_write(self) -> Op:
        count = len(self.players[0].claims)
        if not count:
            return self.op_claim()
        rng = self.rng
        # One write for each execution, as a worker has it: what the same step twice in a batch means is left open.
        recent = range(max(0, count - 6), count)
        chosen = rng.sample(recent, min(len(recent), rng.choice([1, 1, 1, 3])))
        worker = self.players[0].claims[chosen[0]][1] if rng.random() < 0.9 else OTHER
        made = [self._write(rng.randrange(9), rng.randrange(3)) for _ in chosen]

        def write(player: Player) -> Any:
            batch = [make(player.claims[index][0]) for make, index in zip(made, chosen, strict=True)]
            answers = player.bench.write(*batch, worker=worker)
            return [answers, player.store.evidence(batch)]

        return write

    def _write(self, kind: int, position: int) -> Callable[[Claim], Any]:
        disposition = self.rng.choice(list(Disposition))
        path = PATH_GIVEN_BACK if disposition is Disposition.RETRY else PATH_AFTER_FAILURE[disposition]
        fails, later = self.rng.random() < 0.3, self.rng.choice([0, self.clock() + 3000])

        def effect(claim: Claim) -> Callable[[StoreTransaction], str]:
            def apply(tx: StoreTransaction) -> str:
                tx.execute(f"INSERT INTO effects (job_id, exec_id) VALUES ('{claim.job.job_id}', 'x')")
                if fails:
                    raise ValueError("no")
                return "{}"

            return apply

        makers: list[Callable[[Claim], Any]] = [
            lambda claim: writes.finish_step(claim, position),
            lambda claim: writes.finish_step(claim, claim.position),
            lambda claim: writes.record_try(claim, position + 1, position=position, retry_at=later, error="nul \0 ü"),
            lambda claim: writes.rewind_to(claim, position),
            writes.plan_ending,
            lambda claim: writes.end(claim, path, EndCode.ERROR, error="went wrong", not_before=later),
            lambda claim: writes.commit(claim, effect(claim)),
            writes.finish,
            lambda claim: writes.begin(claim, **definition_of("2", claim.job.flow)),
        ]
        return makers[kind]

    def op_extend(self) -> Op:
        worker = self.rng.choice([WORKER, OTHER])
        return lambda player: sorted(
            player.normal(held) for held in player.store.extend_leases(worker_id=worker, lease_ms=LEASE_MS)
        )

    def op_recover(self) -> Op:
        dead = self.rng.choice([(), (), (WORKER,), (OTHER,)])
        return lambda player: player.store.recover(is_dead=lambda owner: owner in dead, actor="recovery")

    def op_time(self) -> Op:
        seconds = self.rng.choice([0.001, 1.0, 6.0, 40.0])
        # The clock is shared: it is moved once, by the first of the two.
        return lambda player: self.clock.advance(seconds) if player is self.players[0] else None

    def op_operate(self) -> Op:
        job_id, choice = self.job(), self.rng.randrange(5)
        state = self.rng.choice([JobState.FAILED, JobState.QUARANTINED])
        operations: list[Op] = [
            lambda p: p.store.cancel(job_id, actor=OPERATOR, reason="why"),
            lambda p: p.store.retry(job_id, actor=OPERATOR, reason="why", from_state=state),
            lambda p: p.store.fail(job_id, actor=OPERATOR, reason="why", quarantine=state is JobState.QUARANTINED),
            lambda p: p.store.reproject(job_id, actor=OPERATOR, reason="why"),
            lambda p: p.store.last_progress(p.claims[-1][0].exec_id) if p.claims else None,
        ]
        return operations[choice]

    def op_queue(self) -> Op:
        limit, choice = self.rng.choice([None, 0, 1, 2]), self.rng.randrange(4)
        operations: list[Op] = [
            lambda p: p.store.set_queue("narrow", max_running=limit, actor=None),
            lambda p: p.store.set_queue("narrow", max_running=limit, actor=OPERATOR),
            lambda p: p.store.pause_queue("other", actor=OPERATOR, reason="why"),
            lambda p: p.store.resume_queue("other"),
        ]
        return operations[choice]

    def op_prune(self) -> Op:
        before, dry_run = self.clock() - self.rng.choice([0, 20_000]), self.rng.random() < 0.5
        return lambda player: player.store.prune(before=before, limit=2, actor=OPERATOR, dry_run=dry_run)


@pytest.fixture
def players(tmp_path: Path) -> Iterator[tuple[SettableClock, list[Player]]]:
    clock = SettableClock()
    backends: list[Backend] = [SqliteBackend(tmp_path), PostgresBackend(tmp_path)]
    players = [Player(backend, clock) for backend in backends]
    for backend in backends:
        backend.execute(writes.EFFECTS_TABLE)
    yield clock, players
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("number", range(HISTORIES))
def test_both_stores_tell_the_same_story(
    players: tuple[SettableClock, list[Player]], rng: random.Random, number: int
) -> None:
    clock, [sqlite, postgres] = players
    history = History(rng, clock, [sqlite, postgres])
    told: list[str] = []
    for _ in range(LENGTH):
        kind, op = history.next()
        first, second = sqlite.play(op), postgres.play(op)
        told.append(f"{kind}: {first}")

        assert second == first, "\n".join(told[-8:])
    effects = [sorted(player.backend.query("SELECT job_id FROM effects")) for player in (sqlite, postgres)]

    assert postgres.picture() == sqlite.picture()
    assert effects[0] == effects[1]
    for player in (sqlite, postgres):
        # These histories finish steps in any order, and under any name.
        assert [finding for finding in player.bench.findings() if not finding.code.startswith("step-")] == []
        assert list(player.store.integrity(deep=False)) == []
