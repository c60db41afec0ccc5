"""A real S3 server for tests: moto's, as a process of its own on this machine's loopback address."""

import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec

import pytest

from .databases import bound_to_us, without_server

_ASK_SECONDS, _START_SECONDS = 0.05, 60
KEYS = {"aws_access_key_id": "tester", "aws_secret_access_key": "hunter2", "region_name": "us-east-1"}


class BucketServer:
    """A running server with one bucket, ``runs``. What it holds is in its memory and gone when it stops."""

    def __init__(self, log):
        self._log = log
        self.port = _free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._process = None
        self.start()

    def start(self):
        command = bound_to_us([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.port], "KILL")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, start_new_session=True
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert time.monotonic() < deadline, "the S3 server does not start"
            time.sleep(_ASK_SECONDS)
        self.client().create_bucket(Bucket="runs")

    def _answers(self):
        try:
            self._ask("GET", "/moto-api/")
        except OSError:
            return False
        return True

    def _ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body)
        connection.getresponse().read()
        connection.close()

    def kill(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        self._process.stdin.close()

    def check_keys(self):
        """From now on refuse whoever has no account; nobody has one."""
        self._ask("POST", "/moto-api/reset-auth", "0")

    def reset(self):
        if self._process.poll() is not None:
            self.start()
        self._ask("POST", "/moto-api/reset-auth", "inf")
        self._ask("POST", "/moto-api/reset")
        self.client().create_bucket(Bucket="runs")

    def client(self):
        """Another program's access to the same server."""
        import boto3  # here, since the tests with vLLM have an environment without it

        return boto3.client("s3", endpoint_url=self.address, **KEYS)

    def names(self):
        return sorted(one["Key"] for one in self.client().list_objects_v2(Bucket="runs").get("Contents", []))


def _free_port():
    """Return a port that the system gives nobody for a connection of theirs: while the server is down it stays free."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def _bucket_process(tmp_path_factory):
    if find_spec("moto") is None:
        without_server("moto", "pip install 'moto[server]'")
    with (tmp_path_factory.mktemp("s3") / "log").open("wb") as log:
        server = BucketServer(log)
        yield server
        server.kill()


@pytest.fixture
def bucket_server(_bucket_process, monkeypatch):
    """The server with an empty bucket; this process and those it starts find it and have its keys."""
    _bucket_process.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", _bucket_process.address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", KEYS["region_name"])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return _bucket_process


@pytest.fixture(params=["folder", "s3"])
def each_storage(request, tmp_path):
    """The URL of an empty storage of each kind."""
    if request.param == "s3":
        request.getfixturevalue("bucket_server")
        return "s3://runs/of/mine"
    (tmp_path / "storage").mkdir()
    return str(tmp_path / "storage")
