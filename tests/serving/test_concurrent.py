"""A back end that takes many requests at once is given many; what goes wrong behind it is told as its fault."""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path
from typing import Any

from tests.support import counting_api

from .conftest import Server, serving, wait_until

KEY = "sk-upstream-0123456789"


def start(server: Server, number: int, **more: Any) -> http.client.HTTPConnection:
    messages = [{"role": "user", "content": f"question {number}"}]
    return server.begin({"model": "far", "messages": messages, "max_tokens": 20, **more})


def test_concurrent_requests_and_upstream_errors(tmp_path: Path) -> None:
    with counting_api.serving() as api:
        api.slow = 0.1
        arguments = ["--backend", "api", "--model", "far", "--set", "api_key_env=UPSTREAM_KEY", "--grace", "0"]
        arguments += ["--set", f"api_base_url={api.url}", "--set", "api_retries=0", "--queue", "0"]
        with serving(tmp_path, *arguments, UPSTREAM_KEY=KEY) as server:
            asked = [start(server, number) for number in range(16)]
            server.wait_for(in_flight=16)
            answers = [json.loads(connection.getresponse().read()) for connection in asked]
            for number, answer in enumerate(answers):
                prompt = counting_api.fingerprint("far", [{"role": "user", "content": f"question {number}"}])
                assert answer["choices"][0]["message"]["content"].endswith(prompt)
                assert answer["usage"]["completion_tokens"] == 4 + int(prompt, 16) % 7
            tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
            assert server.metrics()["completion_tokens_total"] == tokens
            assert server.request("POST", "/v1/completions", {"model": "far", "prompt": "x"})[0] == 400
            assert len(api.asked) == 16

            api.dies_at, api.death = 16, "hang"
            hanging = start(server, 16)
            wait_until(lambda: len(api.asked) == 17)
            api.death = 401
            response = start(server, 17).getresponse()
            refused = json.loads(response.read())
            assert (response.status, refused["error"]["code"]) == (502, "upstream")
            api.death = "cut"
            text = start(server, 18, stream=True).getresponse().read().decode()
            assert json.loads(text.rstrip().rpartition("data: ")[2])["error"]["code"] == "upstream"
            assert server.metrics()["requests_total.failed"] == 2

            # What hangs does not keep the server from ending.
            server.wait_for(in_flight=1)
            assert server.stop(signal.SIGTERM) == 0
            assert hanging.getresponse().status == 503
            assert KEY not in server.output + text + json.dumps(refused)
            assert "Traceback" not in server.output
