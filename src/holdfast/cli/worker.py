"""What makes a process a service: signals, rounds in the background, word to the service manager, idleness."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import click
import msgspec

from holdfast import logs
from holdfast.bulk import Bulk
from holdfast.cli.command import Command, CommandSettings, ExitCode
from holdfast.cli.context import App, app_of, opened
from holdfast.cli.output import print_json
from holdfast.core.records import JobRecord
from holdfast.core.states import UNFINISHED_STATES, JobState
from holdfast.core.values import checked_name
from holdfast.engine import Engine, guarding
from holdfast.errors import HoldfastError, SettingsError, StoreError
from holdfast.guard import Check, Rounds, checked_days, remove_ended
from holdfast.store.commit_step import is_passing
from holdfast.store.protocol import Store
from holdfast.tables import make_tables
from holdfast.worker.leases import WorkerSettings
from holdfast.worker.telemetry import Telemetry
from holdfast.worker.threads import FIRST_PAUSE, LONGEST_PAUSE
from holdfast.worker.worker import Worker

Result = TypeVar("Result")

log = logging.getLogger("holdfast.worker")

IDLE_LOOK = 0.05
IDLE_PATIENCE = 1.0
FIRST_LOOK = 100
"""How many unfinished jobs are looked at first: of a long queue the first few are enough to know."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks for a clean stop, the second ends the process at once.

    The handler only writes to a pipe: a lock taken there may be held by the very code it has interrupted.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self.descriptor, self._signalled = os.pipe()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self.descriptor)
        os.close(self._signalled)

    def wait(self, timeout: float) -> None:
        """Until a signal comes or the time is up."""
        select.select([self.descriptor], [], [], timeout)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            os.write(2, b"holdfast: second signal, ending now\n")
            os._exit(ExitCode.INTERRUPTED)
        self.received = signal.Signals(number).name
        os.write(self._signalled, b".")


def wait_for_store(attempt: Callable[[], Result], signals: StopSignals) -> Result | None:
    """What `attempt` gives, as soon as the store can be used; None if a signal came before."""
    pause = FIRST_PAUSE
    while signals.received is None:
        try:
            return attempt()
        except Exception as error:
            if not is_passing(error):
                raise
            log.warning("the database cannot be used yet, next try in %.1f s: %s", pause, error)
        signals.wait(pause)
        pause = min(LONGEST_PAUSE, pause * 2)
    log.info("stopped on %s, before anything was begun", signals.received)
    return None


def notify_service_manager(state: str) -> None:
    """Tell systemd, if it asked to be told (Type=notify). Whether it hears is not our concern."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        import socket  # noqa: PLC0415 - for service managers only

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.send(state.encode())
    except OSError as error:
        log.warning("the service manager cannot be told %s: %s", state, error)


def watchdog_interval() -> float | None:
    """How often systemd wants to hear that all is well (WatchdogSec=): three times in the time it allows."""
    asked, whom = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not asked.isdecimal() or int(asked) == 0 or whom not in ("", str(os.getpid())):
        return None
    return int(asked) / 1e6 / 3


def wait_until_idle(store: Store, flows: Sequence[str], running: Worker, signals: StopSignals) -> None:
    """Until nothing of these flows runs or will start by itself, the worker cannot go on, or a signal comes."""
    listener = store.listen()
    listener.watch({signals.descriptor})
    try:
        while signals.received is None and running.failure is None and (running.active or _may_have_work(store, flows)):
            listener.wait(IDLE_LOOK if running.active else IDLE_PATIENCE)
    finally:
        listener.close()


def _may_have_work(store: Store, flows: Sequence[str]) -> bool:
    try:
        return has_work(store, flows)
    except StoreError as error:
        if not error.passing:
            raise
        # The worker waits for the database to come back, and so do we: nobody knows that nothing is left to do.
        log.warning("cannot look for work: %s", error)
        return True


def has_work(store: Store, flows: Sequence[str]) -> bool:
    """Is there a job of these flows that runs, or that will start without an operator's help?

    One that waits for another job counts if that other one does.
    """
    closed = {q.name for q in store.queues() if q.paused_at is not None or q.max_running == 0}
    return any(
        store.jobs(states=[JobState.RUNNING], flow=flow, limit=1) or _goes_on(store, flow, flows, closed)
        for flow in flows
    )


def _goes_on(store: Store, flow: str, flows: Sequence[str], closed: set[str]) -> bool:
    limit = FIRST_LOOK
    while True:
        # Both states in one look: a job that starts or is given back meanwhile would be in neither of two.
        unfinished = store.jobs(states=UNFINISHED_STATES, flow=flow, limit=limit)
        if any(_will_start(store, job, flows, closed) for job in unfinished):
            return True
        if len(unfinished) < limit:
            return False
        limit *= 10


def _will_start(store: Store, job: JobRecord, flows: Sequence[str], closed: set[str]) -> bool:
    while job.waits_for is not None and job.state is JobState.PENDING:
        job = store.job(job.waits_for)
    # It runs, or what it waited for has run or ended since the list was read, which has to be read again then.
    return job.state is not JobState.PENDING or (job.flow in flows and job.queue not in closed)


# --- `holdfast worker`: a worker, the guard beside it, metrics and logs around it, until a signal stops it ---


SWITCH_INTERVAL = 0.0005
FAILURE_LOOK = 1.0
READY_LOOK = 0.05
RETENTION_INTERVAL = 600.0
_DEFAULTS = WorkerSettings()


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker runs, in whatever process it is."""

    concurrency: int
    lease: float
    stop_grace: float
    queue_limit: tuple[str, ...]
    check_interval: float
    stall: str
    keep: float | None
    sync: str


