"""Joint inference: a query is answered on the edge, in the cloud, or by both together.

Sedna wraps the edge model in the back end named by the environment variable BACKEND_TYPE, which copies local model
folders and, for TORCH, swallows the errors of ``load``. Here the edge model is called directly.
"""

from __future__ import annotations

import os
import reprlib
import threading
from collections.abc import Callable
from typing import Any

from sedna.common.class_factory import ClassFactory, ClassType
from sedna.common.config import Context
from sedna.common.utils import accepted, copy_tree

__all__ = ("JointInference",)

DRAFTER_METHODS = ("inference", "start_session", "step", "close_session")
VERIFIER_METHODS = ("inference", "start_session", "verify", "close_session")
MINING_MODES = ("mining-then-inference", "inference-then-mining", "self-design", "mining-free")


class JointInference:
    """Loads the edge model (or drafter and verifier), builds the router, and answers queries.

    Parameters
    ----------
    estimator : the edge model: ``load(**kw)`` (optional), ``predict(data, **kw)``.
    cloud : the cloud model: ``inference(data, post_process=None, mining_mode=...)``.
    drafter, verifier : the two models of mode mining-free.
    hard_example_mining : ``{"method": alias or class, "param": {...}}``, the router.
    LCReporter_enable : ignored, for compatibility with Sedna.

    ``inference`` is thread-safe if the models are. A router gets one call at a time, unless its attribute
    ``concurrent`` is true.
    """

    def __init__(
        self,
        estimator: Any = None,
        cloud: Any = None,
        drafter: Any = None,
        verifier: Any = None,
        hard_example_mining: dict[str, Any] | None = None,
        LCReporter_enable: bool = False,
    ) -> None:
        self.estimator = estimator() if isinstance(estimator, type) else estimator
        self.cloud, self.drafter, self.verifier = cloud, drafter, verifier
        self.hard_example_mining_algorithm: Any = None
        self._router_lock = threading.Lock()
        self._accepted: dict[tuple[int, str, tuple[str, ...]], tuple[str, ...]] = {}
        if drafter is not None and verifier is not None:
            for side in (drafter, verifier):
                if hasattr(side, "load"):
                    side.load()
        elif self.estimator is not None and hasattr(self.estimator, "load"):
            # Sedna's TORCH back end calls load() without arguments, the others with the path in the environment.
            torch = os.getenv("BACKEND_TYPE", "").upper() == "TORCH"
            path = {} if torch else {"model_url": Context.get_parameters("model_path", "")}
            self._call(self.estimator, "load", **path)
        if hard_example_mining:
            method = hard_example_mining.get("method", "IBT")
            router = ClassFactory.get_cls(ClassType.HEM, method) if isinstance(method, str) else method
            self.hard_example_mining_algorithm = router(**hard_example_mining.get("param") or {})

    def inference(self, data: Any = None, post_process: Callable[..., Any] | str | None = None, **kwargs: Any) -> Any:
        """``[is_hard, result, edge_result | None, cloud_result | None]``; in mode self-design the edge's result.

        ``kwargs`` are passed to the models that accept them, among them ``mining_mode`` (one of MINING_MODES, default
        inference-then-mining). ``result`` is a copy.
        """
        callback = (
            ClassFactory.get_cls(ClassType.CALLBACK, post_process) if isinstance(post_process, str) else post_process
        )
        mode = kwargs.get("mining_mode", "inference-then-mining")
        if mode == "mining-free":
            return self._mining_free(data, callback, kwargs)
        if mode == "self-design":
            result = self._call(self.estimator, "predict", data, **kwargs)
            return callback(result) if callback else result
        if mode not in MINING_MODES:
            raise ValueError(f"mining_mode must be one of {', '.join(MINING_MODES)}, got {mode!r}")
        result = edge_result = cloud_result = None
        edge_first = mode == "inference-then-mining"
        is_hard = not edge_first and self._is_hard(data)
        if not is_hard:
            edge_result = self._call(self.estimator, "predict", data, **kwargs)
            result = copy_tree(edge_result)
            result = callback(result) if callback else result
        if is_hard or (edge_first and self._is_hard(result)):
            is_hard = True
            cloud_result = self._call(self.cloud, "inference", data, post_process=post_process, **kwargs)
            result = copy_tree(cloud_result)
        return [is_hard, result, edge_result, cloud_result]

    def _call(self, target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a plugin's method with the keyword arguments that it accepts."""
        function = getattr(target, method)
        key = (id(target), method, tuple(kwargs))
        if key not in self._accepted:
            self._accepted[key] = accepted(function, tuple(kwargs))
        names = self._accepted[key]
        return function(*args, **{name: value for name, value in kwargs.items() if name in names})

    def _is_hard(self, item: Any) -> Any:
        router = self.hard_example_mining_algorithm
        if router is None:
            raise ValueError("this mining mode needs a router: a module of type hard_example_mining")
        if getattr(router, "concurrent", False):
            return _outcome(router, router(item))
        with self._router_lock:
            return _outcome(router, router(item))

    def _mining_free(self, data: Any, callback: Callable[..., Any] | None, kwargs: dict[str, Any]) -> list[Any]:
        mode = kwargs.get("inference_mode", getattr(self.drafter, "inference_mode", "collaboration"))
        edge_result = cloud_result = None
        if mode == "edge-only":
            result = edge_result = self._call(self.drafter, "inference", data=data, **kwargs)
        elif mode == "cloud-only":
            result = cloud_result = self._call(self.verifier, "inference", data=data, **kwargs)
        elif mode == "collaboration":
            result = self._collaborate(data, kwargs)
        else:
            raise ValueError(f"inference_mode must be collaboration, cloud-only or edge-only, got {mode!r}")
        return [False, callback(result) if callback else result, edge_result, cloud_result]

    def _collaborate(self, data: Any, kwargs: dict[str, Any]) -> Any:
        """A session: the drafter proposes and the verifier decides, until the verifier returns ``stop``.

        ``verify`` returns a dict with ``stop``, ``feedback`` (for the next ``step``) and optionally ``progress`` (False
        is an error) and ``result`` (replaces the drafter's).
        """
        draft = self._call(self.drafter, "start_session", data=data, **kwargs)
        request = draft.get("request", data) if isinstance(draft, dict) else data
        verification = feedback = result = None
        try:
            verification = self._call(self.verifier, "start_session", data=data, draft_session=draft, **kwargs)
            while True:
                proposal = self._call(self.drafter, "step", draft, feedback=feedback, **kwargs)
                verdict = self._call(self.verifier, "verify", verification, draft_output=proposal, **kwargs) or {}
                feedback = verdict.get("feedback")
                result = verdict.get("result", result)
                if isinstance(draft, dict):
                    # No step follows the last feedback: drafters read it here in close_session().
                    draft["_pending_feedback"] = feedback
                if not verdict.get("progress", True):
                    raise RuntimeError("the drafter and the verifier made no progress: neither proposed nor stopped")
                if verdict.get("stop", False):
                    break
        finally:
            try:
                closed = self._call(self.drafter, "close_session", draft, request=request)
            finally:
                if verification is not None:
                    self._call(self.verifier, "close_session", verification, request=request)
        result = closed if result is None else result
        if result is None:
            raise RuntimeError("the session ended without a result: neither verify() nor close_session() returned one")
        return result


def _outcome(router: Any, value: Any) -> bool:
    """A router's decision as a bool. Raises TypeError for anything but True, False, 0 and 1."""
    plain = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if not isinstance(plain, (bool, int)) or plain not in (0, 1):
        text = reprlib.repr(value)
        raise TypeError(
            f"router {type(router).__name__} returned {text}, not True (to the cloud) or False (to the edge)"
        )
    return bool(plain)
