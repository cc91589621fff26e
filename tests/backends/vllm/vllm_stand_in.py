"""A stand-in for the vLLM worker: answers from STAND_IN_IDS; ``behaviour``: what goes wrong."""

import json
import os
import signal
import sys
import time

# A test that waits for ever ends.
signal.alarm(120)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
print("vLLM says hello on standard output")


def write(**message):
    print(json.dumps(message), file=answers, flush=True)


if "--probe" in sys.argv:
    write(**json.loads(os.environ["STAND_IN_PROBE"]))
    sys.exit()
engine = json.loads(sys.stdin.readline())["engine"]
behaviour = engine.get("behaviour", "")
if behaviour == "no":
    write(failed="there is no such head. Out of memory, too")
    sys.exit(1)
if behaviour == "crash":
    print("the last words", file=sys.stderr)
    sys.exit(3)
write(
    ready={
        "vllm": "9.9",
        "cpu": True,
        "device": "stub",
        "threads": 1,
        "torch": "0",
        "memory": 77,
        "max_model_len": engine.get("window", 512),
        "engine": engine,
        **engine.get("ready", {}),
    }
)
running, waiting = {}, []


def run(message):
    """Lines of 1 (prefill), 3, 2 tokens, then single ones."""
    id, most = message["id"], message["sampling"]["max_tokens"]
    text = [int(i) for i in os.environ["STAND_IN_IDS"].split()][:most]
    chunks = [text[:1], text[1:4], text[4:6], *([t] for t in text[6:])]
    chunks = [chunk for chunk in chunks if chunk]
    drafts = [[3, 2], [3, 1]][: max(0, len(chunks) - 1)] if "speculative_config" in engine else None
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1
        reason = ("length" if len(text) == most else "stop") if last else None
        told = drafts if last else None
        answer = {"id": id, "time": time.monotonic(), "tokens": chunk, "finish": reason, "drafts": told}
        asked = message["sampling"].get("logprobs")
        answer["logprobs"] = [[-i / 100, [-2.5, -i / 100][:asked]] for i in chunk] if asked else None
        if most != 8:
            answer |= engine.get("change", {})
            answer.pop(answer.pop("remove", None), None)
        yield answer


for line in sys.stdin:
    message = json.loads(line)
    if "abort" in message:
        if message["abort"] in running:
            running.pop(message["abort"])
            print("aborted", message["abort"], file=sys.stderr, flush=True)
            write(id=message["abort"], time=time.monotonic(), tokens=[], finish="abort", drafts=[[3, 2], [3, 1]])
        continue
    print("asked for", message["sampling"]["max_tokens"], file=sys.stderr, flush=True)
    if message["sampling"]["max_tokens"] != 8 and "line" in engine:
        print(engine["line"], file=answers, flush=True)
    elif message["sampling"]["max_tokens"] == 8:
        waiting.append(message)
    elif behaviour == "refuse":
        write(id=message["id"], error="VLLMValidationError: the prompt is odd")
    elif behaviour == "die":
        write(id=message["id"], time=time.monotonic(), tokens=[5], finish=None, drafts=None)
        print("about to go", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    elif behaviour == "slow":
        # Never comes to an end by itself.
        running[message["id"]] = True
        for answer in list(run(message))[:-1]:
            write(**answer)
    elif behaviour == "together":
        waiting.append(message)
        if len(waiting) < 4:
            continue
    else:
        waiting.append(message)
    steps = [run(message) for message in waiting]
    waiting.clear()
    while steps:
        for step in list(steps):
            answer = next(step, None)
            write(**answer) if answer else steps.remove(step)
