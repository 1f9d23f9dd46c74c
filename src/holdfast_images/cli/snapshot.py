"""`holdfast snapshot …`: snapshots made and taken out of use."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_lines, show
from holdfast.cli.settings import Settings
from holdfast_images.cli.progress import watching
from holdfast_images.cli.session import data_option, opened
from holdfast_images.errors import InvalidName
from holdfast_images.messages import ActivatedSnapshot


@click.group(cls=Group)
def snapshot() -> None:
    """Make a snapshot, take one out of use, or bring it back."""


@snapshot.command()
@click.argument("image_id", metavar="IMAGE")
@click.argument("name")
@data_option
@click.pass_obj
def create(settings: Settings, /, image_id: str, name: str, **flags: Any) -> int:
    """Make one more snapshot of an image, and print its path.

    One of this name that is there and in use is found, and not made again.
    """
    with opened(settings, **flags) as images, watching(settings) as (tell, signals):
        made = images.snapshot(image_id, name, on_progress=tell, stop=signals)
    show(settings, made, lambda: print(made.snapshot_path))
    return ExitCode.OK


@snapshot.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every snapshot that is recorded as in use, as after a reboot.")
@data_option
@click.pass_obj
def activate(settings: Settings, /, names: tuple[str, ...], every: bool, **flags: Any) -> int:
    """Bring snapshots back into use, and print their paths.

    Those that are named, or with --all every one that was in use: thin devices are gone after a reboot, or when
    somebody has removed them; what was written to them is not. One that was taken out of use on purpose comes back
    only by its name. Ends with 1 if one could not be brought back; the others are.
    """
    if bool(names) == every:
        raise InvalidName("give the names of snapshots, or --all", hint="see which there are: holdfast snapshots")
    with opened(settings, **flags) as images, watching(settings) as (tell, signals):
        done = images.activate(*names, on_progress=tell, stop=signals)
    data = [
        {
            "image_id": each.image_id,
            "snapshot_name": each.snapshot_name,
            "snapshot_path": each.snapshot_path,
            "error": _why_not(each),
        }
        for each in done
    ]
    show(settings, data, lambda: print_lines(each.snapshot_path for each in done if each.snapshot_path))
    failed = [each for each in done if each.error is not None]
    for each in failed:
        note(settings, f"{each.snapshot_name} is not in use: {_why_not(each)}")
    return ExitCode.FAILURE if failed else ExitCode.OK


def _why_not(activated: ActivatedSnapshot) -> str:
    error = activated.error
    if error is None:
        return ""
    return f"{error}" + (f" ({error.hint})" if error.hint else "")


@snapshot.command()
@click.argument("name")
@click.option("--delete", is_flag=True, help="Remove it and what was written to it.")
@data_option
@click.pass_obj
def deactivate(settings: Settings, /, name: str, delete: bool, **flags: Any) -> int:
    """Take a snapshot out of use; with --delete for good.

    One that is mounted or open stays as it is.
    """
    with opened(settings, **flags) as images, watching(settings) as (tell, signals):
        done = images.deactivate(name, delete=delete, on_progress=tell, stop=signals)
    show(settings, done, lambda: print(name))
    note(settings, f"{name} is {'deleted' if delete else 'out of use'}")
    return ExitCode.OK
