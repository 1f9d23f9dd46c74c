"""Conventions that hold for every command: streams, JSON, help, errors, exit codes, and a quick start."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast.cli.main import holdfast as root
from holdfast.cli.reference import commands
from tests.acceptance.driving import PATIENCE, Holdfast

COMMANDS = dict(commands())
LEAVES = [name for name, command in COMMANDS.items() if not isinstance(command, click.Group)]
HEAVY = (
    "asyncio", "concurrent.futures", "jinja2", "msgspec", "prometheus_client", "rich", "shutil", "sqlite3", "starlette",
    "uvicorn",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_takes_json(name: str) -> None:
    command = COMMANDS[name]
    options = {option for parameter in command.params for option in parameter.opts}
    shown = command.get_help(click.Context(command, info_name=name))

    assert {"--json", "--app", "--actor", "--log-format", "-v", "-q", "--store", "--state"} <= options
    assert command.help
    assert command.help.splitlines()[0].endswith(".")
    assert "Global options:" in shown


def test_the_lines_of_the_overview_are_those_of_the_commands() -> None:
    entries = getattr(root, "entries", {})

    assert entries
    for name, entry in entries.items():
        assert (COMMANDS[f"holdfast {name}"].help or "").splitlines()[0] == entry.short_help


def test_help_goes_to_stdout_and_costs_no_heavy_import(holdfast: Holdfast) -> None:
    listing = "import sys; from holdfast.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", listing], env=holdfast.environment, capture_output=True, text=True, check=True
    )
    text, _, modules = done.stdout.rpartition("[")

    assert text.startswith("Usage: holdfast")
    assert [name for name in HEAVY if f"'{name}'" in modules] == []


def test_text_without_a_terminal_costs_no_rich(history: Holdfast) -> None:
    listing = "import sys; from holdfast.cli.main import main; main(['jobs']); print('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listing], env=history.environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.endswith("False\n")


def on_a_terminal(holdfast: Holdfast, *words: str, columns: int) -> str:
    """What a command shows on a terminal of this width, without colours."""
    terminal, side = pty.openpty()
    with subprocess.Popen(
        holdfast.command(*words), env={**holdfast.environment, "TERM": "xterm", "COLUMNS": str(columns)}, stdout=side
    ) as process:
        os.close(side)
        shown = b""
        try:
            while chunk := os.read(terminal, 65536):
                shown += chunk
        except OSError:
            pass  # Linux ends a terminal whose other side is closed with EIO
        code = process.wait(PATIENCE)
    os.close(terminal)
    assert code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())


def test_a_terminal_gets_a_table(history: Holdfast) -> None:
    shown = on_a_terminal(history, "jobs", columns=200)

    assert "─" in shown
    assert "greet" in shown


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("words", [("jobs",), ("job", "show")])
def test_no_id_is_broken_on_a_terminal(
    history: Holdfast, jobs_of_history: dict[str, str], columns: int, words: tuple[str, ...]
) -> None:
    job_id = jobs_of_history["both"]
    children = [child["job_id"] for child in history.json("job", "show", job_id)["children"]]
    shown = on_a_terminal(history, *words, *([job_id] if words[0] == "job" else []), columns=columns)

    assert [each for each in [job_id, *children] if each not in shown] == []


def test_the_bare_command_shows_its_help(holdfast: Holdfast) -> None:
    by_module = subprocess.run(
        [sys.executable, "-m", "holdfast"], env=holdfast.environment, capture_output=True, text=True, check=True
    )
    shown = holdfast.ok()

    assert shown.startswith("Usage: holdfast")
    assert "\nJobs:\n" in shown
    assert "\nImages:\n" in by_module.stdout
    assert "\nJobs:\n" in by_module.stdout


def test_a_job_is_found_by_the_beginning_of_its_id(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    ids = list(jobs_of_history.values())
    job_id = jobs_of_history["greet"]
    beginning = next(job_id[:length] for length in range(1, 27) if sum(i.startswith(job_id[:length]) for i in ids) == 1)
    several = history("job", "show", ids[0][:2])

    assert history.json("job", "show", beginning.lower())["job"]["job_id"] == job_id
    assert several.code == 2
    assert "several jobs begin with" in several.err
    assert history("job", "show", "7").code == 4


WITHOUT_EXTRAS = """
import sys
for name in ("isal", "prometheus_client", "psycopg", "rich", "zstandard"):
    sys.modules[name] = None
