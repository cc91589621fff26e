"""Draft heads on a tiny scale: what they compute, what they are shown, and the loss."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding  # noqa: E402

from ianvs_specdec.drafters.dflash.head import DFlashHead  # noqa: E402
from ianvs_specdec.drafters.eagle.steps import Pairs  # noqa: E402
from ianvs_specdec.targets.registry import create_target  # noqa: E402
from ianvs_specdec.training.heads import export, loop, models  # noqa: E402
from ianvs_specdec.training.heads.dflash import TrainableDFlash  # noqa: E402
from ianvs_specdec.training.heads.pool import Sample, collate, runs_of  # noqa: E402

HIDDEN, VOCABULARY = 32, 300
KINDS = ("eagle", "eagle3", "medusa", "dflash")


def random_samples(count: int = 6, columns: int = 0) -> list[Sample]:
    generator = torch.Generator().manual_seed(5)
    samples = []
    for index in range(count):
        size = 9 + 3 * index
        spoken = [i > 3 for i in range(size)]
        features, layers = (torch.randn(size, n, generator=generator) for n in (HIDDEN, columns))
        tokens = torch.randint(VOCABULARY, (size,), generator=generator)
        samples.append(Sample(tokens, features, layers, runs_of(spoken), "even" if index % 2 else "odd"))
    return samples


def make_head(kind: str) -> models.TrainableHead:
    torch.manual_seed(11)
    embedding, unembedding = torch.randn(2, VOCABULARY, HIDDEN)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 7}
    of_target = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    config = export.head_config(of_target)
    if kind == "medusa":
        return models.TrainableMedusa(HIDDEN, unembedding, heads=3, blocks=1)
    if kind == "dflash":
        target = LlamaForCausalLM(of_target).eval()
        for module, values in ((target.model.embed_tokens, embedding), (target.lm_head, unembedding)):
            module.weight.data = values
        head = TrainableDFlash(config, target, (2, 3, 4), drafts=3, mask=0)
        head.target = (target,)  # not a part of the head
    elif kind == "eagle":
        head = models.TrainableEagle(config, embedding, unembedding)
    else:
        head = models.TrainableEagle3(config, embedding, unembedding, torch.ones(HIDDEN))
    for name, parameter in head.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.2)
    head.config = config
    return head


@torch.no_grad()
def test_eagle_drafts_as_a_decoder_layer_that_reads_its_own_outputs() -> None:
    """Against transformers' Llama layer, run anew on the whole chain for every draft."""
    head, sample = make_head("eagle"), random_samples()[2]
    batch = collate([sample], 3, "cpu")
    drafts = [logits for logits, _ in head.drafts(batch)]
    head.config._attn_implementation = "eager"
    layer = LlamaDecoderLayer(head.config, 0)
    layer.input_layernorm = torch.nn.Identity()
    layer.load_state_dict({n.removeprefix("layers.0."): v for n, v in head.state_dict().items() if "layers.0." in n})
    rotary = LlamaRotaryEmbedding(config=head.config)
    embedded = head.embed_tokens(sample.tokens)
    for row, start in enumerate(batch.starts[0].tolist()):
        inputs = list(head.fc(torch.cat([embedded[1 : start + 2], sample.features[: start + 1]], -1)))
        for step in range(3):
            if not batch.valid[step, 0, row]:
                break
            x = torch.stack(inputs)[None]
            mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
            out = layer(x, attention_mask=mask, position_embeddings=rotary(x, torch.arange(x.shape[1])[None]))
            out = (out[0] if isinstance(out, tuple) else out)[0, -1]
            place = int(batch.valid[step, 0, :row].sum())
            assert torch.allclose(drafts[step][place], out @ head._unembedding.T, atol=1e-3)
            if step < 2 and start + step + 2 < len(sample.tokens):
                inputs.append(head.fc(torch.cat([embedded[start + step + 2], out])))


