"""A small router before fake servers, with the worker interface of SGLang's family.

``GET /workers`` lists them, ``DELETE /workers/ID`` takes one out, ``POST /workers`` puts one back.
With ``--blind`` it has no such interface: it only tries the next server where one refuses.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    workers: list[str]
    lock = threading.Lock()
    turn = 0
    blind = False

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nobody reads it."""

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.answer(200, {})
        if self.path == "/workers" and not self.blind:
            listed = [{"id": url, "url": url, "worker_type": "regular"} for url in self.workers]
            return self.answer(200, {"workers": listed, "total": len(listed)})
        return self.answer(404, {})

    def do_DELETE(self) -> None:
        if self.blind:
            return self.answer(404, {})
        name = self.path.removeprefix("/workers/").replace("%3A", ":").replace("%2F", "/")
        with self.lock:
            if name not in self.workers:
                return self.answer(404, {})
            self.workers.remove(name)
        return self.answer(202, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/workers":
            if self.blind:
                return self.answer(404, {})
            with self.lock:
                self.workers.append(json.loads(body)["url"])
            return self.answer(202, {})
        return self.forward(body)

    def forward(self, body: bytes) -> None:
        with self.lock:
            type(self).turn += 1
            turn, known = self.turn, list(self.workers)
        for index in range(len(known)):
            worker = urlsplit(known[(turn + index) % len(known)])
            try:
                connection = http.client.HTTPConnection(
                    str(worker.hostname), worker.port, timeout=60
                )
                connection.request("POST", self.path, body=body)
                reply = connection.getresponse()
                payload = reply.read()
            except ConnectionRefusedError:
                continue
            except (OSError, http.client.HTTPException):
                break
            self.send_response(reply.status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)
            return
        self.answer(502, {"error": "no worker answers"})

    def answer(self, status: int, data: dict[str, Any]) -> None:
        payload = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("workers", nargs="+")
    options = parser.parse_args()
    Handler.workers, Handler.blind = list(options.workers), options.blind
    Server(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
