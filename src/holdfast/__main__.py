"""`python -m holdfast`: the installed command, whatever packages have added to it."""

from __future__ import annotations

from importlib.metadata import entry_points


def main() -> int:
    """Run the command that the distribution installs."""
    [command] = entry_points(group="console_scripts", name="holdfast")
    return int(command.load()())


if __name__ == "__main__":
    raise SystemExit(main())
