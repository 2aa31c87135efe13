"""A real S3 server (SeaweedFS) on this machine, and a proxy before it that answers with faults."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import s3fs

BUCKET = "isogloss"
KEYS = {"key": "test-key", "secret": "test-secret"}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}
_PORTS = ("master", "volume", "filer", "s3")


def free_port() -> int:
    """Returns a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[str]:
    """Runs the server on data in ``folder``; yields its URL."""
    config = folder / "s3.json"
    credentials = [{"accessKey": KEYS["key"], "secretKey": KEYS["secret"]}]
    config.write_text(json.dumps({"identities": [{"name": "test", "credentials": credentials, "actions": ["Admin"]}]}))
    ports = {name: free_port() for part in _PORTS for name in (f"{part}.port", f"{part}.port.grpc")}
    options = [f"-{name}={port}" for name, port in ports.items()]
    options += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", f"-s3.config={config}", f"-bucket={BUCKET}"]
    options += ["-admin.ui=false", "-webdav=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    options += [f"-filer.localSocket={folder}/f.sock", f"-s3.localSocket={folder}/s.sock"]
    log = (folder / "log").open("wb")
    server = subprocess.Popen([f"{sys.prefix}/bin/weed", "mini", *options], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{ports['s3.port']}"
    try:
        _wait_for_puts(url, server)
        yield url
    finally:
        server.kill()
        server.wait()
        log.close()


def environment(url: str) -> dict[str, str]:
    """Returns what a user sets to reach the server."""
    keys = {"AWS_ACCESS_KEY_ID": KEYS["key"], "AWS_SECRET_ACCESS_KEY": KEYS["secret"]}
    return {**keys, "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}


def client(url: str) -> s3fs.S3FileSystem:
    """Returns a file system of its own, which keeps nothing from others and no listing."""
    options = {"client_kwargs": {"endpoint_url": url, "region_name": "us-east-1"}}
    return s3fs.S3FileSystem(**KEYS, **options, skip_instance_cache=True, use_listings_cache=False)


def _wait_for_puts(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            client(url).pipe_file(f"{BUCKET}/ready", b"yes")
            return
        except OSError:
            assert time.monotonic() < deadline and server.poll() is None, "the S3 server did not start"
            time.sleep(0.3)


class FaultyProxy:
    """Passes requests on, but for faults.

    For keys that contain one of ``faulty``, the first three reads and the first three writes get a 503 SlowDown, a
    500, and half of the true answer, after which the connection is closed. A key with ``hopeless`` in it gets 503 for
    ever.
    """

    def __init__(self, upstream: str, faulty: tuple[str, ...] = (), hopeless: str | None = None) -> None:
        self.upstream, self.faulty, self.hopeless = upstream.removeprefix("http://"), faulty, hopeless
        self.given: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def fault_for(self, method: str, path: str) -> str | None:
        """Returns "slow-down", "internal-error" or "cut" for this request, or None."""
        if self.hopeless is not None and self.hopeless in path:
            return "slow-down"
        if method not in ("GET", "PUT") or not any(part in path for part in self.faulty):
            return None
        with self._lock:
            number = self.given.get((method, path), 0)
            self.given[method, path] = number + 1
        return ("slow-down", "internal-error", "cut", None)[min(number, 3)]

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Serves in threads; yields the proxy's URL."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    proxy: FaultyProxy

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault_for(self.command, self.path.split("?")[0])
        if fault in ("slow-down", "internal-error"):
            code, status = ("SlowDown", 503) if fault == "slow-down" else ("InternalError", 500)
            content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self._answer(status, {"Content-Type": "application/xml"}, content)
            return
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=30)
        # The host is a part of what the client signed, and so stays the proxy's.
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        if fault == "cut":
            self._answer(answer.status, headers, content, sent=len(content) // 2)
            self.close_connection = True
        else:
            self._answer(answer.status, headers, content)
        connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, sent: int | None = None) -> None:
        self.send_response(status)
        lengths = {"Content-Length": headers.get("Content-Length", str(len(content)))}
        for name, value in {**headers, **lengths}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if sent is None else content[:sent])
            self.wfile.flush()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any
