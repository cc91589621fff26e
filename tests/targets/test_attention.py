"""Which of torch's kernels compute attention. None of it needs a GPU: what is seen is what torch is told."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from ianvs_specdec.engine.contracts import Prompt
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.targets import attention, fused, huggingface_sequence
from ianvs_specdec.targets.fused import FusedTarget
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.tiny import tiny_model

GPU = torch.device("cuda")


@pytest.fixture
def kernels(monkeypatch):
    """Whether cuDNN's kernel may compute, at each attention of a CPU that is taken for a GPU."""
    seen = []
    compute = functional.scaled_dot_product_attention

    def watched(*args, **kwargs):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return compute(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    for module in (fused, huggingface_sequence):
        monkeypatch.setattr(module, "any_length", lambda _: attention.any_length(GPU))
    return seen


@pytest.mark.parametrize("kind", [FusedTarget, HuggingFaceTarget])
def test_no_kernel_on_a_gpu_makes_a_plan_for_each_length(kind, kernels):
    target = kind(tiny_model("llama"))
    sequence = target.open()
    target.step([(sequence, Prompt([1, 2, 3]))])
    target.step([(sequence, TokenTree.chain(4, [5, 6]))])
    assert len(kernels) == 2 * target.layers
    assert not any(kernels)
    assert torch.backends.cuda.cudnn_sdp_enabled(), "what others compute in this process is theirs to choose"


def test_a_cpu_is_left_alone():
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
    with attention.any_length(torch.device("cpu")):
        assert before == (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled())
