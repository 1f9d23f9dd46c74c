"""Named places where a process may die. Inert, unless the crash explorer or a test sets a hook.

The kinds of points there are:

* ``<verb>.before-commit``  all statements of a store verb have run, nothing is durable yet
* ``<verb>.after-commit``   the verb is durable, its caller does not know it yet
* ``step.<name>.before``    a step is about to run
* ``step.<name>.after``     a step has returned, its result is not recorded yet
* ``effect.<name>.before``  a marked effect is about to happen
* ``effect.<name>.after``   a marked effect has happened
"""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str], None]


class SimulatedCrash(BaseException):
    """Stands for SIGKILL within one process. `finally` blocks still run; only a real kill is a real kill."""


_hook: Hook | None = None


def set_hook(hook: Hook | None) -> None:
    """Call `hook` with the name of each point passed; None makes the points inert again."""
    global _hook
    _hook = hook


def crash_point(name: str, side: str) -> None:
    """A process may die here."""
    if _hook is not None:
        _hook(f"{name}.{side}")
