"""A sweep: rounds of all policies at all rates. An interrupted sweep resumes after its finished rounds."""

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
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.storage.folder_lock import lock_folder
from ianvs_specdec.load import rounds
from ianvs_specdec.load.arrivals import arrivals_text, rate_label, read_chats, read_trace
from ianvs_specdec.load.generator import check_installed
from ianvs_specdec.load.output import to_csv
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.results import Measurement, result
from ianvs_specdec.load.rounds import RoundKey
from ianvs_specdec.load.servers import Server, ServerDied, start_server
from ianvs_specdec.records.run import current_run

OPTIONS, SWEEP, TABLE, FIGURE = "load.json", "sweep.json", "sweep.csv", "load.png"
PLAIN = ("fixed:0", "0")
"""Policies without speculation."""


def order(plan: SweepPlan) -> list[RoundKey]:
    """All rounds; at each rate and repeat, the policies are shuffled by the seed."""
    rng = random.Random(plan.seed)
    return [
        RoundKey(rate, policy, repeat)
        for rate in plan.rates
        for repeat in range(plan.repeats)
        for policy in rng.sample(plan.policies, len(plan.policies))
    ]


def reference(plan: SweepPlan) -> str:
    """The policy whose outputs are the reference: autoregressive decoding, else the first one."""
    return next((policy for policy in plan.policies if policy in PLAIN), plan.policies[0])


def run(plan: SweepPlan, out: Path) -> list[dict[str, Any]]:
    """Run the missing rounds of a sweep in the folder ``out``, and write its results after each round. Raises UserError
    and ServerDied; finished rounds are kept."""
    texts = _arrivals(plan)
    check_installed()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"--out {out} is a file; give a folder") from error
    lock = lock_folder(out, current_run()[0])
    _check_same(plan, out)
    write_atomically(out / OPTIONS, json.dumps(plan.to_json(), indent=1) + "\n")
    (out / "rounds").mkdir(exist_ok=True)
    files = {key: _write_arrivals(out, *key, text) for key, text in texts.items()}
    keys = order(plan)
    missing = [key for key in keys if rounds.read(out, key) is None]
    done = len(keys) - len(missing)
    with _servers(plan) as server_of:
        for number, key in enumerate(missing, start=done + 1):
            repeat = f", repeat {key.repeat + 1} of {plan.repeats}" if plan.repeats > 1 else ""
            print(f"round {number} of {len(keys)}: {key.policy} at {key.rate:g}/s{repeat}", file=sys.stderr)
            rounds.run(plan, server_of(key.policy), key, files[key.rate, key.repeat], out)
            results(plan, out)
    found = results(plan, out)
    del lock
    return found


def results(plan: SweepPlan, out: Path) -> list[dict[str, Any]]:
    """Results of the finished rounds by rate and policy, written as JSON and CSV."""
    found = []
    for rate in plan.rates:
        measured = {}
        for policy in plan.policies:
            keys = [RoundKey(rate, policy, repeat) for repeat in range(plan.repeats)]
            if finished := [kept for key in keys if (kept := rounds.read(out, key))]:
                measured[policy] = Measurement.of(finished, plan)
        for policy, one in measured.items():
            others = {name: other for name, other in measured.items() if name != policy}
            found.append(result(one, plan, others.get(reference(plan)) if plan.temperature == 0 else None, others))
    write_atomically(out / SWEEP, json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_atomically(out / TABLE, to_csv(found))
    return found


def _arrivals(plan: SweepPlan) -> dict[tuple[float, int], str]:
    """The file of arrivals for each rate and repeat; each repeat has the next seed. Raises UserError with the key."""
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
    """Write the file, unless it exists: a resumed sweep must have the same arrivals."""
    path = out / "rounds" / f"arrivals-{rate_label(rate)}{rounds.repeat_suffix(repeat)}.jsonl"
    if not path.exists():
        write_atomically(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path} was changed: finished rounds had other arrivals; use another --out")
    return path


def _check_same(plan: SweepPlan, out: Path) -> None:
    """Raise UserError if the folder has another sweep."""
    file = out / OPTIONS
    if not file.exists():
        if (out / SWEEP).exists() or (out / "rounds").exists():
            raise UserError(f"{out} has a sweep without {OPTIONS}: use another folder")
        return
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        differing = [name for name, value in plan.to_json().items() if before.get(name) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read ({error}): use another folder") from error
    if differing:
        name = differing[0]
        there, here = before.get(name), plan.to_json()[name]
        raise UserError(
            f"{out} has a sweep with other options ({', '.join(differing)}; {name}: {there!r:.80} there, "
            f"{here!r:.80} here): resume it with the same options, or use another folder"
        )


@contextmanager
def _servers(plan: SweepPlan) -> Iterator[Any]:
    """A function from a policy to its server, which starts at the first call. All servers are stopped at the end."""
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
    """The server at ``plan.url``. Raises UserError if it cannot be reached or lacks the model."""
    key = os.environ.get(plan.api_key_env, "") if plan.api_key_env else ""
    if plan.api_key_env and not key:
        raise UserError(f"the environment variable {plan.api_key_env} is empty", key="api_key_env")
    server = Server(plan.url, plan.model, key)
    try:
        models = server.models()
    except ServerDied as error:
        raise UserError(str(error), key="url") from error
    if plan.model not in models:
        reason = f"the server at {server.url} has no model {plan.model!r}: it has {', '.join(models)}"
        raise UserError(reason, key="model")
    return server
