"""A guest with a kernel of its own: User-Mode Linux, an ordinary process that sees the host's files read-only.

Disks are sparse files on the host. They survive the guest, whether it ends or is killed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.guest.packages import Unavailable, guest_files, library_path, search_path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODULES = (
    "fs/overlayfs/overlay",
    "drivers/md/dm-mod",
    "drivers/md/dm-bufio",
    "drivers/md/dm-bio-prison",
    "drivers/md/persistent-data/dm-persistent-data",
    "drivers/md/dm-thin-pool",
    "drivers/md/dm-flakey",
    "drivers/block/loop",
)
DESCRIPTORS = 65_536
"""hostfs holds one of the host's descriptors for each file that the guest has cached."""
TIMED_OUT = 124
GUEST_FAILED = 125


def make_disk(path: Path, size: int, *, formatted: bool = False) -> Path:
    """An empty disk; `formatted`: with an ext4 on it, made on the host."""
    with path.open("wb") as file:
        file.truncate(size)
    if formatted:
        program = shutil.which("mkfs.ext4", path=search_path(guest_files()))
        if program is None:
            raise Unavailable("mkfs.ext4 is missing")
        options = ["-q", "-F", "-E", "lazy_itable_init=1,nodiscard"]
        environment = {**os.environ, "LD_LIBRARY_PATH": library_path(guest_files())}
        subprocess.run([program, *options, str(path)], check=True, env=environment)
    return path


class Guest:
    """One boot: runs a command as root and powers off."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        disks: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        udev: bool = False,
        memory: str = "640M",
        on_line: Callable[[str], None] = print,
    ) -> None:
        self._files = guest_files()
        self._command = command
        self._disks = disks
        self._environment = environment or {}
        self._udev = udev
        self._memory = memory
        self._on_line = on_line
        self._home = Path(tempfile.mkdtemp(prefix="holdfast-guest-"))
        self.share = self._home / "share"
        """/run/share in the guest, which may write there."""
        self.share.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> Self:
        """Boot it; what it prints comes line by line, from a thread."""
        self._write_files()
        reading, writing = os.pipe()
        disks = [f"ubd{number}={disk.resolve()}" for number, disk in enumerate(self._disks)]
        arguments = [
            str(self._files / "usr/bin/linux.uml"), f"mem={self._memory}", "umid=guest", f"uml_dir={self._home}/",
            "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={self.share}/init",
            "con=null", "con0=null,fd:1", "ssl=null", f"ssl0=null,fd:{writing}", *disks, "quiet", "loglevel=3",
        ]  # fmt: skip
        with (self._home / "console").open("wb") as console:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=(writing,),
                start_new_session=True,
                preexec_fn=_prepare,  # noqa: PLW1509 - before any thread of ours is started
            )
        os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()
        return self

    def wait(self, timeout: float) -> int:
        """The exit status of the command; TIMED_OUT, or GUEST_FAILED if the guest came to no end of its own."""
        process = self._started()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return TIMED_OUT
        self.kill()
        try:
            return int((self.share / "status").read_text())
        except (FileNotFoundError, ValueError):
            return GUEST_FAILED

    def kill(self) -> None:
        """A power cut: everything in its memory is gone. Its helpers outlive the main process, so all are ended."""
        process = self._started()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, helpers and all
        process.wait()
        if self._reader is not None:
            self._reader.join(10)

    def has_ended(self) -> bool:
        """Is it off, by itself or by a kill?"""
        return self._started().poll() is not None

    def console(self) -> str:
        """What its kernel said."""
        return (self._home / "console").read_text(errors="replace")

    def close(self) -> None:
        """End it, and remove what it left on the host; disks stay."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    def _write_files(self) -> None:
        busybox = self._files / "bin/busybox"
        if not busybox.exists():
            busybox = self._files / "usr/bin/busybox"
        kernel = next((self._files / "usr/lib/uml/modules").iterdir()) / "kernel"
        modules = " ".join(str(kernel / f"{name}.ko") for name in MODULES)
        settings = f"busybox={busybox}\nshare={shlex.quote(str(self.share))}\nmodules={shlex.quote(modules)}\n"
        init = self.share / "init"
        init.write_text(f"#!{busybox} sh\n{settings}{(HERE / 'boot.sh').read_text()}")
        init.chmod(0o755)
        environment = {
            "PATH": search_path(self._files),
            "LD_LIBRARY_PATH": library_path(self._files),
            "HOME": "/root",
            "TMPDIR": "/run/tmp",
            # Without udevd libdevmapper makes the nodes below /dev/mapper itself.
            "DM_DISABLE_UDEV": "1",
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT / "src"),
            "HOLDFAST_GUEST": "1",
            **self._environment,
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        (self.share / "environment").write_text("\n".join([*lines, f"directory={shlex.quote(str(ROOT))}", ""]))
        udev = f"files={shlex.quote(str(self._files))}\n{(HERE / 'udev.sh').read_text()}" if self._udev else ""
        (self.share / "command").write_text(f"{udev}exec {shlex.join(self._command)}\n")

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._on_line(line.rstrip("\n"))


def python() -> str:
    """The interpreter of this process: the guest sees the same files."""
    return sys.executable


def _prepare() -> None:
    """In the guest's process before it becomes one."""
    import ctypes
    import resource

    # Two processes take turns at each of its system calls: on one processor that is several times faster.
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive whoever started it


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Has it come true in time?"""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
