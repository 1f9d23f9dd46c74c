"""What is to be done next with a run: the executor decides it, the worker and the test driver do it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.store.messages import Write


class Perform(msgspec.Struct, frozen=True):
    """Run the current step (or the cleanup)."""


class Sleep(msgspec.Struct, frozen=True):
    """Run the current step again, but not before that time (ms)."""

    until: int


class Send(msgspec.Struct, frozen=True):
    """Have this written."""

    write: Write


class Gone(msgspec.Struct, frozen=True):
    """The run has ended here."""

    lost: bool = False


Next: TypeAlias = Perform | Sleep | Send | Gone
