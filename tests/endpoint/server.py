"""A small OpenAI-compatible server on this machine, for tests: it answers, or misbehaves as a test wants."""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-Test-0123456789abcdef"
PROMPT = "Confidential prompt"
ANSWER = "Confidential answer"


@dataclass
class Reply:
    """What is sent: ``seconds`` before the first byte, ``drip_seconds`` before each byte of the body."""

    body: object
    status: int = 200
    headers: dict = field(default_factory=dict)
    seconds: float = 0.0
    drip_seconds: float = 0.0
    breaks: bool = False  # the connection is closed without a reply


@dataclass
class Asked:
    path: str
    headers: dict
    body: dict
    number: int  # of requests with this body's messages, from 1 on


def completion(text=ANSWER, finish="stop", usage=(7, 3), **message):
    reply = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
        ],
    }
    if usage is not None:
        reply["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return reply


def fault(status, message=PROMPT, headers=None, **fields):
    return Reply({"error": {"message": f"{message} {KEY}", **fields}}, status, headers or {})


class Endpoint:
    """The server. ``answer`` is called with each ``Asked`` for a chat; ``models`` is the reply to /v1/models."""

    def __init__(self):
        self.answer = lambda asked: Reply(completion())
        self.models = Reply({"object": "list", "data": [{"id": "small"}]})
        self.asked = []
        self.under_way = self.most_at_once = self.broken_off = 0
        self.ended = threading.Event()  # lets replies that wait go on
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                endpoint.handle(self, {})

            def do_POST(self):
                length = int(self.headers.get("Content-Length", 0))
                endpoint.handle(self, json.loads(self.rfile.read(length)))

            def log_message(self, *arguments):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass  # whoever asked has gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def chats(self):
        return [asked for asked in self.asked if asked.path == "/v1/chat/completions"]

    def handle(self, handler, body):
        with self._lock:
            same = [asked for asked in self.asked if asked.body.get("messages") == body.get("messages")]
            asked = Asked(handler.path, dict(handler.headers), body, len(same) + 1)
            self.asked.append(asked)
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            if handler.path == "/v1/models":
                reply = self.models
            elif handler.path == "/v1/chat/completions":
                reply = self.answer(asked)
            else:
                reply = Reply({}, 404)
            self.ended.wait(reply.seconds) if reply.seconds else None
        finally:
            with self._lock:
                self.under_way -= 1
        try:
            self.send(handler, reply)
        except OSError:
            self.broken_off += 1
            handler.close_connection = True

    def send(self, handler, reply):
        if reply.breaks:
            handler.close_connection = True
            return
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if not reply.drip_seconds:
            handler.wfile.write(content)
            return
        for byte in content:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(reply.drip_seconds)

    def close(self):
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
