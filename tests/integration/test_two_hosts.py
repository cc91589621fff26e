"""docs/deployment.md with an edge and a cloud in separate network namespaces."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")
pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.commands.cli import main
from tests.support.harness import LONGEST, Workplace, command, questions
from tests.support.paths import EXAMPLE, ROOT

EDGE, CLOUD = "10.77.0.1", "10.77.0.2"
KEY = "a-key-of-the-cloud-server"
JOB = f"examples/{EXAMPLE.name}/benchmarkingjob_two_hosts.yaml"
SPECDEC = [sys.executable, "-m", "ianvs_specdec.commands.cli"]
ASK = """
import json, ssl, sys, urllib.error, urllib.request
url, key, authority = sys.argv[1:]
body = json.dumps({"model": "cloud", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}).encode()
headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
context = ssl.create_default_context(cafile=authority or None)
for path, data in (("chat/completions", body), ("models", None)):
    request = urllib.request.Request(f"{url}/v1/{path}", data, headers)
    try:
        print(urllib.request.urlopen(request, context=context, timeout=60).status)
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError as error:
        print(type(getattr(error, "reason", error)).__name__)
"""

pytestmark = pytest.mark.slow


class Host:
    """A network namespace, in which commands run."""

    def __init__(self, stack: ExitStack, beside: Host | None = None) -> None:
        # The root of the shared user namespace creates the link.
        unshare = ["unshare", "--net"] if beside else ["unshare", "--user", "--map-root-user", "--net"]
        prefix = [] if beside is None else beside.enter("--user")
        sleep = [*prefix, *unshare, "sh", "-c", "echo there; exec sleep 3600"]
        self._keeper = stack.enter_context(subprocess.Popen(sleep, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        stack.callback(self._keeper.kill)
        assert self._keeper.stdout is not None
        if self._keeper.stdout.read(5) != b"there":
            pytest.skip(f"this kernel gives no network namespaces: {self._keeper.communicate()[1].decode().strip()}")
        self.pid = self._keeper.pid

    def enter(self, *kinds: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--preserve-credentials", *(kinds or ("--user", "--net"))]

    def run(self, *given: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.enter(), *given], capture_output=True, text=True, timeout=LONGEST, **options)

    def ip(self, *given: str) -> None:
        done = self.run("ip", *given)
        if done.returncode:
            pytest.skip(f"ip {' '.join(given)}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if missing := [name for name in ("unshare", "nsenter", "ip", "openssl") if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    with ExitStack() as stack:
        edge = Host(stack)
        cloud = Host(stack, edge)
        edge.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(cloud.pid))
        for host, address in ((edge, EDGE), (cloud, CLOUD)):
            host.ip("address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                host.ip("link", "set", device, "up")
        yield edge, cloud


@pytest.fixture
def place(workplace: Workplace, models: tuple[Path, Path]) -> Workplace:
    """The shipped job with small models, and the cloud's model in the job's process beside it, for Lossless."""
    shutil.copy(EXAMPLE / "benchmarkingjob_two_hosts.yaml", workplace.example)
    workplace.backends("autoregressive", cloud="autoregressive")
    workplace.data(questions(6))
    for side, model in zip(("edge", "cloud"), models, strict=True):
        workplace.settings(side, model=str(model), max_tokens=16)
    baseline = {"model": str(models[1]), "dtype": "auto", "device": "auto", "threads": 1}
    workplace.settings("two_hosts", api_baseline=baseline, max_tokens=16)
    for file, old, new in (
        (workplace.root / JOB, "edge_only.yaml", "cloud_only.yaml"),
        (workplace.routing / "two_hosts.yaml", f"./examples/{EXAMPLE.name}/models/router", f"{EXAMPLE}/models/router"),
    ):
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    subprocess.run(["sh", str(ROOT / "deploy" / "certificates.sh"), CLOUD, EDGE], cwd=workplace.root, check=True)
    workplace.environment |= {"NO_PROXY": CLOUD, "no_proxy": CLOUD, "CLOUD_SERVER_KEY": KEY}
    workplace.environment |= {"CLOUD_SERVER_URL": f"https://{CLOUD}:8443/v1", "OMP_NUM_THREADS": "1"}
    return workplace


def serving(stack: ExitStack, host: Host, place: Workplace, *given: str) -> None:
    """Start a server of the cloud and wait until it listens."""
    tls = ["--tls-cert", "certificates/cloud.pem", "--tls-key", "certificates/cloud.key", "--host", CLOUD]
    output = place.root / f"{given[0]}.txt"
    with output.open("wb") as file:
        started = [*host.enter(), *SPECDEC, *given, *tls]
        options: dict[str, Any] = {"cwd": place.root, "env": place.environment, "stderr": subprocess.STDOUT}
        server = stack.enter_context(subprocess.Popen(started, stdout=file, **options))
    stack.callback(server.kill)
    deadline = time.monotonic() + LONGEST
    while "listening on" not in output.read_text():
        assert server.poll() is None, output.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_asks_the_cloud_over_tls_with_its_key(hosts: tuple[Host, Host], place: Workplace) -> None:
    edge, cloud = hosts
    settings = str(place.routing / "cloud_settings.yaml")
    given = ["--settings", settings, "--backend", "PromptLookup", "--name", "cloud", "--port", "8443"]
    at_work: dict[str, Any] = {"cwd": place.root, "env": place.environment}
    with ExitStack() as stack:
        serving(stack, cloud, place, "serve", *given, "--api-key-env", "CLOUD_SERVER_KEY")
        done = edge.run(*command(), "-f", JOB, **at_work)
        assert done.returncode == 0, done.stderr
        url, authority = f"https://{CLOUD}:8443", "certificates/ca.pem"
        for asked, told in (
            ((url, KEY, authority), "200 200"),
            ((url, "", authority), "401 401"),
            ((url, "another-key", authority), "401 401"),
            ((url, KEY, ""), "SSLCertVerificationError SSLCertVerificationError"),
        ):
            assert edge.run(sys.executable, "-c", ASK, *asked, **at_work).stdout.split() == told.split()
        assert "200" not in edge.run(sys.executable, "-c", ASK, f"http://{CLOUD}:8443", KEY, "", **at_work).stdout
    with (place.root / "workspace" / "cloud-edge-two-hosts" / "rank" / "all_rank.csv").open(newline="") as file:
        rows = {row["algorithm"]: row for row in csv.DictReader(file)}
    assert rows["two-hosts"]["Lossless"] == "100.0"
    assert 0 < float(rows["two-hosts"]["Edge Ratio"]) < 100
    assert float(rows["two-hosts"]["Acceptance Rate"]) >= 0
    written = [file.read_text(errors="replace") for file in place.root.rglob("*") if file.is_file()]
    assert not [text for text in written if KEY in text]


def test_an_edge_drafts_for_a_verifier_over_tls_with_its_token(
    hosts: tuple[Host, Host], place: Workplace, models: tuple[Path, Path]
) -> None:
    edge, cloud = hosts
    draft, target = models
    prompts = place.root / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": list(range(first, first + 30))}) + "\n" for first in (64, 70)))
    shared = ["--prompts", str(prompts), "--max-new-tokens", "40", "--threads", "1"]
    (place.root / "other_token").write_text("0123456789abcdef0123456789abcdef\n")
    with ExitStack() as stack:
        token = ["--token-file", "certificates/token"]
        serving(stack, cloud, place, "verifier", "--model", str(target), "--port", "8500", *token)
        drafting = ["decode", "--method", "draft_model", "--draft", str(draft), "--mode", "split", "--outage", "fail"]
        given = [*SPECDEC, *drafting, "--verifier", f"{CLOUD}:8500", "--verifier-ca", "certificates/ca.pem", *shared]
        at_work: dict[str, Any] = {"cwd": place.root, "env": place.environment}
        done = edge.run(*given, "--token-file", "certificates/token", "--out", "far.jsonl", **at_work)
        assert done.returncode == 0, done.stderr
        refused = edge.run(*given, "--token-file", "other_token", "--out", "none.jsonl", **at_work)
        assert refused.returncode != 0
        assert "does not know this token" in refused.stderr
        assert not (place.root / "none.jsonl").exists()
    alone = place.root / "alone.jsonl"
    assert main(["decode", "--method", "autoregressive", "--model", str(target), *shared, "--out", str(alone)]) == 0
    outputs = [
        [json.loads(line)["output"] for line in file.read_text().splitlines()]
        for file in (place.root / "far.jsonl", alone)
    ]
    assert outputs[0] == outputs[1]