@torch.no_grad()
def test_dflash_drafts_as_at_inference(tmp_path: Path) -> None:
    head, (*_, sample) = make_head("dflash"), random_samples(3, 3 * HIDDEN)
    for parameter in head.parameters():
        parameter.copy_(parameter.bfloat16())
    export.write(head, head.config, "target", tmp_path / "head")
    config = json.loads((tmp_path / "head" / "config.json").read_text(encoding="utf-8"))
    assert config["dflash_config"] == {"mask_token_id": 0, "target_layer_ids": [1, 2, 3]}
    assert (config["architectures"], config["block_size"]) == (["DFlashDraftModel"], 4)
    computed = DFlashHead(tmp_path / "head", create_target(*head.target, engine="torch"))
    batch = collate([sample], 3, "cpu")
    drafts = list(head.drafts(batch))
    for row, start in enumerate(batch.starts[0].tolist()):
        sequence = computed.open()
        computed.keep(sequence, Pairs([0] * (start + 1), sample.layers[: start + 1].split(HIDDEN, dim=1)))
        (logits,) = computed.draft([(sequence, int(sample.tokens[start + 1]), 3)])
        for step in range(int(batch.valid[:, 0, row].sum())):
            place = int(batch.valid[step, 0, :row].sum())
            assert torch.allclose(drafts[step][0][place], logits[step], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_does_not_see_what_comes_after_its_start(kind: str) -> None:
    head, (sample,) = make_head(kind), random_samples(1, 3 * HIDDEN)
    before = [logits[0] for logits, _ in head.drafts(collate([sample], 1, "cpu"))]
    first = int(sample.starts[0])
    for values in (sample.features, sample.layers):
        values[first + 1 :] += 3
    sample.tokens[first + 2 :] = 0
    after = [logits[0] for logits, _ in head.drafts(collate([sample], 1, "cpu"))]
    assert torch.equal(before[0], after[0])
    sample.features[first] += 3
    sample.layers[first] += 3
    changed = [logits[0] for logits, _ in head.drafts(collate([sample], 1, "cpu"))]
    assert not torch.equal(before[0], changed[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls(kind: str, tmp_path: Path) -> None:
    head, samples = make_head(kind), random_samples(6, 3 * HIDDEN)
    unembedding, recipe = (
        torch.randn(VOCABULARY, HIDDEN),
        loop.HeadRecipe(1, tokens=2500, steps=3, rows=6, learning_rate=0.016),
    )
    batch = collate(samples, 3, "cpu")
    with torch.no_grad():
        before = loop.loss_of(head, batch, unembedding, recipe)[0]
    loop.train(head, samples, unembedding, recipe, tmp_path, device="cpu", evaluate=lambda _: "", report=lambda _: None)
    with torch.no_grad():
        assert loop.loss_of(head, batch, unembedding, recipe)[0] < 0.7 * before


class _Oracle(models.TrainableHead):
    """Right about the drafts numbered ``good`` of every chain, wrong about the others."""

    def __init__(self, *good: int) -> None:
        super().__init__()
        self._good = good

    def drafts(self, batch):
        for step, valid in enumerate(batch.valid):
            tokens = batch.at(batch.tokens, step + 2)[valid]
            shown = tokens if step in self._good else (tokens + 1) % VOCABULARY
            yield torch.nn.functional.one_hot(shown, VOCABULARY).float(), None


def test_accepted_length_counts_rounds_of_each_answer() -> None:
    sample = random_samples(1)[0]
    # Two answers of 10 and 4 tokens; the first token of each comes from the target, 9 and 3 are left to the rounds.
    spoken = [False] * 3 + [True] * 10 + [False] * 2 + [True] * 4
    sample = Sample(torch.arange(19), torch.zeros(19, HIDDEN), torch.zeros(19, 0), runs_of(spoken))
    assert loop.accepted_length(_Oracle(0, 1, 3), [sample], 5, "cpu") == {"all": 12 / 4}
    assert loop.accepted_length(_Oracle(0, 1, 2, 3, 4), [sample], 5, "cpu") == {"all": 12 / 3}
    assert loop.accepted_length(_Oracle(), [sample], 5, "cpu") == {"all": 1.0}


def test_a_failed_export_leaves_the_old_head_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, out = make_head("eagle"), tmp_path / "head"
    export.write(head, head.config, "base", out)
    old = (out / "model.safetensors").read_bytes()

    def fails(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(export.json, "dumps", fails)
    with pytest.raises(OSError, match="no space"):
        export.write(head, head.config, "base", out)
    assert (out / "model.safetensors").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
