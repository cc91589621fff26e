"""Cloud-edge collaborative LLM inference as a benchmark plugin for KubeEdge Ianvs.

Importing this package imports nothing heavy: torch, transformers and the client libraries are imported by the back end
that needs them, at the moment it first has to answer.
"""

__version__ = "0.2.0"
