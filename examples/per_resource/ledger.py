"""The accounts, in SQLite or PostgreSQL: a write names the fence of the lock it was made under."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

__all__ = ["Ledger"]

_CREATE = """
CREATE TABLE example_account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence BIGINT NOT NULL)
"""
_WRITE = "UPDATE example_account SET balance = ?, fence = ? WHERE id = ? AND fence <= ?"


class Ledger:
    """The table ``example_account``; one connection for each call.

    Args:
        url: ``sqlite:/path/to/file``, or ``postgresql://...`` as psycopg 3 takes it; default: the
            environment's ``EXAMPLE_DATABASE_URL``.

    Raises:
        ValueError: it is no URL of these.
        ModuleNotFoundError: PostgreSQL is asked for and psycopg is not installed.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = os.environ["EXAMPLE_DATABASE_URL"] if url is None else url
        self._is_sqlite = self._url.startswith("sqlite:")
        if not self._is_sqlite:
            if not self._url.startswith(("postgresql://", "postgres://")):
                message = f"give sqlite:/path/to/file or postgresql://..., not {self._url.partition(':')[0]}:"
                raise ValueError(message)
            import psycopg  # noqa: F401, PLC0415  asked for by nobody else

    def create(self, *account_ids: int) -> None:
        """Make the table anew, with accounts that hold nothing."""
        self.drop()
        self._execute(_CREATE)
        for account_id in account_ids:
            self._execute("INSERT INTO example_account VALUES (?, 0, 0)", account_id)

    def drop(self) -> None:
        """Remove the table, if it is there."""
        self._execute("DROP TABLE IF EXISTS example_account")

    def balance(self, account_id: int) -> int:
        """Return what an account holds."""
        with self._cursor("SELECT balance FROM example_account WHERE id = ?", account_id) as cursor:
            return int(cursor.fetchone()[0])

    def set_balance(self, account_id: int, balance: int, *, fence: int | None) -> int:
        """Write what an account holds, unless a later holder of its lock has written.

        Args:
            account_id: of the account.
            balance: the new one.
            fence: of the lock under which the old one was read; ``None``, without a lock, writes nothing.

        Returns:
            How many rows were changed: 1, or 0 if the fence is too old.
        """
        return self._execute(_WRITE, balance, fence, account_id, fence)

    def _execute(self, statement: str, *values: Any) -> int:
        with self._cursor(statement, *values) as cursor:
            return int(cursor.rowcount)

    @contextmanager
    def _cursor(self, statement: str, *values: Any) -> Iterator[Any]:
        """Execute a statement in a transaction of its own."""
        with closing(self._connect()) as connection:
            # Both modules speak DB-API 2.0 (PEP 249); only their placeholders differ.
            yield connection.execute(statement if self._is_sqlite else statement.replace("?", "%s"), values)
            connection.commit()

    def _connect(self) -> Any:
        if self._is_sqlite:
            return sqlite3.connect(self._url.removeprefix("sqlite:"), timeout=30.0)
        import psycopg  # noqa: PLC0415  asked for by nobody else

        return cast("Any", psycopg.connect(self._url))
