"""The runner ``ray`` on a cluster of two nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.counting_api import CountingAPI
from tests.support.harness import Outcome, Run, Workplace, questions, untimed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install ray"),
]

STORE = 80 << 20
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE}

VICTIM = '''

import time
from pathlib import Path

import ray

from ianvs_specdec.routing.routers.baselines import RandomRouter


class Victim(RandomRouter):
    """On the node that the file ``victim`` names it hangs at the fifth row, and says so in the file ``hanging``; on all
    others it waits for that.
    """

    seen = 0

    def __call__(self, data):
        hanging = Path("hanging")
        if ray.get_runtime_context().get_node_id() == Path("victim").read_text():
            Victim.seen += 1
            if Victim.seen == 5:
                hanging.touch()
                time.sleep(3600)
        while Victim.seen == 0 and not hanging.exists():
            time.sleep(0.01)
        return super().__call__(data)


ClassFactory.register(ClassType.HEM, alias="RandomRouter")(Victim)
'''

NODES = f"""
import sys
from ray.cluster_utils import Cluster
node = {NODE}
cluster = Cluster(initialize_head=True, head_node_args={{**node, "include_dashboard": False}})
print(cluster.address, flush=True)
second = None
for line in sys.stdin:
    if line == "add\\n" and second is None:
        second = cluster.add_node(**node)
    elif line == "kill\\n":
        cluster.remove_node(second, allow_graceful=False)
        second = None
    print(second and second.node_id, flush=True)
cluster.shutdown()
"""


class Nodes:
    """Two nodes on this machine, the second of which can be taken away. Ray reads how its processes know each other
    when it is imported, and from the home folder: hence a process of their own, and a token of their own.
    """

    def __init__(self) -> None:
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1",
        }
        # A node may have been started in the environment of another run.
        environment = os.environ | self.environment | {"IANVS_FRESH": "1", "IANVS_REPEAT": "7"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", NODES], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.address = self._line()

    def complete(self) -> str:
        """Have two nodes; the id of the second one."""
        return self._tell("add")

    def kill_second(self) -> None:
        self._tell("kill")

    def _tell(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the cluster of this test did not start"
        return line

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    found.close()


def run(workplace: Workplace, name: str, keys: dict[str, Any]) -> Run:
    """Start the job under another name, with a separate workspace and additional keys."""
    path = workplace.example / "benchmarkingjob.yaml"
    added = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in keys.items())
    text = path.read_text(encoding="utf-8")
    text = re.sub(
        r"\n  name: (?:.*\n)(?:  (?:runner|concurrency): .*\n)*", f'\n  name: "{name}"\n{added}', text, count=1
    )
    path.write_text(text, encoding="utf-8")
    workplace.workspace = workplace.root / "workspace" / name
    return workplace.start()


def done(started: Run) -> Outcome:
    outcome = started.wait()
    assert outcome.code == 0, outcome.output
    return outcome


def answers(workplace: Workplace) -> dict[tuple[str, str], list[Any]]:
    return {
        case: [(row["index"], row["is_hard"], row["result"]["completion"]) for row in workplace.answers(*case)]
        for case in workplace.leaderboard()
    }


def test_two_nodes_make_the_leaderboard_of_a_local_run(workplace: Workplace, api: CountingAPI, nodes: Nodes) -> None:
    nodes.complete()
    workplace.environment |= nodes.environment
    workplace.on_api(api.url)
    workplace.data(questions(30, 6))
    workplace.algorithms("CloudOnly", "OracleRouter")
    done(run(workplace, "local", {}))
    wanted, texts = untimed(workplace.leaderboard()), answers(workplace)
    keys, asked = {line["key"] for line in workplace.journal()}, len(api.asked)

    keys_of_job = {"concurrency": 2, "runner": {"name": "ray", "address": nodes.address, "workers": 2, "shard": 4}}
    outcome = done(run(workplace, "spread", keys_of_job))
    assert "up to 2 workers of 1 CPU on 2 nodes" in outcome.stderr
    assert untimed(workplace.leaderboard()) == wanted
    assert answers(workplace) == texts
    assert {line["key"] for line in workplace.journal()} == keys
    # The oracle reuses the cloud's answers of the previous test case.
    assert len(api.asked) == 2 * asked
    journal = workplace.journal()

    done(run(workplace, "spread", keys_of_job))
    assert len(api.asked) == 2 * asked, "what was answered was asked for again"
    assert [workplace.environment_of(*case)["run"]["replayed"] for case in wanted] == [36, 36]
    assert workplace.journal() == journal


def test_a_lost_node_loses_no_answer(workplace: Workplace, models: tuple[Path, Path], nodes: Nodes) -> None:
    for side, model in zip(("edge", "cloud"), models, strict=True):
        workplace.settings(side, model=str(model), max_tokens=6)
    workplace.backends("PromptLookup")
    workplace.data(questions(14, 2))
    workplace.algorithms("RandomRouter")
    done(run(workplace, "local", {}))
    wanted, texts = untimed(workplace.leaderboard()), answers(workplace)

    routers = workplace.routing / "hard_sample_mining.py"
    text = routers.read_text(encoding="utf-8")
    without = text.replace("for name in ROUTERS:", 'for name in sorted({*ROUTERS} - {"RandomRouter"}):')
    assert without != text
    routers.write_text(without + VICTIM, encoding="utf-8")
    (workplace.root / "victim").write_text(nodes.complete())
    workplace.environment |= nodes.environment
    torn = run(workplace, "torn", {"runner": {"name": "ray", "address": nodes.address, "workers": 2, "shard": 4}})
    torn.wait_for((workplace.root / "hanging").exists)
    torn.wait_for(lambda: len(workplace.journal()) >= 4)
    kept = workplace.journal()
    nodes.kill_second()
    outcome = done(torn)
    (told,) = outcome.lines("a worker was lost")
    assert "reassigned, try 1 of 3" in told
    assert untimed(workplace.leaderboard()) == wanted
    assert answers(workplace) == texts
    keys = [line["key"] for line in workplace.journal()]
    assert workplace.journal()[: len(kept)] == kept
    assert len(set(keys)) == len(keys), "a row that had been answered was asked for again"
    lost = [workplace.environment_of(*case)["run"]["workers_lost"] for case in workplace.leaderboard()]
    assert lost == [1]
