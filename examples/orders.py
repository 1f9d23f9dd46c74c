"""An order: retries, giving up with cleanup, a follow-up job in the same transaction, one job per order, for ever.

python examples/orders.py [DIRECTORY]

With a directory, what it does stays there. Run again with the same one, it finds the orders taken: nothing is charged,
reserved or recorded twice, and nothing is undone.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
import tempfile
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec

from holdfast import Abort, Engine, Flow, JobState, Run, Tables, Transaction, exponential, fixed

LIMIT = 500


class Order(msgspec.Struct):
    """What a customer wants."""

    number: str
    amount: int
    warehouse: str


class Receipt(msgspec.Struct):
    """What the customer gets."""

    charged: int = 0


class Letter(msgspec.Struct):
    """What the follow-up job needs."""

    number: str
    warehouse: str


# --- What a step makes outside the database has a name that is the order's: making it twice makes it once. The name is
# --- this job's alone, because an order has one job (unique="forever"): the cleanup undoes no other's work ---


def reserve_stock(run: Run[Order, Receipt]) -> None:
    with run.effect("reserve"):
        shelf(run).write_text(run.request.number)


def charge_card(run: Run[Order, Receipt]) -> Receipt:
    """A real bank would be given the order's number, too, so that it charges once however often it is asked."""
    if run.request.amount > LIMIT:
        raise Abort(f"the card was declined: {run.request.amount} is over its limit")
    if run.tries < 3:
        raise ConnectionError("the bank does not answer")
    return Receipt(charged=run.request.amount)


orders = Tables("orders", migrations=["CREATE TABLE orders (number TEXT PRIMARY KEY, amount BIGINT)"])


def record_order(run: Run[Order, Receipt], tx: Transaction) -> None:
    """The row, the follow-up job and the end of this job: all of it is committed, or nothing."""
    sale = {"number": run.request.number, "amount": run.response.charged}
    orders.on(tx).run("INSERT INTO orders VALUES (:number, :amount)", **sale)
    tx.submit(send_letter, Letter(run.request.number, run.request.warehouse), key=run.request.number)


def release_stock(run: Run[Order, Receipt]) -> None:
    """The cleanup: runs when the order is given up, again if it was killed in between."""
    with run.effect("release"):
        shelf(run).unlink(missing_ok=True)


def write_letter(run: Run[Letter, None]) -> None:
    Path(run.request.warehouse, f"letter-{run.request.number}").write_text("Thank you.")


def shelf(run: Run[Order, Receipt]) -> Path:
    return Path(run.request.warehouse) / f"reserved-{run.request.number}"


send_letter: Flow[Letter, None] = Flow("send-letter", request=Letter, response=type(None), unique="forever")
send_letter.start("write", write_letter)

take_order = (
    Flow(
        "take-order",
        request=Order,
        response=Receipt,
        queue="orders",
        unique="forever",
        cleanup=release_stock,
        tables=[orders],
    )
    .start("reserve-stock", reserve_stock, retry=fixed(2))
    .to("charge-card", charge_card, retry=exponential(5, delay=0.05, jitter=True), timeout=10)
    .commit("record-order", record_order)
)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="    log: %(message)s")
    lasting = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else tempfile.TemporaryDirectory(prefix="holdfast-orders-")
    with lasting as name:
        warehouse, state = Path(name), Path(name) / "state"
        with Engine.open(state, flows=[take_order, send_letter]) as engine:
            engine.queue("orders", limit=4)
            good = engine.submit(take_order, Order("A-1", 120, name), key="A-1")
            again = engine.submit(take_order, Order("A-1", 120, name), key="A-1")
            print(f"submitted twice with one key, the same job: {good == again}")
            other = engine.submit_or_find(take_order, Order("A-1", 900, name), key="A-1")
            print(f"another order under that key, added: {other.created}, the same request: {other.same_request}")
            bad = engine.submit(take_order, Order("A-2", 900, name), key="A-2")
            with engine.worker():
                receipt = engine.result(take_order, good, timeout=30)
                print(f"A-1: charged {receipt.charged}, after {engine.store.steps(good)[1].tries} tries")
                print(f"A-2: {engine.wait(bad, timeout=30).state}: {engine.wait(bad).reason}")
                [letter] = engine.store.jobs(flow=send_letter.name)
                print(f"letter: {engine.wait(letter.job_id, timeout=30).state}")
            print(f"files: {', '.join(sorted(path.name for path in warehouse.iterdir() if path.is_file()))}")
            print(f"explain A-2: {engine.explain(bad).sentence.replace(bad, '<job>')}")
            assert engine.store.job(bad).state is JobState.FAILED
        with closing(sqlite3.connect(state / "holdfast.db")) as database:
            rows = database.execute("SELECT * FROM orders").fetchall()
            print(f"orders: {rows}")


if __name__ == "__main__":
    main()
