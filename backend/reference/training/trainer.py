"""The four phases of training.

joint   main model and MTP layer together
steady  the same, with part of each batch teaching the main model not to loop, on loops made for it
own     the same on the loops it falls into by itself
mtp     the MTP layer alone, on what the main model says as it is shipped, quantised, and no longer changes
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.reference.config import TextConfig
from backend.reference.export import WEIGHTS_FILE, Weights
from backend.reference.training.calibrate import input_peaks
from backend.reference.training.checkpoint import InputPeaks, as_stored, save_weights
from backend.reference.training.corpus import Corpus
from backend.reference.training.model import Losses, TextModel, initial_weights, set_compute
from backend.reference.training.optimizer import Optimizer
from backend.reference.training.own_text import WEIGHT as OWN_WEIGHT
from backend.reference.training.own_text import AllAnswers, OwnText, Rounds, unlikely
from backend.reference.training.repetition import PERIODS, with_loops
from backend.reference.training.replay import Replayed

WARM_UP_STEPS = 100
CONSTANT_SHARE = 0.4  # of a phase, before the learning rate falls linearly
FINAL_SCALE = 0.02
MTP_STEPS_EARLY, MTP_STEPS_LATE, MTP_LATE_SHARE = 2, 3, 0.65
LATER_STRENGTH = 0.4  # of the joint phase's learning rates, in the later phases
JOINT_END, STEADY_END, OWN_END = 0.45, 0.49, 0.7  # as shares of the run
HARD_TARGET_SHARE = 0.5
HOLD_WINDOWS = 24
LOOP_ROUNDS = Rounds(rows=128, per_step=32, uses=1)  # few steps, as what was written before them grows stale
REPORT_STEPS, SAVE_STEPS = 50, 500


@dataclass(frozen=True)
class Plan:
    """How long and how wide. `minutes` is a guard: near it the schedule hurries, so that it always ends decayed."""

    tokens: int
    minutes: float
    batch: int
    length: int
    seed: int = 0


@dataclass
class Record:
    """What happened, written beside the weights as `training.json`."""

    plan: Plan
    device: str
    torch: str = torch.__version__
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    holdout: list[dict[str, Any]] = field(default_factory=list)
    repeated: list[float] = field(default_factory=list)
    """Share of repeated 4-grams in the model's own answers, round by round of phase `own`."""


Batch = tuple[Tensor, ...]
LossFunction = Callable[[TextModel, Batch, int], Losses]
"""Model, a batch whose first tensor is tokens [B, T+1+drafts], number of draft steps."""


def joint_loss(model: TextModel, batch: Batch, drafts: int) -> Losses:
    return model.losses(batch[0], drafts, HARD_TARGET_SHARE)


def steady_loss(model: TextModel, batch: Batch, drafts: int) -> Losses:
    """Drafts only imitate the main model here: what follows in a loop is no truth to learn."""
    return model.losses(with_loops(batch[0]), drafts, hard=0.0, looping=len(PERIODS))


def own_loss(model: TextModel, batch: Batch, drafts: int) -> Losses:
    """True text first, then the model's own."""
    losses = joint_loss(model, batch, drafts)
    return replace(losses, total=losses.total + OWN_WEIGHT * unlikely(model, batch[1], batch[2], model.config))


def draft_loss(model: TextModel, batch: Batch, drafts: int) -> Losses:
    """On the model's own text, if there is any: that is what is drafted when serving."""
    return model.draft_loss(batch[0] if len(batch) == 1 else batch[1], drafts)


class GradientStep:
    """Loss and gradients of one batch after the other, all of the shapes of the first."""

    def __init__(self, model: TextModel, loss: LossFunction, drafts: int, first: Batch) -> None:
        self.model, self.loss, self.drafts = model, loss, drafts
        self.batch = tuple(tensor.clone() for tensor in first)
        self.compute = Replayed(self._compute, first[0].device)

    def __call__(self, batch: Batch) -> Losses:
        """Gradients of this batch replace those of the last one."""
        for own, new in zip(self.batch, batch, strict=True):
            own.copy_(new)
        return self.compute()

    def _compute(self) -> Losses:
        self.model.zero_grad(set_to_none=True)
        losses = self.loss(self.model, self.batch, self.drafts)
        losses.total.backward()  # type: ignore[no-untyped-call]
        return losses


