"""A copy of the tree in which one module at a time is changed, and tests run."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mutation import entered

PR_SET_CHILD_SUBREAPER = 36
TEST_SECONDS = 20
"""For one test. One that takes longer takes no part; one that a change makes so slow has failed."""


class Copy:
    """The copied tree. What is started in it writes below it, and is ended with it."""

    def __init__(self, tree: Path, seed: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="holdfast-mutation-"))
        self.tree = self.home / "tree"
        self._seed = seed
        # Whatever a test has started and left behind becomes a child of this process, and is found.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=tree,
            capture_output=True,
            check=True,
        )
        for name in listing.stdout.decode().split("\0"):
            if name and (tree / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tree / name, self.tree / name)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.home, ignore_errors=True)

    def record(self, files: list[str], folder: Path, processes: int) -> str:
        """Run whole files of tests under the tracer; the answer is the last line of pytest."""
        parallel = ["-n", str(processes)] if processes > 1 else []
        os.environ[entered.RECORD_VARIABLE] = str(folder)
        _, output = self._pytest(["-p", "entered", *parallel, *files], None)
        return output.rstrip().rpartition("\n")[2]

    def passes(self, tests: Iterable[str], seconds: float) -> bool:
        """Do these tests pass? Not if they take longer than this."""
        names = self.home / "names"
        names.write_text("".join(f"{name}\n" for name in tests))
        status, output = self._pytest(["-x", f"@{names}"], seconds)
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(output)
        return status == 0

    @contextmanager
    def changed(self, module: Path, source: bytes) -> Iterator[None]:
        """A module of src with another source, for a while."""
        file = self.tree / "src" / module
        before = file.read_bytes()
        file.write_bytes(source)
        try:
            yield
        finally:
            file.write_bytes(before)

    def _pytest(self, arguments: list[str], seconds: float | None) -> tuple[int, str]:
        scratch = Path(tempfile.mkdtemp(dir=self.home))
        source = self.tree / "src"
        others = _children()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}"]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{source}:{Path(__file__).parent}",
            # A source that changes twice within a second has the same time, and would be taken from the cache.
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(scratch),
            "HOLDFAST_TEST_SEED": str(self._seed),
            entered.SOURCE_VARIABLE: str(source),
        }
        with (scratch / "output").open("wb") as output_file:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = -1
            process.kill()
            process.wait()
        _end(others)
        output = (scratch / "output").read_text(errors="replace")
        shutil.rmtree(scratch, ignore_errors=True)
        return status, output


def _children() -> set[int]:
    return {int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def _end(others: set[int]) -> None:
    """Kill what is left of a run; its processes become children of this one as those above them end."""
    while children := _children() - others:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