from holdfast_images.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without_extras(holdfast: Holdfast, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *words]
    return subprocess.run(
        command, cwd=holdfast.directory, env=holdfast.environment, capture_output=True, text=True, check=False
    )


def test_the_engine_needs_no_extra(holdfast: Holdfast) -> None:
    holdfast.submit("greet", '{"name": "you"}')
    worked = without_extras(holdfast, "worker", "--exit-when-idle")

    assert worked.returncode == 0, worked.stderr
    assert "succeeded" in without_extras(holdfast, "jobs").stdout


@pytest.mark.parametrize(
    "words, extra",
    [
        (("worker", "--metrics-port", "0"), "metrics"),
        (("--store", "postgresql://nowhere/x", "jobs"), "postgres"),
        (("inspect", "image.tar"), "images"),
        (("process-image", "--source", "file:///image.tar", "--app", ""), "images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_extra_is_told_with_how_to_install_it(holdfast: Holdfast, words: tuple[str, ...], extra: str) -> None:
    (holdfast.directory / "image.tar").write_bytes(bytes(10240))
    ended = without_extras(holdfast, *words)

    assert ended.returncode != 0
    assert f"pip install 'holdfast[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "words", [("--json", "queues", "list"), ("queues", "--json", "list"), ("queues", "list", "--json")]
)
def test_json_may_be_asked_for_anywhere(history: Holdfast, words: tuple[str, ...]) -> None:
    assert set(history(*words).data) == {"queues"}


def test_an_error_is_one_object_with_json(history: Holdfast) -> None:
    ended = history("--json", "job", "show", "X")

    assert ended.out == ""
    assert ended.error == {
        "type": "JobNotFoundError",
        "message": "job X not found",
        "hint": "list what is there: holdfast jobs",
        "exit_code": 4,
    }


@pytest.mark.parametrize(
    "words",
    [("nope",), ("job", "nope"), ("jobs", "--nope"), ("jobs", "extra"), ("job", "show"), ("jobs", "--limit", "x")],
    ids=" ".join,
)
def test_a_mistake_on_the_command_line_is_told_shortly(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    ended = holdfast(*words)

    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert not holdfast.state.exists()
    assert ended.err.startswith("error: ")
    assert "\nhint: see: holdfast" in ended.err
    assert holdfast(*words, "--json").error["exit_code"] == 2


def test_the_state_directory_after_jobs_is_told_where_it_goes(holdfast: Holdfast) -> None:
    ended = holdfast("jobs", "--state", "/var/lib/holdfast")

    assert ended.code == 2
    assert "--state /var/lib/holdfast jobs" in ended.err


def test_the_version_is_shown(holdfast: Holdfast) -> None:
    assert holdfast.ok("--version").startswith("holdfast 0.")


def test_the_actor_is_who_the_journal_names(holdfast: Holdfast) -> None:
    def actor(*words: str, **environment: str) -> str:
        job_id = holdfast.ok("submit", "greet", '{"name": "you"}', *words, **environment).strip()
        return str(holdfast.json("journal", "show", job_id)["entries"][0]["actor"])

    assert actor() == f"operator:{Path('/proc/self').owner()}@{os.uname().nodename}"
    assert actor(HOLDFAST_ACTOR="deploy-bot") == "deploy-bot"
    assert actor("--actor", "alice", HOLDFAST_ACTOR="deploy-bot") == "alice"
    assert holdfast("submit", "greet", '{"name": "you"}', "--actor", "a\nb").code == 2


APPS = {
    "not a reference": ("app", "", "is not of the form module:object"),
    "no such module": ("absent:flows", "", "there is no module 'absent'"),
    "no such object": ("app:nope", "", "app has no 'nope'"),
    "not flows": ("app:os", "", "is a module, not flows"),
    "something else among the flows": ("app:mixed", "mixed = [greet, 'x']", "has a str among its flows"),
    "no flows": ("app:none", "none = []", "has no flows in it"),
    "two of one name": (
        "app:twice",
        "twice = [greet, Flow('greet', request=str, response=str)]",
        "two flows are named",
    ),
    "an error in the module": ("app:flows", "1 / 0", "importing app failed: ZeroDivisionError"),
    "an error of syntax": ("app:flows", "def", "importing app failed: SyntaxError"),
    "a missing import": ("app:flows", "import absent_library", "No module named 'absent_library'"),
    "a wrong flow": ("app:flows", "Flow('a b', request=str, response=str)", "flow name 'a b' is not valid"),
    "an error when called": ("app:make", "def make():\n    return 1 / 0", "calling app:make failed"),
    "an exit": ("app:flows", "raise SystemExit(3)", "importing app failed: SystemExit"),
}


@pytest.mark.parametrize("reference, added, message", APPS.values(), ids=APPS)
def test_an_app_that_cannot_be_used_is_told(holdfast: Holdfast, reference: str, added: str, message: str) -> None:
    app = holdfast.directory / "app.py"
    app.write_text(app.read_text() + added + "\n")
    ended = holdfast("worker", "--app", reference, "--exit-when-idle")

    assert ended.code == 2
    assert message in ended.err
    assert "\nhint: " in ended.err
    assert "Traceback" not in ended.err
    assert not holdfast.state.exists()


@pytest.mark.parametrize(
    "added, reference",
    [
        ("", "app:greet"),
        ("all_of_them = {each.name: each for each in flows}", "app:all_of_them"),
        ("def make():\n    return iter(flows)", "app:make"),
        ("class Here:\n    flows = (greet,)", "app:Here.flows"),
    ],
    ids=["a flow", "a mapping", "a function", "an attribute"],
)
def test_an_app_is_a_flow_or_flows_or_a_function(holdfast: Holdfast, added: str, reference: str) -> None:
    app = holdfast.directory / "app.py"
    app.write_text(app.read_text() + added + "\n")
    job_id = holdfast.ok("submit", "--app", reference, "greet", '{"name": "you"}').strip()

    assert len(job_id) == 26


def test_the_stages_of_a_pipeline_come_along(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("both")
    holdfast.ok("worker", "--exit-when-idle", "--app", "app:both")

    assert holdfast.json("job", "wait", job_id)["state"] == "succeeded"


@pytest.mark.parametrize("command", ["worker", "submit greet {}", "flows plan"])
def test_a_command_that_needs_flows_says_so(holdfast: Holdfast, command: str) -> None:
    ended = holdfast(*command.split(), HOLDFAST_APP=None)

    assert ended.code == 2
    assert "hint: say where the flows are: --app" in ended.err


def test_a_reader_that_goes_away_ends_the_command_quietly(history: Holdfast) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        history.command("journal", "export"),
        env=history.environment,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_a_failure(history: Holdfast) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            history.command("jobs"), env=history.environment, stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert done.returncode == 1
    assert b"No space left on device" in done.stderr


def test_an_interrupted_command_says_so(holdfast: Holdfast) -> None:
    job_id = holdfast.submit()
    wake = holdfast.state / "holdfast.db.wake"
    # Whoever runs the tests in the background has told them, and so their children, to ignore the signal.
    command = ["env", "--default-signal=INT", *holdfast.command("job", "wait", job_id, "--json")]
    with subprocess.Popen(command, env=holdfast.environment, stderr=subprocess.PIPE) as process:
        # The command listens from then on.
        while not (wake.exists() and os.listdir(wake)):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130
    assert json.loads(said)["error"]["type"] == "Interrupted"


def test_quiet_keeps_the_talk_back(holdfast: Holdfast) -> None:
    holdfast.submit()

    assert holdfast("check", "-q").err == ""
    assert holdfast("check").err != ""
