"""A sweep: every policy at every rate, in turn. Finished rounds are kept; started again, it goes on behind them."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.claim import claim
from ianvs_specdec.load import rounds
from ianvs_specdec.load.arrivals import arrivals_text, label, read_chats
from ianvs_specdec.load.generator import check_installed
from ianvs_specdec.load.output import to_csv
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.results import Measurement, result
from ianvs_specdec.load.rounds import RoundKey
from ianvs_specdec.load.servers import Server, ServerDied, start_server
from ianvs_specdec.load.traces import read_trace
from ianvs_specdec.records.identity import write_atomically
from ianvs_specdec.records.run import current_run

ASKED, SWEEP, TABLE, FIGURE = "load.json", "sweep.json", "sweep.csv", "load.png"
PLAIN = ("fixed:0", "0")
"""Policies that do not speculate."""


def order(plan: SweepPlan) -> list[RoundKey]:
    """The rounds: at every rate and in every repeat all policies, in an order drawn from the seed."""
    chance = random.Random(plan.seed)
    return [
        RoundKey(rate, policy, repeat)
        for rate in plan.rates
        for repeat in range(plan.repeats)
        for policy in chance.sample(plan.policies, len(plan.policies))
    ]


def reference(plan: SweepPlan) -> str:
    """The policy with whose outputs the others' are compared: plain decoding, else the first one."""
    return next((policy for policy in plan.policies if policy in PLAIN), plan.policies[0])


def run(plan: SweepPlan, out: Path) -> list[dict[str, Any]]:
    """Run what is left of a sweep in the folder ``out``, and write its results there after every round. Raises
    UserError and ServerDied; finished rounds are kept."""
    texts = _arrivals(plan)
    check_installed()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"--out {out}: there is a file; give a folder to write into") from error
    held = claim(out, current_run()[0])
    _check_same(plan, out)
    write_atomically(out / ASKED, json.dumps(plan.to_json(), indent=1) + "\n")
    (out / "rounds").mkdir(exist_ok=True)
    files = {of: _write_arrivals(out, *of, text) for of, text in texts.items()}
    places = order(plan)
    left = [place for place in places if rounds.read(out, place) is None]
    done = len(places) - len(left)
    with _servers(plan) as server_of:
        for number, place in enumerate(left, start=done + 1):
            again = f", repeat {place.repeat + 1} of {plan.repeats}" if plan.repeats > 1 else ""
            print(f"round {number} of {len(places)}: {place.policy} at {place.rate:g}/s{again}", file=sys.stderr)
            rounds.run(plan, server_of(place.policy), place, files[place.rate, place.repeat], out)
            results(plan, out)
    found = results(plan, out)
    del held
    return found


def results(plan: SweepPlan, out: Path) -> list[dict[str, Any]]:
    """Results of the finished rounds, in the order of rates and policies; written as JSON and CSV."""
    found = []
    for rate in plan.rates:
        places = {
            policy: [RoundKey(rate, policy, repeat) for repeat in range(plan.repeats)] for policy in plan.policies
        }
        there = {policy: [kept for place in of if (kept := rounds.read(out, place))] for policy, of in places.items()}
        measured = {policy: Measurement.of(finished, plan) for policy, finished in there.items() if finished}
        plain = measured.get(reference(plan))
        for policy, one in measured.items():
            compared = plain if plan.temperature == 0 and policy != reference(plan) else None
            found.append(
                result(one, plan, compared, {name: other for name, other in measured.items() if name != policy})
            )
    write_atomically(out / SWEEP, json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_atomically(out / TABLE, to_csv(found))
    return found


def _arrivals(plan: SweepPlan) -> dict[tuple[float, int], str]:
    """The file of arrivals for each rate and repeat, each repeat with the next seed. Raises UserError with the key at
    fault."""
    chats = read_chats(Path(plan.data))
    trace = read_trace(plan.trace) if plan.trace else []
    try:
        return {
            (rate, repeat): arrivals_text(
                plan.arrivals, trace, chats, rate, plan.duration, plan.seed + repeat, plan.max_tokens
            )
            for rate in plan.rates
            for repeat in range(plan.repeats)
        }
    except UserError as error:
        raise UserError(f"{plan.trace}: {error}" if trace else str(error), key="rates") from error


def _write_arrivals(out: Path, rate: float, repeat: int, text: str) -> Path:
    """Written once: a sweep that goes on replays what it began with."""
    path = out / "rounds" / f"arrivals-{label(rate)}{rounds.repeated(repeat)}.jsonl"
    if not path.exists():
        write_atomically(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{path} was changed since the sweep began: finished rounds had other arrivals; name another --out"
        )
    return path


def _check_same(plan: SweepPlan, out: Path) -> None:
    """Raise UserError where the folder holds another sweep."""
    asked = out / ASKED
    if not asked.exists():
        if (out / SWEEP).exists() or (out / "rounds").exists():
            raise UserError(f"{out} holds a sweep without its {ASKED}: name another folder")
        return
    try:
        before = json.loads(asked.read_text(encoding="utf-8"))
        differing = [name for name, value in plan.to_json().items() if before.get(name) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{asked} cannot be read ({error}): name another folder") from error
    if differing:
        name = differing[0]
        there, here = before.get(name), plan.to_json()[name]
        raise UserError(
            f"{out} holds a sweep with other options ({', '.join(differing)}; {name}: {there!r:.80} there, "
            f"{here!r:.80} here): continue it with the same ones, or name another folder"
        )


@contextmanager
def _servers(plan: SweepPlan) -> Iterator[Any]:
    """A function from a policy to its server, which is started when it is first asked for and ended with all."""
    servers: dict[str, Server] = {}

    def server_of(policy: str) -> Server:
        if policy not in servers:
            servers[policy] = _running(plan) if plan.url else start_server(plan, policy)
        servers[policy].check()
        return servers[policy]

    try:
        yield server_of
    finally:
        for server in servers.values():
            server.stop()


def _running(plan: SweepPlan) -> Server:
    """The server at ``plan.url``, which knows the model. Raises UserError."""
    key = os.environ.get(plan.api_key_env, "") if plan.api_key_env else ""
    if plan.api_key_env and not key:
        raise UserError(f"the environment variable {plan.api_key_env} holds no key", key="api_key_env")
    server = Server(plan.url, plan.model, key)
    try:
        models = server.models()
    except ServerDied as error:
        raise UserError(str(error), key="url") from error
    if plan.model not in models:
        raise UserError(
            f"the server at {server.url} has no model {plan.model!r}: it has {', '.join(models)}", key="model"
        )
    return server
