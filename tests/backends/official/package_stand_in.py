"""A stand-in for a published package: the real ``Worker`` with a scripted decoder.

STAND_IN_IDS: the output; STAND_IN_PROBE: installed packages. Requests are printed to standard error.
"""

import importlib.util
import json
import os
import signal
import sys
import threading
from pathlib import Path

# A test that waits for ever ends.
signal.alarm(120)
WORKER = Path(os.environ["STAND_IN_WORKER"])


def decode(prompt, sampling, take):
    print(f"asked {json.dumps({'prompt': len(prompt), **sampling})}", file=sys.stderr, flush=True)
    behaviour = os.environ.get("STAND_IN_BEHAVIOUR", "")
    ids = [int(number) for number in os.environ["STAND_IN_IDS"].split()]
    if sampling["max_tokens"] == 8:
        # The warm-up.
        take(ids[:8], None)
        return
    if behaviour == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "fail":
        raise RuntimeError("no luck\nwith this one")
    sizes = [1, 3, 1, 4]
    first = True
    while ids:
        size = sizes.pop(0) if sizes else 1
        new, ids = ids[:size], ids[size:]
        if not take(new, None if first else [5, len(new) - 1, 6]):
            return
        first = False


def main():
    spec = importlib.util.spec_from_file_location("worker", WORKER)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    if "--probe" in sys.argv:
        print(os.environ["STAND_IN_PROBE"])
        return
    engine = json.loads(sys.stdin.readline())["engine"]
    files = {key: sorted(os.listdir(engine[key])) for key in ("model", "head") if key in engine}
    if os.environ.get("STAND_IN_BEHAVIOUR") == "no":
        print(json.dumps({"failed": "weights are missing: model.norm.weight"}), flush=True)
        sys.exit(1)
    one = worker.Worker(decode, sys.stdout, 1)
    one.write(ready={"versions": {}, "memory": 77, "threads": engine["threads"], "engine": engine, "files": files})
    threading.Thread(target=one.listen, args=(sys.stdin,), daemon=True).start()
    one.run()
    sys.stdout.flush()
    os._exit(0)


main()
