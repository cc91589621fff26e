"""Makes processes of `specdec` without waiting for Python's imports: ``python -m bench.split.spawner``.

Each line of input is a list of arguments; what is printed is the process id of the child that runs them. A line
``["reap", PID]`` waits for a child that has ended. The children write to this process's standard output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

import transformers.models.llama.modeling_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

import ianvs_specdec.backends.specdec
import ianvs_specdec.backends.split.edge.decode
import ianvs_specdec.commands.decode
import ianvs_specdec.commands.remote_decode
import ianvs_specdec.commands.verifier
import ianvs_specdec.engine.loop
import ianvs_specdec.serving.verifier.server
import ianvs_specdec.serving.verifier.service
import ianvs_specdec.targets.native.target
from ianvs_specdec.commands.cli import main as specdec

# transformers imports what it needs when it is first named.
FOR_THE_CHILDREN = (
    AutoModelForCausalLM,
    AutoTokenizer,
    transformers.models.llama.modeling_llama,
    ianvs_specdec.targets.native.target,
)


def main() -> None:
    for line in sys.stdin:
        arguments = json.loads(line)
        if arguments[0] == "reap":
            os.waitpid(arguments[1], 0)
            print("reaped", flush=True)
            continue
        child = os.fork()
        if not child:
            _run(arguments)
        print(child, flush=True)


def _run(arguments: list[str]) -> None:
    status = 1
    try:
        os.setsid()
        # Whoever reads the lines of the spawner is not to read those of its children.
        os.dup2(os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        status = specdec(arguments[1:])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
