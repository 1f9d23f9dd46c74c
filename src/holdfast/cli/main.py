"""The entry point. Imports next to nothing, so that `holdfast --help` is there at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from holdfast.cli.command import (
    NO_CODES,
    NO_FACTS,
    Codes,
    CommandEntry,
    CommandExtension,
    CommandSettings,
    ExitCode,
    GlobalOption,
    LazyGroup,
    code_of,
    tell,
)
from holdfast.errors import HoldfastError

COMPLETION = "_HOLDFAST_COMPLETE"
"""Set by the shell when it wants to know what could come next; see `click` on shell completion."""

EXTRAS = {
    "isal": "images",
    "zstandard": "images",
    "psycopg": "postgres",
    "prometheus_client": "metrics",
    **dict.fromkeys(("h11", "jinja2", "rich", "starlette", "uvicorn"), "serve"),
}
"""Which extra of the distribution brings a module that is not needed by everybody."""

MOST_HELP_WIDTH, LEAST_HELP_WIDTH = 80, 50

JOBS, OPERATIONS = "Jobs", "Operations"

_ENTRIES = {
    "worker": CommandEntry("holdfast.cli.worker", "worker", "Run jobs until stopped.", JOBS),
    "serve": CommandEntry("holdfast.cli.serve", "serve", "Serve the API and the page until stopped.", JOBS),
    "submit": CommandEntry("holdfast.cli.jobs", "submit", "Add a job.", JOBS),
    "jobs": CommandEntry("holdfast.cli.jobs", "jobs", "List jobs, newest first.", JOBS),
    "job": CommandEntry("holdfast.cli.job", "job", "Look at one job, and steer it.", JOBS),
    "queues": CommandEntry(
        "holdfast.cli.flows", "queues", "List, pause, resume and limit queues, and see who did.", JOBS
    ),
    "flows": CommandEntry("holdfast.cli.flows", "flows", "List, draw and compare flows.", JOBS),
    "journal": CommandEntry("holdfast.cli.journal", "journal", "Show, verify and export the journal.", OPERATIONS),
    "check": CommandEntry(
        "holdfast.cli.maintenance", "check", "Check every invariant and report every finding.", OPERATIONS
    ),
    "repair": CommandEntry("holdfast.cli.maintenance", "repair", "Repair what can be repaired.", OPERATIONS),
    "stalled": CommandEntry(
        "holdfast.cli.maintenance",
        "stalled",
        "List running jobs without progress; recover them, or only those that are named.",
        OPERATIONS,
    ),
    "backup": CommandEntry("holdfast.cli.maintenance", "backup", "Copy the database while others work.", OPERATIONS),
    "restore": CommandEntry(
        "holdfast.cli.maintenance", "restore", "Put a backup in the place of the database.", OPERATIONS
    ),
    "prune": CommandEntry("holdfast.cli.maintenance", "prune", "Remove jobs that ended long ago.", OPERATIONS),
    "token": CommandEntry(
        "holdfast.cli.serve", "token", "Make, list and revoke the tokens that let in by TCP.", OPERATIONS
    ),
    "top": CommandEntry(
        "holdfast.cli.top",
        "top",
        "Watch the house: queues, running jobs with step and progress, throughput, failures.",
        OPERATIONS,
    ),
    "stats": CommandEntry("holdfast.cli.maintenance", "stats", "Count jobs, queues and workers.", OPERATIONS),
    "api": CommandEntry("holdfast.cli.api", "api", "Describe the HTTP API that `holdfast serve` serves.", OPERATIONS),
}


def _show_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        from holdfast import __version__  # noqa: PLC0415 - not needed for anything else

        print(f"holdfast {__version__}")
        context.exit()


@click.group(cls=LazyGroup, entries=_ENTRIES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def holdfast() -> None:
    """Crash-safe state machines: run flows, look at jobs, steer them.

    Data goes to stdout, everything else to stderr. Exit codes are documented in docs/reference/exit-codes.md.
    """


def extended(extension: CommandExtension) -> LazyGroup:
    """The command with what another package adds to it."""
    options = [each for each in holdfast.params if not isinstance(each, GlobalOption)]
    entries = {**extension.entries, **_ENTRIES}
    settings = {"help_option_names": ["-h", "--help"]}
    return LazyGroup("holdfast", entries=entries, help=extension.about, params=options, context_settings=settings)


def main(arguments: Sequence[str] | None = None, *, extension: CommandExtension | None = None) -> int:
    """Run one command and return its exit code; a user's mistake is told without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    settings, command, codes = CommandSettings(), holdfast, NO_CODES
    if extension is not None:
        settings = CommandSettings(keys=extension.keys, default_app=extension.default_app, web=extension.web)
        command, codes = extended(extension), extension.codes
    _survive_odd_characters()
    try:
        code = _run(command, words, settings)
        sys.stdout.flush()
        return code
    except BaseException as error:
        return int(_told(error, codes, as_json=settings.json or "--json" in words))


