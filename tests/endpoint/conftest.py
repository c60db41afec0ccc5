"""Endpoints of the tests; every one is closed, and nothing of Ratchet's may be left at work."""

import threading

import pytest

from .server import Endpoint


@pytest.fixture
def endpoint():
    server = Endpoint()
    yield server
    server.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("ratchet-endpoint")] == []


@pytest.fixture
def other_endpoint():
    server = Endpoint()
    yield server
    server.close()
