"""`holdfast inspect`: a dry run of the safety rules over an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_table, show
from holdfast.cli.settings import Settings
from holdfast_images.archive.entry import Report
from holdfast_images.archive.running import inspect_image
from holdfast_images.cli.settings import settings_of
from holdfast_images.errors import ObjectNotFound


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Choice(["strict", "distro"]), help="By which rules; strict by default.")
@click.option("--keep-setuid", is_flag=True, default=None, help="With the policy distro: do not strip setuid bits.")
@click.pass_obj
def inspect(settings: Settings, /, file: Path, **flags: Any) -> int:
    """Say everything that is wrong with an archive.

    Nothing is unpacked and nothing recorded. Ends with 3 if process-image would refuse the file.
    """
    own = settings_of(settings, **flags)
    if not file.exists():
        raise ObjectNotFound(f"there is no file {file}")
    report = inspect_image(file, policy=own.policy, limits=own.limits, keep_setuid=own.keep_setuid)
    show(settings, report, lambda: _print(report))
    note(settings, _verdict(report))
    return ExitCode.OK if report.acceptable else ExitCode.REFUSED


def _print(report: Report) -> None:
    rows = [(each.severity, each.code, each.path, each.offset, each.detail) for each in report.findings]
    if rows:
        print_table(("severity", "code", "path", "offset", "detail"), rows)


def _verdict(report: Report) -> str:
    verdict = "acceptable" if report.acceptable else "refused"
    left_out = f" (and {report.findings_left_out} more findings)" if report.findings_left_out else ""
    return f"{verdict} by policy {report.policy}: {report.entries:,} entries, {report.total_bytes:,} bytes{left_out}"
