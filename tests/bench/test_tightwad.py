"""``bench.split tightwad`` with stand-ins for the two programs that it needs."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")
pytest.importorskip("gguf", reason="needs the extra gguf: pip install 'ianvs-specdec[gguf]'")

from bench.split import __main__ as split
from bench.split.scene import MODELS

SERVER = """\
#!{python}
# A server of llama.cpp that always says the same, and, told of a file with two of them, a proxy that asks the far one.
import http.client, http.server, json, sys

arguments = sys.argv[1:]
proxy = json.load(open(arguments[1]))["proxy"] if arguments[0] == "--config" else None
port = proxy["port"] if proxy else int(arguments[arguments.index("--port") + 1])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        reply = json.dumps({{"choices": [{{"text": "a b c"}}]}}).encode()
        if proxy:
            far = http.client.HTTPConnection(proxy["target"]["url"].removeprefix("http://"))
            far.request("POST", self.path, asked)
            reply = far.getresponse().read()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(reply)

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.slow
def test_all_four_answer_and_the_proxy_asks_the_far_server_over_the_link(tmp_path, capsys):
    stand_in = tmp_path / "server"
    stand_in.write_text(SERVER.format(python=sys.executable))
    stand_in.chmod(0o755)
    programs = ["--tightwad", str(stand_in), "--llama-server", str(stand_in)]
    small = ["--limit", "1", "--tokens", "4", "--trips", "2,40", "--draft", str(MODELS / "edge")]
    assert split.main(["tightwad", *programs, *small, "--out", str(tmp_path)]) == 0
    assert "over tightwad" in capsys.readouterr().out
    rows = json.loads((tmp_path / "split-tightwad.json").read_text())["rows"]
    assert [row["trip"] for row in rows] == [2.0, 40.0]
    assert all(set(row["same"].values()) == {1.0} for row in rows)
    # No answer is there before the way has been gone twice.
    for row in rows:
        tokens = row["rates"]["tightwad"] * row["trip"] / 1000
        assert 0 < tokens <= 3


def test_without_a_program_one_message_says_which(tmp_path, capsys):
    command = ["tightwad", "--llama-server", "/nowhere/llama-server", "--draft", str(MODELS / "edge")]
    assert split.main([*command, "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "there is no /nowhere/llama-server here: install it, or give its path (see --help)" in told
    assert not list(tmp_path.iterdir())