class WorkerOptions(RunOptions, frozen=True, kw_only=True):
    """The options of the command."""

    metrics_port: int | None
    metrics_address: str
    exit_when_idle: bool


_RUN_OPTIONS = (
    click.option(
        "--concurrency",
        type=click.IntRange(1, 10_000),
        default=_DEFAULTS.concurrency,
        show_default=True,
        envvar="HOLDFAST_CONCURRENCY",
        show_envvar=True,
        metavar="N",
        help="How many jobs to work on at once.",
    ),
    click.option(
        "--lease",
        type=click.FloatRange(0.1),
        default=_DEFAULTS.lease,
        show_default=True,
        envvar="HOLDFAST_LEASE",
        show_envvar=True,
        metavar="SECONDS",
        help="How long others wait before they take over from a worker they hear nothing of.",
    ),
    click.option(
        "--stop-grace",
        type=click.FloatRange(0),
        default=_DEFAULTS.stop_grace,
        show_default=True,
        envvar="HOLDFAST_STOP_GRACE",
        show_envvar=True,
        metavar="SECONDS",
        help="How long steps may take to reach a safe point when the worker is stopped.",
    ),
    click.option(
        "--queue-limit",
        multiple=True,
        metavar="NAME=N",
        help="How many jobs of a queue may run at once, over all processes; `queues limit` overrules it. Repeatable.",
    ),
    click.option(
        "--check-interval",
        type=click.FloatRange(0),
        default=60.0,
        show_default=True,
        envvar="HOLDFAST_CHECK_INTERVAL",
        show_envvar=True,
        metavar="SECONDS",
        help="How often the guard looks for broken invariants and stalls; 0 turns it off.",
    ),
    click.option(
        "--stall",
        type=click.Choice(["automatic", "approval"]),
        default="automatic",
        show_default=True,
        envvar="HOLDFAST_STALL",
        show_envvar=True,
        help="Recover stalled jobs at once, or report them and wait for `stalled --recover`.",
    ),
    click.option(
        "--keep",
        type=click.FloatRange(0),
        envvar="HOLDFAST_KEEP",
        show_envvar=True,
        metavar="DAYS",
        help="Remove jobs that ended longer ago, now and then; without it only `prune` does,"
        " and history fills the disk.",
    ),
    click.option(
        "--sync",
        type=click.Choice(["full", "normal"]),
        default="full",
        show_default=True,
        envvar="HOLDFAST_SYNC",
        show_envvar=True,
        help="full: what was acknowledged survives a power failure; normal: it survives a crash of the process.",
    ),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that runs a worker."""
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return command


@click.command(cls=Command)
@run_options
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    envvar="HOLDFAST_METRICS_PORT",
    show_envvar=True,
    metavar="PORT",
    help="Serve /metrics, /healthz and /readyz on this port, 0 for any free one; without it there are none.",
)
@click.option(
    "--metrics-address",
    default="127.0.0.1",
    show_default=True,
    envvar="HOLDFAST_METRICS_ADDRESS",
    show_envvar=True,
    metavar="ADDRESS",
    help="Where metrics are served.",
)
@click.option("--exit-when-idle", is_flag=True, help="End when no job of these flows can start any more.")
@click.pass_obj
def worker(settings: CommandSettings, /, **given: object) -> int:
    """Run jobs until stopped.

    Runs the flows of --app. SIGTERM or SIGINT stops it cleanly: steps reach a safe point, the rest is given back and
    costs no attempt. A second signal ends it at once; others then take over what it held.
    """
    options = msgspec.convert(given, WorkerOptions)
    checked(options)
    logs.configure(settings.log_format, level=log_level(settings))
    app = app_of(settings)
    with StopSignals() as signals, ExitStack() as stack:
        opening = partial(opened, settings, create=True, synchronous=options.sync.upper())
        store = wait_for_store(lambda: stack.enter_context(opening()), signals)
        if store is not None:
            engine = Engine(store, app.flows, actor=settings.actor)
            if wait_for_store(lambda: prepared(engine, app, settings, options), signals):
                _serve(settings, options, engine, signals, app)
    return ExitCode.OK


def checked(options: RunOptions) -> None:
    """SettingsError if they cannot be right."""
    for text in options.queue_limit:
        _limit_of(text)
    if options.keep is not None:
        checked_days(options.keep)


def prepared(engine: Engine, app: App, settings: CommandSettings, options: RunOptions) -> bool:
    """True, as soon as all is there that the jobs of the app need."""
    engine.refuse_broken_rules()
    app.start()
    make_tables(settings.place, app.flows, synchronous=options.sync.upper())
    for name, limit in [*app.queue_limits.items(), *map(_limit_of, options.queue_limit)]:
        engine.queue(name, limit=limit)
    return True


def worker_of(engine: Engine, options: RunOptions) -> Worker:
    """A worker that is not started yet."""
    # After each statement the writer has to get the interpreter back; the default of 5 ms would be its latency.
    sys.setswitchinterval(SWITCH_INTERVAL)
    # Bulk actions are jobs of the engine's own: whoever submits one counts on any worker.
    Bulk(engine)
    return Worker(engine.store, engine.flows, _settings_of(options), Telemetry())


def _settings_of(options: RunOptions) -> WorkerSettings:
    return WorkerSettings(
        concurrency=options.concurrency,
        lease=options.lease,
        stop_grace=options.stop_grace,
        check_interval=options.check_interval,
        stall=options.stall,
    )


@contextmanager
def at_work(running: Worker, engine: Engine, options: RunOptions, check: Check) -> Iterator[None]:
    """The worker with the guard beside it: started, and stopped cleanly at the end, whatever the end is."""
    store = engine.store
    with ExitStack() as services:
        services.enter_context(_running(running))
        if (interval := watchdog_interval()) is not None:
            services.enter_context(Rounds(partial(_feed_watchdog, running), interval=interval, name="watchdog"))
        if options.check_interval:
            services.enter_context(guarding(running, store, _settings_of(options), at_once=True, checks=[check]))
        if options.keep is not None:
            forget = partial(remove_ended, store, days=options.keep, actor=f"retention:{running.worker_id}")
            services.enter_context(Rounds(forget, interval=RETENTION_INTERVAL, name="retention"))
        yield


def refuse_failed(running: Worker) -> None:
    """Raise if the worker has failed."""
    if running.failure is not None:
        raise HoldfastError(
            f"the worker cannot go on: {running.failure}", hint="see the log; other workers take over what it held"
        )


def _serve(settings: CommandSettings, options: WorkerOptions, engine: Engine, signals: StopSignals, app: App) -> None:
    running = worker_of(engine, options)
    metrics = _metrics(options, running, engine.store, app)
    with metrics as url, at_work(running, engine, options, app.check):
        while not running.is_ready and signals.received is None and running.failure is None:
            signals.wait(READY_LOOK)
        if running.is_ready:
            _announce(settings, running, sorted(engine.flows), url)
        if options.exit_when_idle:
            wait_until_idle(engine.store, list(engine.flows), running, signals)
        else:
            while signals.received is None and running.failure is None:
                signals.wait(FAILURE_LOOK)
        refuse_failed(running)
        notify_service_manager("STOPPING=1")
        log.info("stopping%s", f" on {signals.received}" if signals.received else ": nothing is left to do")


@contextmanager
def _running(running: Worker) -> Iterator[Worker]:
    """A worker that is stopped cleanly at the end, whatever the end is."""
    running.start()
    try:
        yield running
    finally:
        clean = running.stop()
        log.info("stopped" if clean else "stopped; steps that did not stop in time were abandoned and given back")


@contextmanager
def _metrics(options: WorkerOptions, running: Worker, store: Store, app: App) -> Iterator[str | None]:
    if options.metrics_port is None:
        yield None
        return
    from holdfast.worker.metrics import MetricsServer  # noqa: PLC0415 - slow to import, and seldom asked for

    try:
        server = MetricsServer(
            running.telemetry,
            store,
            port=options.metrics_port,
            address=options.metrics_address,
            problems=running.problems,
            unready=running.unready,
            gauges=app.gauges,
        )
    except OSError as error:
        where = f"{options.metrics_address}:{options.metrics_port}"
        raise SettingsError(
            f"cannot serve metrics on {where}: {error.strerror or error}", hint="choose another --metrics-port"
        ) from error
    try:
        yield server.url
    finally:
        server.close()


def _feed_watchdog(running: Worker) -> None:
    """Tell the service manager that all is well, if it is: of one that hears nothing it makes a new process."""
    problems = running.problems()
    if not problems:
        notify_service_manager("WATCHDOG=1")
    else:
        log.error("the worker is not well: %s", "; ".join(problems))


def _announce(settings: CommandSettings, running: Worker, flows: list[str], url: str | None) -> None:
    log.info("ready: %s runs %s%s", running.worker_id, ", ".join(flows), f", metrics at {url}" if url else "")
    if settings.json:
        print_json({"event": "ready", "worker_id": running.worker_id, "flows": flows, "metrics": url})
        sys.stdout.flush()
    notify_service_manager("READY=1")


def _limit_of(text: str) -> tuple[str, int | None]:
    name, separator, number = text.rpartition("=")
    if not separator or not (number.isdecimal() or number == "none"):
        raise SettingsError(f"--queue-limit {text!r} is not of the form NAME=N", hint="such as downloads=5")
    return (checked_name(name, "queue") if name else ""), (None if number == "none" else int(number))


def log_level(settings: CommandSettings) -> int:
    """INFO, and one level more or less with each -v and -q."""
    return max(logging.DEBUG, min(logging.CRITICAL, logging.INFO - 10 * settings.verbosity))
