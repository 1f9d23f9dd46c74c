"""The engine in one object: open a store, submit jobs, run them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from holdfast.client import Client, given
from holdfast.core.facts import Finding, Severity
from holdfast.core.flow import Flow, Pipeline
from holdfast.errors import BadInput, StoreCorrupt
from holdfast.guard import Check, Rounds, Watch, check, look_at_open, stop_stalled
from holdfast.store.open import open_store
from holdfast.store.protocol import Store
from holdfast.store.submit import REQUEST_LIMIT
from holdfast.tables import OpenTables, Tables
from holdfast.worker.leases import WorkerSettings
from holdfast.worker.telemetry import Telemetry
from holdfast.worker.worker import Worker

log = logging.getLogger("holdfast")


class Engine(Client):
    """A client that can also run what it submits."""

    findings: Sequence[Finding] = ()
    """What the check at open has found."""

    _place: str | Path | None = None
    _synchronous = "FULL"

    def __init__(self, *given: Any, **settings: Any) -> None:
        self._tables: dict[str, OpenTables] = {}
        super().__init__(*given, **settings)

    @classmethod
    def open(
        cls,
        place: str | Path,
        *,
        flows: Iterable[Flow[Any, Any]] = (),
        actor: str = "client",
        synchronous: str = "FULL",
        clock: Callable[[], int] | None = None,
        request_limit: int = REQUEST_LIMIT,
    ) -> Engine:
        """Open the store at `place` (a state directory or a URL), making it if it is not there.

        A look at the rules, the short tables, what runs and some other jobs is part of opening: at all of a small
        database, at a part of a large one that is another each time. What it finds is logged and kept in `findings`.
        """
        store = open_store(place, synchronous=synchronous, clock=clock)
        try:
            engine = cls(store, flows, actor=actor, request_limit=request_limit)
            engine._place, engine._synchronous = place, synchronous
            for flow in engine.flows.values():
                for tables in flow.tables:
                    engine.tables(cast(Tables, tables))
            engine.findings = look_at_open(store, chance=random.random())
        except BaseException:
            store.close()
            raise
        for finding in engine.findings:
            level = logging.ERROR if finding.severity is Severity.ERROR else logging.INFO
            log.log(level, "%s: %s", finding.subject, finding.message)
        return engine

    @property
    def place(self) -> str:
        """Where the store is, as it was opened; empty if it was opened by somebody else."""
        return str(self._place or "")

    def register(self, flow: Flow[Any, Any]) -> None:
        """Make a flow known here; a pipeline brings its stages along."""
        super().register(flow)
        if isinstance(flow, Pipeline):
            for stage in flow.stages.values():
                self.register(stage)

    def tables(self, tables: Tables) -> OpenTables:
        """These tables of the application, at the place of this engine: made, if they are not there; closed with it."""
        opened = self._tables.get(tables.name)
        if opened is None:
            if self._place is None:
                raise BadInput("this engine was not opened at a place", hint="Engine.open(...), or tables.open(place)")
            opened = self._tables[tables.name] = tables.open(self._place, synchronous=self._synchronous)
        elif opened.tables is not tables:
            raise BadInput(f"two different sets of tables are named {tables.name!r}", hint="rename one of them")
        return opened

    def queue(self, name: str, *, limit: int | None) -> None:
        """How many jobs of a queue may run at once, over all processes; an operator's setting stays above this."""
        self.store.set_queue(name, max_running=limit, actor=None)

    def check(self, *, deep: bool = False) -> list[Finding]:
        """Every finding about the database and every job in it; `deep` reads every page as well."""
        return check(self.store, deep=deep)

    def refuse_broken_rules(self) -> None:
        """Raise StoreCorrupt if somebody has dropped or changed a rule that the database is to keep."""
        broken = next((one for one in self.store.missing_rules() if one.severity is Severity.ERROR), None)
        if broken is not None:
            raise StoreCorrupt(
                f"{broken.subject} {broken.message}: without its rules the database cannot be trusted with work",
                hint="see everything that is wrong: holdfast check",
            )

    @contextmanager
    def worker(
        self, *, telemetry: Telemetry | None = None, checks: Sequence[Check] = (), **settings: Any
    ) -> Iterator[Worker]:
        """A worker in this process, stopped cleanly at the end of the block; settings as in WorkerSettings.

        The guard looks beside it, for the first time after its interval: an open has just looked. `checks` are what the
        application has to say of its own rows, asked in every round.
        """
        chosen = WorkerSettings(**settings)
        worker = Worker(self.store, self.flows, chosen, telemetry or Telemetry(), prepare=self.refuse_broken_rules)
        with ExitStack() as services:
            services.callback(worker.stop)
            worker.start()
            if chosen.check_interval:
                services.enter_context(guarding(worker, self.store, chosen, at_once=False, checks=checks))
            yield worker

    def recover_stalled(self, job_id: str, *, reason: str) -> bool:
        """Stop a job that makes no progress, and let it try again; False if it is not stalled."""
        self.store.job(job_id)  # one that does not exist is an error, and not just not stalled
        return bool(stop_stalled(self.store, actor=self.actor, reason=given(reason), only=[job_id]))

    def close(self) -> None:
        """Close the store, and the tables beside it."""
        for opened in self._tables.values():
            opened.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def guarding(
    worker: Worker, store: Store, settings: WorkerSettings, *, at_once: bool, checks: Sequence[Check] = ()
) -> Iterator[Watch]:
    """The guard's rounds beside a worker, with the checks of the application."""
    watch = Watch(
        store,
        telemetry=worker.telemetry,
        automatic=settings.stall == "automatic",
        actor=f"guard:{worker.worker_id}",
        checks=checks,
    )
    with watch, Rounds(watch.run_once, interval=settings.check_interval, at_once=at_once):
        yield watch
