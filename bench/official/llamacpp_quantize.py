"""A GGUF file in another type of weights, as llama.cpp's own program ``llama-quantize`` makes it: which matrices stay
wider is llama.cpp's choice. Runs in the environment that has llama-cpp-python: ``FILE OUT TYPE``.
"""

from __future__ import annotations

import ctypes
import sys


def main(source: str, out: str, kind: str) -> int:
    import llama_cpp as c

    c.llama_backend_init()
    settings = c.llama_model_quantize_default_params()
    settings.ftype = getattr(c, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    return int(c.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(settings)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
