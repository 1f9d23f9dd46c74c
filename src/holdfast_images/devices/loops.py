"""Loop devices: files that the kernel shows as disks. For development; they are gone after each reboot."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast_images.devices.commands import CommandFailed, log, run
from holdfast_images.errors import PoolUnusable

BLOCKS = Path("/sys/block")


def attached(file: Path) -> list[str]:
    """The loop devices that show a file, by their nodes."""
    wanted = os.path.realpath(file)
    found = []
    for backing in sorted(BLOCKS.glob("loop*/loop/backing_file")):
        try:
            text = backing.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n")
        except OSError:
            continue  # detached meanwhile
        if text == wanted:
            found.append(f"/dev/{backing.parts[3]}")
    return found


def attach(file: Path) -> str:
    """The loop device of a file, made unless it is there. Raises PoolUnusable if there are several: they corrupt it."""
    found = attached(file)
    if len(found) > 1:
        raise PoolUnusable(
            f"{file} is shown by {' and '.join(found)} at once",
            hint=f"see which one is not used (dmsetup deps), and detach it: losetup --detach {found[-1]}",
        )
    if found:
        return found[0]
    # In one step, so that a crash leaves a loop device with its file or none.
    command = ("losetup", "--find", "--show", "--nooverlap")
    try:
        # Or else everything would be in memory twice.
        return run(*command, "--direct-io=on", "--", str(file)).output.strip()
    except CommandFailed as error:
        if attached(file):
            raise
        log.info("%s: without direct I/O, which its file system does not have: %s", file, error)
        return run(*command, "--", str(file)).output.strip()


def also_showing(node: str) -> list[str]:
    """Other loop devices that show the file that this one shows; none if it is no loop device."""
    try:
        file = (BLOCKS / os.path.basename(os.path.realpath(node)) / "loop/backing_file").read_text(errors="replace")
    except OSError:
        return []
    return [each for each in attached(Path(file.rstrip("\n"))) if os.path.realpath(each) != os.path.realpath(node)]


def detach(file: Path) -> None:
    """Take away every loop device of a file. Nothing happens if there is none."""
    for node in attached(file):
        run("losetup", "--detach", node)


def refresh(file: Path) -> None:
    """Make its loop device as long as the file has become."""
    for node in attached(file):
        run("losetup", "--set-capacity", node)
