"""What is listed on a terminal can be copied from it: no id, key, name or path is broken, at 80 and at 120 columns."""

from __future__ import annotations

import inspect
import os
import pty
import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from holdfast.cli import maintenance, output
from holdfast.cli.main import extended
from holdfast.cli.output import print_table
from holdfast.cli.reference import commands
from holdfast_images.cli.main import EXTENSION
from tests.acceptance.driving import PATIENCE, SOURCES, Holdfast
from tests.acceptance.images.driving import HONEST, HOSTILE, ImageHoldfast

LONG = "customer-0123456789/orders/2026-11-18/0b9c1d52-6f1c-4c1e-9a57-1f0a2b3c4d5e"
APP = """
import time

from holdfast import Abort, Flow

QUEUE = "orders-that-come-from-far-away"


def refuse(run):
    raise Abort("the card of the customer was declined, and nobody has said why it was or what to do about it")


def work(run):
    return ""


def hold(run):
    while True:
        run.check()
        time.sleep(0.01)


take = Flow("take-the-order-of-a-customer-from-far-away", request=str, response=str, queue=QUEUE)
take.start("reserve-the-goods-in-the-nearest-warehouse", work).to("charge-the-card-of-the-customer", work)
decline = Flow("decline-the-order-of-a-customer", request=str, response=str)
decline.start("charge-the-card-of-the-customer", refuse)
deaf = Flow("wait-for-a-customer-who-never-comes", request=str, response=str)
deaf.start("open-the-door-of-the-shop", work).to("wait-for-a-customer", hold)
flows = [take, decline, deaf]
"""
NAME = f"debian-{'x' * 40}"
FOLDER = "folder-of-a-customer-"
ENGINE = [
    ("jobs",),
    ("job", "show", "JOB"),
    ("queues", "list"),
    ("flows", "list"),
    ("flows", "plan", "--app", "changed:flows"),
    ("journal", "show"),
    ("check",),
    ("stalled",),
    ("stats",),
    ("token", "list"),
]
IMAGES = [
    ("images",),
    ("snapshots",),
    ("image", "show", NAME),
    ("image", "verify", NAME),
    ("locks", "list"),
    ("locks", "stale", "--older-than", "0"),
    ("inspect", "hostile-archive-of-a-stranger.tar"),
    ("gc", "--dry-run"),
    ("verify-system",),
    ("process-image", "--source", "SOURCE", "--source", "OTHER"),
]
"""Every command that prints a table; the tables of others are the same ones."""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SILENT = {("check",), ("stalled",), ("gc", "--dry-run"), ("image", "verify", NAME), ("verify-system",)}
"""Which of them show nothing where all is well; their tables are the same as those of the others."""


class Shown(NamedTuple):
    """The same command twice: into a file, and on a terminal."""

    plain: str
    on_terminal: str

    def broken(self) -> list[str]:
        """Long words that the terminal does not show in one piece; headings are in other letters there."""
        words = set(re.findall(r"\S{12,}", self.plain))
        return sorted(word for word in words if word.lower() not in self.on_terminal.lower())


