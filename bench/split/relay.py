"""A link as a process: ``python -m bench.split.relay TO PATH``. Prints its address, then does what each line says."""

from __future__ import annotations

import json
import sys

from ianvs_specdec.net.link import Link, Path


def main() -> None:
    with Link(to=sys.argv[1], path=Path.parse(json.loads(sys.argv[2]))) as link:
        print(json.dumps(link.address), flush=True)
        for line in sys.stdin:
            name, *values = json.loads(line)
            print(json.dumps(getattr(link, name)(*values)), flush=True)


if __name__ == "__main__":
    main()
