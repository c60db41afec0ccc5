"""Databases from before the first release (migrations 0001 to 0004): all their rows move into the tables of today.

The earlier tables stay beside them untouched: in a copy of the SQLite file, or in a PostgreSQL schema of their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import sqlalchemy as sa

from ratchet.store.schema import Base, UtcTime

REVISIONS = ("0001", "0002", "0003", "0004")
_BATCH = 500
# Tables that have kept their columns. Those of evaluations and jobs were empty before they had these.
_SAME = ("run", "run_round", "adapter", "evaluation", "experiment", "loop")
_JSON = ("column_map", "harness", "verifier", "score_columns")
_TIMES = ("created_at", "archived_at")


def carry_over(source: sa.Connection, schema: str | None, target: sa.Connection) -> None:
    """Copy the rows of an earlier database into the empty tables of this one.

    Args:
        source: Where the earlier tables are.
        schema: In which schema there, None for the usual one.
        target: The connection to write with, in its transaction.
    """
    present = sa.inspect(source).get_table_names(schema)
    if "dataset" in present:
        _insert(target, "version", _versions(source, schema, has_benchmarks="benchmark" in present))
    for name in (name for name in _SAME if name in present):
        table = Base.metadata.tables[name]
        there = {column["name"] for column in sa.inspect(source).get_columns(name, schema)}
        # Ids of adapters are given anew: nothing points to them, and PostgreSQL goes on counting from its own.
        chosen = [one for one in table.columns if one.name in there and (name, one.name) != ("adapter", "id")]
        query = sa.select(sa.table(name, *(sa.column(one.name, one.type) for one in chosen), schema=schema))
        if "created_at" in there:  # a run comes before those made from it
            query = query.order_by(sa.column("created_at"))
        _insert(target, name, map(dict, source.execute(query).mappings()))


def _insert(target: sa.Connection, table: str, rows: Iterable[dict[str, Any]]) -> None:
    left = iter(rows)
    while batch := list(islice(left, _BATCH)):
        target.execute(sa.insert(Base.metadata.tables[table]), batch)


def _versions(source: sa.Connection, schema: str | None, *, has_benchmarks: bool) -> Iterator[dict[str, Any]]:
    """Rows of ``version`` from the earlier tables of datasets, metrics and benchmarks."""
    named: dict[tuple[str, int | None], list[Any] | None] = {("dataset", None): None, ("metric", None): None}
    for kind in ("dataset", "metric"):
        names = {row["id"]: row["name"] for row in _rows(source, schema, kind)}
        for row in _rows(source, schema, f"{kind}_version"):
            name = names[row[f"{kind}_id"]]
            named[kind, row["id"]] = [name, row["number"]]
            if kind == "dataset":
                content = {column: row[column] for column in ("format", "column_map", "origin", "seed")}
                content["rows"] = {split: row[f"{split}_rows"] for split in ("train", "validation", "test")}
                content_hash = row["content_hash"]
            else:
                content, content_hash = {"source": row["source"]}, row["source_hash"]
            yield _version(kind, name, row["number"], content_hash, content, row)
    for row in _rows(source, schema, "benchmark") if has_benchmarks else ():
        content = {column: row[column] for column in ("source", "harness", "verifier", "score_columns")}
        content |= {kind: named[kind, row[f"{kind}_version_id"]] for kind in ("dataset", "metric")}
        yield _version("benchmark", row["name"], 1, row["content_hash"], content, row)


def _version(
    kind: str, name: str, number: int, content_hash: str, content: dict[str, Any], row: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "number": number,
        "content_hash": content_hash,
        "content": content,
        "created_at": row["created_at"],
        "archived_at": row.get("archived_at"),
    }


def _rows(source: sa.Connection, schema: str | None, name: str) -> list[Mapping[str, Any]]:
    """All rows of an earlier table, in the order in which they were made."""
    types: dict[str, Any] = {**dict.fromkeys(_JSON, sa.JSON()), **dict.fromkeys(_TIMES, UtcTime())}
    columns = [column["name"] for column in sa.inspect(source).get_columns(name, schema)]
    table = sa.table(name, *(sa.column(column, types.get(column)) for column in columns), schema=schema)
    return [dict(row) for row in source.execute(sa.select(table).order_by(sa.column("id"))).mappings()]