def shown(holdfast: Holdfast, words: Sequence[str], columns: int) -> Shown:
    plain = holdfast(*words)
    assert plain.code != 2, plain
    side_of_reader, side_of_command = pty.openpty()
    environment = {**holdfast.environment, "TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen(
        holdfast.command(*words),
        cwd=holdfast.directory,
        env=environment,
        stdout=side_of_command,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(side_of_command)
        read = b""
        try:
            while chunk := os.read(side_of_reader, 65536):
                read += chunk
        except OSError:
            pass  # Linux ends a terminal whose other side is closed with EIO
        process.wait(PATIENCE)
    os.close(side_of_reader)
    return Shown(plain.out, COLOURS.sub("", read.decode()))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Holdfast:
    """A state whose names, keys and reasons are as long as they get; a worker was killed and left a job behind."""
    holdfast = Holdfast(tmp_path_factory.mktemp("terminal"), APP)
    # A key may have spaces in it: the long one beside it is no sentence for that.
    for flow, key in (
        ("take-the-order-of-a-customer-from-far-away", LONG),
        ("take-the-order-of-a-customer-from-far-away", "a key with spaces"),
        ("decline-the-order-of-a-customer", f"{LONG}/declined"),
    ):
        holdfast.submit(flow, '"x"', "--key", key)
    holdfast.run_all()
    holdfast.submit("wait-for-a-customer-who-never-comes", '"x"', "--key", f"{LONG}/stalled")
    with holdfast.worker() as worker:
        holdfast.until(lambda data: data["jobs"][0]["state"] == "running", "jobs")
        worker.process.kill()
    changed = APP.replace("open-the-door-of-the-shop", "close-the-door-of-the-shop")
    (holdfast.directory / "changed.py").write_text(changed)
    holdfast.ok(
        "queues", "pause", "orders-that-come-from-far-away", "--reason", "the warehouse is on fire, and so are we"
    )
    return holdfast


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageHoldfast:
    """An image with a long id and three snapshots."""
    holdfast = ImageHoldfast(tmp_path_factory.mktemp("terminal-images"))
    holdfast.process(holdfast.source(HONEST, f"{FOLDER}SOURCE.tar"), "--image-id", NAME)
    holdfast.source(HONEST, f"{FOLDER}OTHER.tar")
    holdfast.ok("snapshot", "create", NAME, f"machine-{'y' * 40}")
    holdfast.source(HOSTILE, "hostile-archive-of-a-stranger.tar")
    return holdfast


@pytest.mark.parametrize("columns", [80, 120])
def test_no_id_of_a_job_is_broken(jobs: Holdfast, columns: int) -> None:
    job_id = jobs.json("jobs")["jobs"][0]["job_id"]
    found = {words: shown(jobs, [job_id if word == "JOB" else word for word in words], columns) for words in ENGINE}

    assert [words for words, each in found.items() if not each.on_terminal and words not in SILENT] == []
    assert {words: each.broken() for words, each in found.items() if each.broken()} == {}


@pytest.mark.parametrize("columns", [80, 120])
def test_no_id_of_an_image_is_broken(images: ImageHoldfast, columns: int) -> None:
    sources = {each: f"file://{images.directory}/{FOLDER}{each}.tar" for each in ("SOURCE", "OTHER")}
    found = {words: shown(images, [sources.get(word, word) for word in words], columns) for words in IMAGES}

    assert [words for words, each in found.items() if not each.on_terminal and words not in SILENT] == []
    assert {words: each.broken() for words, each in found.items() if each.broken()} == {}


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_only_sentences_are_folded_and_only_at_spaces(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = [
        "warning",
        "row-of-a-device-without-a-file",
        f"subject-{'s' * 30}",
        f"it is said of {'t' * 30} that it is gone",
    ]
    print_table(("severity", "code", "subject", "message"), [words, ["error", "a", "b c", "in short"]])
    shown = COLOURS.sub("", capsys.readouterr().out)

    assert [word for word in " ".join(words).split() if word not in shown] == []
    assert columns < 120 or max(map(len, shown.splitlines())) <= columns


def test_every_module_that_prints_a_table_is_tried_here() -> None:
    known = dict(commands(extended(EXTENSION)))
    tried = {
        inspect.getfile(inspect.unwrap(known[name].callback or print_table))
        for words in [*ENGINE, *IMAGES]
        for name in (f"holdfast {words[0]}", f"holdfast {' '.join(words[:2])}")
        if name in known
    }
    printing = {str(path) for path in SOURCES.rglob("cli/*.py") if "print_table(" in path.read_text(encoding="utf-8")}
    shared = {inspect.getfile(output), inspect.getfile(maintenance)}

    assert printing - shared - tried == set()
