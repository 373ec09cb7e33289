import sqlite3
import time

import pytest

from grpolib.text.rewards import SQLResult, score

ALL = "SELECT name, age FROM people"


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "people ?#%.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE people (name TEXT, age INTEGER, photo BLOB)")
    connection.executemany(
        "INSERT INTO people VALUES (?, ?, x'00')", [("Ada", 36), ("Bo", 20), ("Bo", 20), ("Cy", None)]
    )
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def values(database):
    def given(*queries, reference=ALL, **settings):
        count = len(queries)
        columns = {"query": [reference] * count, "database": [database] * count}
        return score(SQLResult(**{"seconds": 1.0, **settings}), ["?"] * count, list(queries), columns)

    return given


def test_the_same_rows(values):
    assert values(ALL, f"So:\n```sql\n{ALL};\n```", f"SELECT * FROM ({ALL}) -- all") == [1.0, 1.0, 1.0]
    assert values("SELECT name n, age a FROM people p", "SELECT age, name FROM people") == [1.0, 0.0]


def test_rows_count_as_often_as_they_occur(values):
    assert values("SELECT DISTINCT name, age FROM people", f"{ALL} UNION ALL {ALL}", f"{ALL} LIMIT 3") == [0, 0, 0]


def test_order_counts_where_it_is_asked_for(values):
    up, down = f"{ALL} ORDER BY name", f"{ALL} ORDER BY name DESC"
    assert values(up, down, reference=up) == [1.0, 1.0]
    assert values(up, down, reference=up, ordered=True) == [1.0, 0.0]


def test_types(values):
    assert values("SELECT 1.0", "SELECT '1'", "SELECT NULL", "SELECT x'31'", reference="SELECT 1") == [1, 0, 0, 0]
    assert values("SELECT photo FROM people", reference="SELECT photo FROM people") == [1.0]


def test_no_rows_have_columns_all_the_same(values):
    empty = "SELECT name FROM people WHERE 0"
    assert values(empty, "SELECT name, age FROM people WHERE 0", "", "-- nothing", reference=empty) == [1, 0, 0, 0]


HOSTILE = [
    "",
    "\x00",
    "\ud800",
    "DROP TABLE people",
    "DELETE FROM people",
    "INSERT INTO people VALUES ('Di', 1, NULL)",
    "UPDATE people SET age = 0",
    "CREATE TABLE more (a)",
    "CREATE TEMP TABLE more (a)",
    f"{ALL}; DROP TABLE people",
    f"{ALL}; {ALL}",
    "ATTACH DATABASE '{folder}/new.db' AS new",
    "VACUUM INTO '{folder}/new.db'",
    "PRAGMA writable_schema = ON",
    "PRAGMA table_info(people)",
    "SELECT load_extension('evil')",
    "BEGIN",
    "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT count(*) FROM n",
    "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT k, k FROM n",
    "SELECT randomblob(1000000000), 1",
    "SELECT zeroblob(1000000000), 1",
    "SELECT replace(hex(printf('%099999999d', 0)), '3', hex(printf('%09999d', 0))), 1",
    "SELECT printf('%0999999999d', 0) LIKE '%0%0%0%0%0%0%0%0%0%1', 1",
    f"SELECT {'(' * 5000}1{')' * 5000}",
    "SELECT " + "1," * 100_000 + "1",
    "SELECT name, age FROM people, people, people",
]


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries(query, values, database):
    before, listed = database.read_bytes(), sorted(database.parent.iterdir())
    started = time.monotonic()
    assert values(query.replace("{folder}", str(database.parent)), ALL) == [0.0, 1.0]
    assert time.monotonic() - started < 10
    assert database.read_bytes() == before
    assert sorted(database.parent.iterdir()) == listed


def test_too_many_rows_are_wrong(values):
    assert values(f"{ALL} UNION ALL {ALL}", ALL, max_rows=4) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("SELECT height FROM people", "no such column"),
        ("DROP TABLE people", "not authorized"),
        ("SELECT 1 FROM people, people AS others", "more than 4 rows"),
    ],
)
def test_a_reference_that_fails_is_an_error(values, reference, complaint):
    with pytest.raises(ValueError, match=f"the reference .* on .*{complaint}"):
        values(ALL, reference=reference, max_rows=4)


def test_no_reference_no_value(values):
    assert values(ALL, reference=None) == [None]


def test_a_database_that_is_not_there_is_an_error_and_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no database .*missing\.db"):
        score(SQLResult(), ["?"], [ALL], {"query": [ALL], "database": [tmp_path / "missing.db"]})
    assert list(tmp_path.iterdir()) == []


def test_settings_are_checked():
    with pytest.raises(ValueError, match="max_rows must be >= 1"):
        SQLResult(max_rows=0)
    with pytest.raises(ValueError, match="seconds must be"):
        SQLResult(seconds=0.0)
