"""The runner ray: workers on a Ray cluster answer the rows. Rows of a lost worker are reassigned."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar

from core.common.errors import Failed, Failure
from core.common.log import LOGGER
from core.common.utils import plural
from core.runner.config import RayConfig
from core.runner.journal import Journal
from core.runner.local import RowFailed, in_order
from core.runner.worker import Setup
from core.testcasecontroller.paradigm import JointInference
from core.testcasecontroller.testcase import Progress, Runner, TestCase

OBJECT_STORE = 128 << 20
"""Bytes of shared memory of a local cluster. Ray's default is a third of the memory."""
REACH = 10.0
"""Timeout in seconds of a connection to a cluster."""
LOOPBACK = "127.0.0.1"
"""Address of the servers of a local cluster."""
VARIABLES = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}
"""Defaults of Ray's environment variables: normal priority (workers are measured), no telemetry, and no messages about
lost workers (this runner reports them)."""
CARRIED = ("IANVS_RUN_ID", "IANVS_FRESH", "IANVS_REPEAT")
"""The host's environment variables for plugins."""


class RayRunner(Runner):
    """Connects to the cluster, or starts one, at the first test case, and disconnects at the end of the job."""

    in_process: ClassVar[bool] = False

    def __init__(
        self,
        config: RayConfig,
        concurrency: int,
        workspace: str,
        job_file: str,
        read: Callable[[str], Sequence[TestCase]],
    ) -> None:
        self._config, self._concurrency, self._workspace = config, concurrency, workspace
        self._job = os.getcwd(), job_file, read
        self._pool: Any = None
        self._workers = 0

    def results(
        self, case_id: str, paradigm: JointInference, rows: Sequence[Any], progress: Progress
    ) -> Generator[Any, None, None]:
        if not self._workers:
            self._join()
        import ray

        from core.runner.pool import WorkerPool  # imports Ray

        journal = Journal(self._workspace)
        # Empty if not set here: a node may have been started in the environment of another run.
        variables = {name: os.environ.get(name, "") for name in CARRIED}
        variables["IANVS_CONCURRENCY"] = str(self._concurrency * self._workers)
        opening = (case_id, variables, list(map(ray.put, journal.added())))
        setup = Setup(*self._job, ray.get)
        pool = WorkerPool(self._config, self._concurrency, self._workers, setup, journal, opening, rows)
        self._pool = pool
        try:
            yield from in_order(pool.items(), progress, pool.stop)
        except RowFailed as failed:
            raise Failed(failed.error) from None
        except BaseException:
            pool.close()
            raise

    def release(self) -> list[Failure]:
        return self._pool.release() if self._pool is not None else []

    def describe(self) -> dict[str, Any]:
        lost = self._pool.lost if self._pool is not None else 0
        return {"runner": "ray", "concurrency": self._concurrency, "workers": self._workers, "workers_lost": lost}

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            import ray

            ray.shutdown()

    def _join(self) -> None:
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        import ray

        config = self._config
        # Ray replaces the handler of SIGTERM.
        on_end = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, namespace="ianvs", **self._cluster())
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"at {config.address}" if config.address else "on this machine"
            raise _failed(f"no Ray cluster {where}: {str(error).strip().splitlines()[0]}") from error
        finally:
            if on_end is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_end)
        resources = ray.cluster_resources()
        room = (resources.get(name, 0.0) // amount for name, amount in self._demand().items())
        self._workers = config.workers or int(min(room, default=1))
        demand = ", ".join(f"{amount:g} {name}" for name, amount in self._demand().items()) or "no resources"
        if not self._workers:
            ray.shutdown()
            raise _failed(f"the cluster has no room for a worker of {demand}; workers: N waits for it")
        workers, nodes = plural(self._workers, "worker"), plural(len(ray.nodes()), "node")
        LOGGER.info("Ray: up to %s of %s on %s", workers, demand, nodes)

    def _demand(self) -> dict[str, float]:
        """Resources of a worker, by Ray's names."""
        amounts = {"CPU": self._config.cpus, "GPU": self._config.gpus, **self._config.resources}
        return {name: amount for name, amount in amounts.items() if amount}

    def _cluster(self) -> dict[str, Any]:
        """Arguments of ``ray.init``: the address, or a local cluster with room for all workers."""
        config = self._config
        if config.address is not None:
            # Ray itself tries for minutes.
            host, _, port = config.address.rpartition(":")
            if host and port.isdigit():
                socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
            return {"address": config.address}
        count = config.workers or 1
        processors = {"num_cpus": max(1, math.ceil(count * config.cpus))} if config.workers else {}
        # Without an address, Ray would join any existing cluster, perhaps another user's.
        return {
            "address": "local", "_node_ip_address": LOOPBACK, "include_dashboard": False,
            "object_store_memory": OBJECT_STORE, **processors,
            "resources": {name: amount * count for name, amount in config.resources.items()},
        }  # fmt: skip


def _failed(message: str) -> Failed:
    return Failed(Failure("runner ray", message, message))
