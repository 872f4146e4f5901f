"""The whole model in training form: main model, MTP layer, their joint loss. `state_dict()` is the checkpoint."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.reference.config import TextConfig
from backend.reference.export import Weights
from backend.reference.training.checkpoint import tensor_shapes
from backend.reference.training.layers import Attention, DecoderLayer, Experts, KeyValue, Linear, ZeroCentredNorm
from backend.reference.training.repetition import repetition_loss

# Later drafts matter less: they are only reached when the earlier ones were right.
STEP_WEIGHTS = (1.0, 0.8, 0.6, 0.5, 0.4)
MTP_WEIGHT, BALANCE_WEIGHT = 0.3, 0.01


class LanguageModel(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, config.is_full_attention(layer)) for layer in range(config.num_hidden_layers)
        )
        self.norm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)


class Backbone(nn.Module):
    """Only there so that names begin with `model.language_model`, as in the multimodal checkpoint."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.language_model = LanguageModel(config)


class MtpHead(nn.Module):
    """The multi-token-prediction layer."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        self.fc = Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, full=True)])
        self.norm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor, embedding: Tensor, chain: list[KeyValue]) -> tuple[Tensor, Tensor]:
        """One draft step at every position: normed hidden states [B,T,H] and balance loss.

        Step `len(chain)` (from 0) at position t takes the embedding of token t+1+step and predicts token t+2+step.
        """
        positions = torch.arange(hidden.shape[1], device=hidden.device) + len(chain)
        joined = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1)
        x, balance = self.layers[0](self.fc(joined), positions, chain)
        return self.norm(x), balance


@dataclass
class Losses:
    """Cross entropies in nat per token; `mtp` and `agreement` have one value per draft step."""

    main: Tensor
    mtp: Tensor
    agreement: Tensor
    total: Tensor


class TextModel(nn.Module):
    """Main model and MTP layer over one embedding and one output matrix."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.mtp = MtpHead(config)

    def embed(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.model.language_model.embed_tokens.weight)

    def hidden(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states after the final norm [B,T,H], and the mean balance loss."""
        body = self.model.language_model
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x, balances = self.embed(tokens), []
        for layer in body.layers:
            x, balance = layer(x, positions)
            balances.append(balance)
        return body.norm(x), torch.stack(balances).mean()

    def logits(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.lm_head(hidden)
        return result

    def losses(self, tokens: Tensor, steps: int, hard: float, looping: int = 0) -> Losses:
        """Joint loss over [B, T+1+steps] tokens with `steps` draft steps; the first `looping` rows are loops to avoid.

        A draft's target is the true token with weight `hard`, and the main model's own distribution with the rest:
        a verifier accepts what the main model would have said, right or wrong.
        """
        length = tokens.shape[1] - 1 - steps
        hidden, main_balance = self.hidden(tokens[:, :length])
        main_logits = self.logits(hidden)
        targets = tokens[:, 1 : length + 1]
        main = functional.cross_entropy(main_logits[looping:].flatten(0, 1), targets[looping:].flatten())
        loops = repetition_loss(main_logits[:looping], targets[:looping]) if looping else 0.0
        wanted = main_logits.detach().softmax(-1)
        mtp, agreement, balance = self._draft_losses(tokens, hidden, wanted, steps, hard)
        total = main + loops + MTP_WEIGHT * _weighted(mtp) + BALANCE_WEIGHT * (main_balance + balance)
        return Losses(main, mtp, agreement, total)

    def _draft_losses(
        self, tokens: Tensor, hidden: Tensor, wanted: Tensor, steps: int, hard: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss and argmax agreement with the main model per draft step, and the balance loss of the MTP layer.

        `wanted` [B,T,V] is what the main model says at each position, as probabilities.
        """
        length, choice = hidden.shape[1], wanted.argmax(-1)
        chain: list[KeyValue] = []
        losses, agreements, balances = [], [], []
        for step in range(steps):
            embedding = self.embed(tokens[:, 1 + step : 1 + step + length])
            hidden, balance = self.mtp(hidden, embedding, chain)
            # Position t drafts token t+2+step, which main position t+1+step predicts: the last ones have no target.
            usable = length - 1 - step
            log_p = functional.log_softmax(self.logits(hidden[:, :usable]), -1)
            truth = tokens[:, 2 + step : 2 + step + usable].unsqueeze(-1)
            hard_loss = -log_p.gather(-1, truth).mean()
            soft_loss = -(wanted[:, 1 + step :] * log_p).sum(-1).mean()
            losses.append(hard * hard_loss + (1.0 - hard) * soft_loss)
            agreements.append((log_p.argmax(-1) == choice[:, 1 + step :]).float().mean())
            balances.append(balance)
        return torch.stack(losses), torch.stack(agreements), torch.stack(balances).mean()

    def draft_loss(self, tokens: Tensor, steps: int) -> Losses:
        """Loss of the MTP layer alone, against what the frozen main model would choose; shapes as `losses`.

        Greedy verification asks for the most likely token alone. Trained on it, drafts are accepted more often than
        trained on the whole distribution, most of which is never asked for.
        """
        length = tokens.shape[1] - 1 - steps
        with torch.no_grad():
            hidden, _ = self.hidden(tokens[:, :length])
            main_logits = self.logits(hidden)
            main = functional.cross_entropy(main_logits.flatten(0, 1), tokens[:, 1 : length + 1].flatten())
        wanted = torch.zeros_like(main_logits).scatter_(-1, main_logits.argmax(-1, keepdim=True), 1.0)
        mtp, agreement, balance = self._draft_losses(tokens, hidden, wanted, steps, hard=0.0)
        return Losses(main, mtp, agreement, _weighted(mtp) + BALANCE_WEIGHT * balance)


def _weighted(step_losses: Tensor) -> Tensor:
    """Mean of the draft steps' losses by STEP_WEIGHTS."""
    weights = STEP_WEIGHTS[: len(step_losses)]
    parts = [loss * (weight / sum(weights)) for loss, weight in zip(step_losses, weights, strict=True)]
    return torch.stack(parts).sum()


def set_compute(model: nn.Module, dtype: torch.dtype) -> None:
    """Choose the precision of the wide products; everything else stays FP32."""
    for module in model.modules():
        if isinstance(module, (Linear, Attention, Experts)):
            module.compute = dtype
    for module in model.modules():
        # Routing and decay are sensitive and cheap.
        for name in ("gate", "shared_expert_gate", "in_proj_a", "in_proj_b"):
            child = getattr(module, name, None)
            if isinstance(child, Linear):
                child.compute = torch.float32


def initial_weights(config: TextConfig, seed: int) -> Weights:
    """FP32 weights to start training from; the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _initial(name, shape, generator) for name, shape in tensor_shapes(config).items()}


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith("linear_attn.norm.weight"):
        return torch.ones(shape)
    if name.endswith("A_log"):
        return torch.empty(shape).uniform_(0.5, 8.0, generator=generator).log()
    if name.endswith("dt_bias"):  # softplus(dt_bias) between 0.003 and 0.1, evenly on a log scale
        steps = torch.exp(torch.empty(shape).uniform_(math.log(0.003), math.log(0.1), generator=generator))
        return steps + torch.log(-torch.expm1(-steps))
    if len(shape) == 1 or name.endswith("shared_expert_gate.weight"):
        return torch.zeros(shape)
    scale = 1.0 / math.sqrt(shape[-1])
    if name.endswith("embed_tokens.weight"):
        scale = 0.5
    elif name.endswith(("lm_head.weight", "mlp.gate.weight")):
        scale = 0.02
    elif name.endswith("conv1d.weight"):
        scale = 0.3
    elif name.endswith("experts.down_proj"):
        scale *= 0.5
    return scale * torch.randn(shape, generator=generator)
