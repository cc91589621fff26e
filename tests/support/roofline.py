"""The arithmetic of docs/simulate.md: a stated cost table from a data sheet."""

from __future__ import annotations

from ianvs_specdec.engine.costs import CostTable, Grid

BANDWIDTH, COMPUTE = 0.8 * 3.35e12, 0.6 * 989e12
"""Bytes and operations a second: what the data sheet of an H100 SXM says, times the share that kernels reach."""
WEIGHTS, KV, DEPTH = 7.5e9, 131_072, 524_288
"""Parameters that a step reads, bytes of keys and values of a token, operations of a row for each token before it."""
HEAD = 0.4e9
LAUNCH, LAUNCH_HEAD = 0.5e-3, 0.15e-3
ROWS = (1, 128, 221, 256, 320, 442, 640, 1024, 2048)
CONTEXT = (0, 16_384, 65_536, 131_072, 262_144, 524_288)
PIECES = (1, 128, 221, 512)
REQUESTS = (1, 128, 221, 512)
BUDGETS = (0, 1, 2, 4, 8, 16)


def step(rows: int, context: int) -> float:
    return LAUNCH + max((2 * WEIGHTS + KV * context) / BANDWIDTH, 2 * WEIGHTS * rows / COMPUTE)


def draft(requests: int, budget: int) -> float:
    return LAUNCH_HEAD + budget * (LAUNCH_HEAD + max(2 * HEAD / BANDWIDTH, 2 * HEAD * requests / COMPUTE))


def grid(first: tuple[int, ...], second: tuple[int, ...], seconds) -> Grid:
    return Grid(first, second, tuple(tuple(float(f"{seconds(x, y):.4g}") for y in second) for x in first))


def table() -> CostTable:
    return CostTable(
        grid(ROWS, CONTEXT, step),
        grid(PIECES, (0,), step),
        grid(REQUESTS, BUDGETS, draft),
        attention=float(f"{DEPTH / COMPUTE:.4g}"),
        shared=float(f"{step(1, 0):.4g}"),
        catch_up=float(f"{2 * HEAD / COMPUTE:.4g}"),
        prompt_rows=512,
        machine="NVIDIA H100 SXM (stated)",
        model="8B, bfloat16",
        method="eagle",
        note="Stated from data sheets and not measured: docs/simulate.md derives every figure.",
        emulated=True,
    )