def _run(command: click.Group, words: list[str], settings: CommandSettings) -> int:
    if COMPLETION in os.environ:
        command.main(args=words, prog_name="holdfast", complete_var=COMPLETION)
    # Not by click's main(), which makes a broken pipe look like any failure.
    try:
        with command.make_context("holdfast", words, obj=settings, terminal_width=_help_width()) as context:
            return int(command.invoke(context) or ExitCode.OK)
    except click.exceptions.Exit as end:
        return end.exit_code


def _help_width() -> int:
    """What click would choose. It asks shutil, which brings every kind of compression along."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        width = int(columns)
    else:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns or MOST_HELP_WIDTH
        except (AttributeError, OSError, ValueError):
            width = MOST_HELP_WIDTH
    return max(min(width, MOST_HELP_WIDTH) - 2, LEAST_HELP_WIDTH)


def _told(error: BaseException, codes: Codes, *, as_json: bool) -> ExitCode:
    name = type(error).__name__
    match error:
        case HoldfastError():
            facts = getattr(error, "facts", NO_FACTS)
            return tell(name, str(error), error.hint, code_of(type(error), codes), as_json=as_json, facts=facts)
        case ModuleNotFoundError() if error.name in EXTRAS:
            install = f"pip install 'holdfast[{EXTRAS[error.name]}]'"
            return tell(name, f"{error.name} is not installed", install, ExitCode.FAILURE, as_json=as_json)
        case click.ClickException():
            context = getattr(error, "ctx", None)
            hint = f"see: {context.command_path} --help" if context else None
            return tell(name, error.format_message(), hint, ExitCode.USAGE, as_json=as_json)
        case click.Abort() | KeyboardInterrupt():
            return tell("Interrupted", "interrupted", None, ExitCode.INTERRUPTED, as_json=as_json)
        case BrokenPipeError():
            _drop_output()
            return ExitCode.PIPE
        case OSError():
            _drop_output()
            where = f"{error.filename}: " if error.filename else ""
            return tell(name, f"{where}{error.strerror or error}", None, ExitCode.FAILURE, as_json=as_json)
        case Exception():
            return _told_fault(error, as_json=as_json)
        case _:
            raise error


def _drop_output() -> None:
    """What cannot be written is dropped, or the interpreter, flushing at its end, would stumble over it again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told_fault(error: Exception, *, as_json: bool) -> ExitCode:
    """A fault of Holdfast's own: here the traceback helps."""
    import traceback  # noqa: PLC0415 - only for the worst case

    lines = "".join(traceback.format_exception(error))
    hint = "this is a fault in Holdfast: please report it with the traceback"
    message = f"unexpected {type(error).__name__}: {error}"
    return tell(type(error).__name__, message, hint, ExitCode.FAILURE, as_json=as_json, traceback=lines)


def _survive_odd_characters() -> None:
    """An arrow must not end a command on a terminal that cannot show it."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
