"""Benchmarks in the database: one name, one content, and the versions that they were made of."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ratchet.errors import Conflict, NotFound
from ratchet.store import Database, DatasetContent, DatasetStore, MetricStore
from ratchet.store.version_rows import BenchmarkEntry, BenchmarkStore, Version

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ENTRY = BenchmarkEntry(
    name="sums",
    source="built_in",
    content_hash="a" * 64,
    harness={"system_prompt": "ß"},
    verifier={"kind": "qa"},
    score_columns=("accuracy", "answered"),
    created_at=NOW,
)


@pytest.fixture
def database(each_database):
    opened = Database()
    yield opened
    opened.close()


def test_what_was_added_is_there_until_it_is_removed(database):
    store = BenchmarkStore(database)
    assert store.all() == []
    assert store.same("sums", ENTRY.content_hash) is None
    assert store.add(ENTRY) == (ENTRY, True)
    later = replace(ENTRY, created_at=datetime(2026, 12, 1, tzinfo=UTC))
    assert store.add(later) == (ENTRY, False)
    assert store.get("sums") == store.same("sums", ENTRY.content_hash) == ENTRY
    other = replace(ENTRY, name="another", content_hash="b" * 64)
    store.add(other)
    assert store.all() == [other, ENTRY]
    assert store.remove("sums") == ENTRY
    assert store.all() == [other]
    for call in (store.get, store.remove):
        with pytest.raises(NotFound, match="There is no benchmark sums"):
            call("sums")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"content_hash": "b" * 64}, "The benchmark sums has other content"),
        ({"name": "other"}, "The benchmark sums has the same questions"),
    ],
)
def test_a_name_has_one_content_and_a_content_one_name(database, change, said):
    store = BenchmarkStore(database)
    store.add(ENTRY)
    changed = replace(ENTRY, **change)
    for call in (lambda: store.add(changed), lambda: store.same(changed.name, changed.content_hash)):
        with pytest.raises(Conflict, match=said):
            call()
    assert store.all() == [ENTRY]


def test_it_knows_the_versions_that_it_was_made_of(database):
    rows = {"train": 1, "validation": 1, "test": 1}
    for content in ("c" * 64, "d" * 64):
        DatasetStore(database).add("mine", DatasetContent(content, "prompt", {}, "/here", rows, None))
    MetricStore(database).add("exact", "source")
    made = replace(ENTRY, source="dataset", dataset=Version("mine", 2), metric=Version("exact", 1))
    store = BenchmarkStore(database)
    store.add(made)
    assert store.get("sums") == made
    absent = replace(made, name="other", content_hash="e" * 64)
    with pytest.raises(NotFound, match="no dataset mine@3"):
        store.add(replace(absent, dataset=Version("mine", 3)))
    with pytest.raises(NotFound, match="no metric other@1"):
        store.add(replace(absent, metric=Version("other", 1)))
    assert store.all() == [made]
