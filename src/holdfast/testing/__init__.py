"""Tools for testing flows, the engine's and yours: a clock you move, a worker without threads, a crash explorer."""

from holdfast.testing.clock import VirtualClock
from holdfast.testing.driver import InlineWorker, run_until_idle
from holdfast.testing.explorer import CrashExplorer, Report, Scenario, Violation

__all__ = ["CrashExplorer", "InlineWorker", "Report", "Scenario", "Violation", "VirtualClock", "run_until_idle"]
