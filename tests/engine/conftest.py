"""What every test of the engine runs under."""

import socket

import pytest


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Fail a test that tries to reach anything, even if a library would swallow the refusal."""
    tried = []

    def refuse(*address, **_):
        tried.append(address)
        raise OSError("tests have no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not tried, f"a test tried to reach {tried}"
