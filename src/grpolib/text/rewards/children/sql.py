"""Whether two queries of one SQLite database give the same rows."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN = {"load_extension", "randomblob", "zeroblob", "fts3_tokenizer", "edit", "readfile", "writefile"}

Rows = tuple[int, list[tuple[Any, ...]]]


def make_judge(ordered: bool, max_rows: int, seconds: float) -> Callable[[str, str, str], bool | str]:
    """A judge of queries; a text says what is wrong with the reference."""

    def judge(database: str, query: str, reference: str) -> bool | str:
        try:
            expected = rows(database, reference, max_rows, seconds)
        except Exception as error:
            return str(error)
        try:
            return same(rows(database, query, max_rows, seconds), expected, ordered)
        except Exception:
            return False

    return judge


def same(found: Rows, expected: Rows, ordered: bool) -> bool:
    """Equal rows in equal order, or equally often; names of columns do not count."""
    (width, some), (expected_width, others) = found, expected
    return width == expected_width and (some == others if ordered else Counter(some) == Counter(others))


def rows(database: str, query: str, max_rows: int, seconds: float) -> Rows:
    """Number of columns, and rows, of one query that only reads."""
    connection = sqlite3.connect(f"file:{quote(database)}?mode=ro", uri=True)
    try:
        restrict(connection, seconds)
        cursor = connection.execute(query)
        found = cursor.fetchmany(max_rows + 1)
        if cursor.description is None:
            raise ValueError("no query")
        if len(found) > max_rows:
            raise ValueError(f"more than {max_rows} rows")
        return len(cursor.description), found
    finally:
        connection.close()


def restrict(connection: sqlite3.Connection, seconds: float) -> None:
    """Reading, for so long; sorting in memory, which is limited."""
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA query_only = ON")
    connection.set_authorizer(authorize)
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)


def authorize(action: int, _: str | None, function: str | None, *__: str | None) -> int:
    """Selecting and harmless functions; no other database, setting, table or trigger."""
    allowed = action in ALLOWED and (function or "").lower() not in FORBIDDEN
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
