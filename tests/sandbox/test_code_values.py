"""Values that cross between tests and candidate: equal and of the same type on the other side, and nothing else crosses."""

import collections
import datetime
import decimal
import enum
import fractions
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.sandbox.code_values import decode, encode


def refuse(value):
    raise TypeError("not plain")


def crossed(value):
    return decode(json.loads(json.dumps(encode(value, refuse))), refuse)


hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
values = st.recursive(
    hashable | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False) | st.fractions() | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(hashable, inner, max_size=3) | st.sets(hashable, max_size=3)
    ),
    max_leaves=10,
)


@given(values)
def test_plain_values_come_out_as_they_went_in(value):
    assert crossed(value) == value
    assert type(crossed(value)) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        True,
        2**5000,
        -(2**63),
        float("inf"),
        -0.0,
        "\ud800 \0 \n",
        bytearray(b"\xff"),
        range(3, 30, 2),
        collections.Counter("aab"),
        collections.OrderedDict([(2, 1), (1, 2)]),
        collections.deque([1, 2], maxlen=2),
        datetime.timedelta(days=-1, seconds=3),
        datetime.date(2024, 2, 29),
        datetime.time(23, 59),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        {(1, 2): {"a": [None]}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_these_too(value):
    assert crossed(value) == value
    assert type(crossed(value)) is type(value)
    assert str(crossed(value)) == str(value)


def test_nan_stays_nan():
    assert math.isnan(crossed(float("nan")))


def test_what_derives_from_a_plain_type_crosses_as_that():
    class Lying(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    point = collections.namedtuple("point", "x y")(1, 2)
    assert type(crossed(Lying(3))) is int
    assert crossed(Lying(3)) != 4
    assert type(crossed(point)) is tuple


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        int,
        enum.IntEnum("Colour", "RED").RED,
        [object()],
        datetime.datetime.now(datetime.UTC),
        (1).__add__,
    ],
    ids=["object", "function", "class", "enum", "inside a list", "aware time", "method"],
)
def test_all_else_is_asked_for_a_number(value):
    with pytest.raises(TypeError, match="not plain"):
        encode(value, refuse)


@pytest.mark.parametrize(
    "data",
    [
        {"make": "os.system", "of": ["true"]},
        {"make": "builtins.eval", "of": ["1"]},
        {"make": "builtins.object", "of": []},
        {"make": "decimal.Decimal.__class__", "of": []},
        {"make": ["builtins.list"], "of": []},
        {"int": "os"},
        {"int": 5},
        {},
    ],
)
def test_nothing_but_plain_types_is_ever_constructed(data):
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode(data, refuse)