class Sampler:
    """Windows of the training stream: half begin where a document does, half anywhere. Same windows for one seed."""

    def __init__(self, corpus: Corpus, seed: int, device: torch.device) -> None:
        self.stream = torch.from_numpy(corpus.train.astype("int32")).to(device)
        self.starts = torch.from_numpy(corpus.starts)
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, rows: int, width: int) -> Tensor:
        """[rows, width] token ids."""
        last = len(self.stream) - width
        at_start = self.starts[torch.randint(len(self.starts), (rows // 2,), generator=self.generator)]
        anywhere = torch.randint(last, (rows - rows // 2,), generator=self.generator)
        offsets = torch.cat([at_start, anywhere]).clamp(max=last).to(self.stream.device, non_blocking=True)
        return self.stream[offsets[:, None] + torch.arange(width, device=self.stream.device)].long()


class Trainer:
    """One training run. `directory` gets `model.safetensors` (BF16) and `training.json`, renewed as it goes."""

    def __init__(self, config: TextConfig, corpus: Corpus, plan: Plan, device: torch.device, directory: Path) -> None:
        self.config, self.corpus, self.plan, self.device, self.directory = config, corpus, plan, device, directory
        self.model = TextModel(config)
        self.model.load_state_dict(initial_weights(config, plan.seed))
        self.model.to(device)
        set_compute(self.model, torch.bfloat16)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        self.record = Record(plan, name)
        self.sampler = Sampler(corpus, plan.seed, device)
        self.began = time.monotonic()
        self.done_before = 0.0  # share of the run that an earlier one did

    def run(self, resume: Weights | None = None) -> Record:
        """All phases; with `resume` those after the joint one, from these weights."""
        if resume is None:
            self._phase("joint", 0.0, JOINT_END, joint_loss, Optimizer(self.model.named_parameters()))
        else:
            self._continue(resume, JOINT_END)
        everything = Optimizer(self.model.named_parameters(), LATER_STRENGTH)
        self._phase("steady", JOINT_END, STEADY_END, steady_loss, everything)
        self._own_phase(everything)
        self.train_drafts(OWN_END)
        return self.record

    def run_drafts(self, weights: Weights) -> Record:
        """The last phase alone, from these weights."""
        self._continue(weights, OWN_END)
        self.train_drafts(OWN_END)
        return self.record

    def _continue(self, weights: Weights, done_before: float) -> None:
        self.done_before = done_before
        self.model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})

    def _own_phase(self, optimizer: Optimizer) -> None:
        if (prompts := self._prompts()) is not None:
            own = OwnText(self.model, *prompts, self.plan.seed, LOOP_ROUNDS)
            self._phase("own", STEADY_END, OWN_END, own_loss, optimizer, own)
            self.record.repeated = [round(share, 4) for share in own.repeated]

    def _prompts(self) -> tuple[Tensor, Tensor] | None:
        """Those to rehearse and their lengths; None if the corpus has none."""
        if not len(self.corpus.prompts):
            return None
        prompts = torch.from_numpy(self.corpus.prompts.astype("int64"))
        return prompts.to(self.device), torch.from_numpy(self.corpus.lengths).to(self.device)

    def train_drafts(self, start: float) -> None:
        """The last phase, from overall progress `start` on. The main model stays as it is shipped: quantised."""
        self._load_stored(self.model.state_dict())
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name.startswith("mtp."))
        drafts = ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)
        prompts = self._prompts()
        own = AllAnswers(self.model, *prompts, self.plan.seed) if prompts is not None else None
        self._phase("mtp", max(start, self._progress()), 1.0, draft_loss, Optimizer(drafts, LATER_STRENGTH), own)
        self._load_stored(self.model.state_dict())

    def _phase(
        self,
        name: str,
        start: float,
        end: float,
        loss: LossFunction,
        optimizer: Optimizer,
        own: OwnText | AllAnswers | None = None,
    ) -> None:
        """Train while overall progress is between `start` and `end`; finish on the best held-out weights."""
        best, best_weights, step, gradients = float("inf"), self.model.state_dict(), 0, None
        while (overall := self._progress()) < end:
            progress = (overall - start) / (end - start)
            drafts = MTP_STEPS_EARLY if name == "joint" and progress < MTP_LATE_SHARE else MTP_STEPS_LATE
            batch: Batch = (self.sampler.batch(self.plan.batch, self.plan.length + 1 + drafts),)
            batch = batch if own is None else (*batch, *own.batch())
            if gradients is None or gradients.drafts != drafts:
                gradients = GradientStep(self.model, loss, drafts, batch)
            losses = gradients(batch)
            optimizer.step(schedule(progress, step))
            step += 1
            self.record.steps += 1
            self.record.tokens += self.plan.batch * self.plan.length
            if step % REPORT_STEPS == 0:
                self._report(name, losses, own.repeated[-1:] if isinstance(own, OwnText) else [])
            if step % SAVE_STEPS == 0:
                best, best_weights = self._keep_best(name, best, best_weights)
        _, best_weights = self._keep_best(name, best, best_weights)
        self.model.load_state_dict(best_weights)

    def _progress(self) -> float:
        self.record.seconds = time.monotonic() - self.began
        share = max(self.record.tokens / self.plan.tokens, self.record.seconds / 60.0 / self.plan.minutes)
        return self.done_before + (1.0 - self.done_before) * share

    def _keep_best(self, name: str, best: float, weights: Weights) -> tuple[float, Weights]:
        measured = self._holdout()
        self.record.holdout.append({"phase": name, "step": self.record.steps, **measured})
        _say(f"  hold-out after {self.record.steps} steps: {json.dumps(measured)}")
        score = _score(name, self.record.steps, measured)
        if score >= best:
            return best, weights
        self.save()
        return score, {key: tensor.detach().clone() for key, tensor in self.model.state_dict().items()}

    @torch.no_grad()
    def _holdout(self) -> dict[str, Any]:
        """Held-out losses: code alone, and chat with its draft losses and agreement."""
        plain = self.model.losses(self._hold_windows(self.corpus.hold), MTP_STEPS_LATE, 0.0)
        chat = self.model.losses(self._hold_windows(self.corpus.hold_chat), MTP_STEPS_LATE, 0.0)
        rounded = {key: [round(v, 4) for v in values.tolist()] for key, values in _drafts(chat).items()}
        return {"main": round(plain.main.item(), 4), "chat": round(chat.main.item(), 4), **rounded}

    def _hold_windows(self, stream: Any) -> Tensor:
        width = self.plan.length + 1 + MTP_STEPS_LATE
        count = min(HOLD_WINDOWS, len(stream) // width)
        step = (len(stream) - width) // max(1, count - 1)
        tokens = torch.from_numpy(stream.astype("int64"))
        return torch.stack([tokens[i * step : i * step + width] for i in range(count)]).to(self.device)

    def _load_stored(self, weights: Weights) -> None:
        self.model.load_state_dict(as_stored(weights))

    def input_peaks(self) -> dict[str, InputPeaks]:
        """Largest inputs of the routed experts over the held-out code."""
        return input_peaks(self.model, self._hold_windows(self.corpus.hold))

    def save(self) -> None:
        """Write the weights and the record; a kill between the two leaves the older weights in place."""
        part = self.directory / "part"
        save_weights(part, self.config, self.model.state_dict())
        (part / WEIGHTS_FILE).replace(self.directory / WEIGHTS_FILE)
        part.rmdir()
        (self.directory / "training.json").write_text(json.dumps(asdict(self.record), indent=1), encoding="utf-8")

    def _report(self, name: str, losses: Losses, repeated: list[float]) -> None:
        seconds = time.monotonic() - self.began
        agreement = [round(value, 3) for value in losses.agreement.tolist()]
        _say(
            f"{name} step {self.record.steps} {seconds:.0f} s {self.record.tokens / seconds:,.0f} tok/s "
            f"main {losses.main.item():.3f} agreement {agreement} repeated {[round(share, 3) for share in repeated]}"
        )


def schedule(progress: float, step: int) -> float:
    """Learning-rate scale: linear warm-up, constant, then linear decay over the rest of the phase."""
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    if progress < CONSTANT_SHARE:
        return warm_up
    return warm_up * max(FINAL_SCALE, (1.0 - progress) / (1.0 - CONSTANT_SHARE))


def _score(phase: str, step: int, measured: dict[str, Any]) -> float:
    """Lower is better. After the first phase the last weights count: the others train for something else than held-out
    loss, better text and drafts that are chosen."""
    return float(measured["main"] if phase == "joint" else -step)


def _drafts(losses: Losses) -> dict[str, Tensor]:
    return {"mtp": losses.mtp, "agreement": losses.agreement}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
