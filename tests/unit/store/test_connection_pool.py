"""Connections that are used again."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.store.connection_pool import LIFETIME, MAX_IDLE, MAX_OPEN, Pool


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Factory:
    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.now = 0.0
        self.pool = Pool(self.make, clock=lambda: self.now, timeout=0)

    def make(self) -> Connection:
        self.made.append(Connection())
        return self.made[-1]


def test_a_connection_is_used_again() -> None:
    factory = Factory()
    for _ in range(3):
        with factory.pool.connection():
            pass

    assert len(factory.made) == 1
    assert factory.pool.idle == 1


def test_so_many_are_open_at_once_and_no_more() -> None:
    factory = Factory()
    with ExitStack() as stack:
        for _ in range(MAX_OPEN):
            stack.enter_context(factory.pool.connection())
        with pytest.raises(StoreBusy, match="in use"), factory.pool.connection():
            pass

    assert len(factory.made) == MAX_OPEN
    assert factory.pool.idle == MAX_IDLE
    assert sum(connection.closed for connection in factory.made) == MAX_OPEN - MAX_IDLE


def test_none_is_kept_for_ever() -> None:
    factory = Factory()
    with factory.pool.connection():
        pass
    factory.now = LIFETIME
    with factory.pool.connection():
        pass

    assert [connection.closed for connection in factory.made] == [True, False]


def test_one_that_failed_is_not_used_again() -> None:
    factory = Factory()
    with pytest.raises(ValueError, match="failed"), factory.pool.connection():
        raise ValueError("failed")

    assert factory.made[0].closed
    assert factory.pool.idle == 0


def test_when_one_has_failed_those_that_wait_are_not_used_either() -> None:
    factory = Factory()
    with factory.pool.connection(), factory.pool.connection(), factory.pool.connection():
        pass
    with pytest.raises(ValueError, match="restarted"), factory.pool.connection():
        raise ValueError("the server was restarted")
    with factory.pool.connection() as connection:
        pass

    assert [each.closed for each in factory.made] == [True, True, True, False]
    assert connection is factory.made[3]


def test_a_closed_pool_closes_what_comes_back_and_gives_nothing() -> None:
    factory = Factory()
    with factory.pool.connection():
        factory.pool.close()

    assert factory.made[0].closed
    with pytest.raises(StoreUnavailable, match="closed"), factory.pool.connection():
        pass
