"""A fake Hugging Face hub (``HF_ENDPOINT``) with one data set, from a folder."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0" * 39 + "1"


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name: ClassVar[str]
    folder: ClassVar[Path]

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api, files = f"/api/datasets/{self.name}", f"/datasets/{self.name}/resolve/"
        if path.startswith(files):
            self._file(path.removeprefix(files).partition("/")[2])
        elif path.startswith(f"{api}/tree/"):
            below = path.removeprefix(f"{api}/tree/").partition("/")[2]
            self._json(list(self._tree(self.folder / below, recursive="recursive=true" in self.path.lower())))
        elif path == api or path.startswith(f"{api}/revision/"):
            names = [{"rfilename": entry["path"]} for entry in self._tree(self.folder, recursive=True)]
            self._json({"id": self.name, "sha": COMMIT, "siblings": names, "private": False, "tags": []})
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        paths = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode()).get("paths", [])
        known = [self.folder / path for path in paths]
        self._json([self._entry(path) for path in known if path.exists()])

    def _tree(self, folder: Path, recursive: bool) -> Iterator[dict[str, Any]]:
        for path in sorted(folder.rglob("*") if recursive else folder.glob("*")):
            if path.is_file() or not recursive:
                yield self._entry(path)

    def _entry(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.folder).as_posix()
        content = path.read_bytes() if path.is_file() else b""
        kind = "file" if path.is_file() else "directory"
        return {"type": kind, "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def _file(self, name: str) -> None:
        path = self.folder / name
        if not path.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        content = path.read_bytes()
        etag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return self._send(200, content, etag)

    def _json(self, data: Any) -> None:
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def hub(name: str, folder: Path) -> Iterator[str]:
    """Serve ``folder`` as the data set ``name``; returns the address for ``HF_ENDPOINT``."""
    handler = type("Hub", (_Hub,), {"name": name, "folder": folder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
