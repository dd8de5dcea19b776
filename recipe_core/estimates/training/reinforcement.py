"""A step of reinforcement learning: answers are sampled, scored and trained on (GRPO, PPO).

    step = rollout + scoring + updates + weight sync + moves      (colocated)
    step = max(rollout, scoring + updates) + weight sync          (apart, one step ahead)

*Rollout*: the serving estimate of all answers queued at once at their mean length, and the tail,
when only the longest are left: (longest - mean) decode steps of one sequence. With a step's time
linear in the sequences that it decodes, the two together are exact for any spread of lengths: a
step costs what its sequences cost, and there are as many as the longest answer has tokens.

*Scoring*: forward passes over every answer: the model's own log-probabilities, a frozen reference,
a model that rewards, and a critic's values (PPO; critic and frozen models have the model's size).
A forward pass is the share of an optimizer step that is computed forward, without recomputation.

*Updates*: optimizer steps at the mean length, as answers are packed; PPO trains the critic too.
A micro-batch must hold the longest answer, which counts for memory.

*Weight sync*: all ranks gather the weights in 16 bits; apart they are sent on once more. Of
adapters beside the engine only these are gathered: its frozen weights wait in the host's memory
while it sleeps (vLLM's level 1), and come back in every step.

*Memory*, colocated: `shared_devices`; states may wait in the host's memory meanwhile (moved out and
in every step), and so do weights of an engine that sleeps at vLLM's level 1.

Sources: HybridFlow, arXiv:2409.19256 (phases, colocation); OpenRLHF, arXiv:2405.11143; GRPO,
arXiv:2402.03300. Left out: tools and other turns of a conversation, filtered answers (DAPO),
partial rollouts, time of programs that reward (``reward_s`` states it), engines that start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.base.units import gib
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.network import all_gather_s, rank_group, send_s
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.training.memory import Memory, adapter_parameters
from recipe_core.estimates.training.rollouts import (
    WEIGHT_BYTES,
    Parts,
    Rollouts,
    host_waiting_bytes,
    resident_states,
    rollouts_of,
    sleeping_bytes,
    with_companions,
)


@dataclass(frozen=True, slots=True)
class Reinforcement(Columns):
    """A step by its phases, in seconds, and bytes of a device by phase, one number per case.

    ``parts`` add up to the step; ``phases`` are whole, also where they run side by side.
    """

    sampling: Sampling
    rollouts: Rollouts
    parts: Parts
    phases: Parts
    memory: Memory
    training_bytes: Float
    rollout_bytes: Float
    offloaded_bytes: Float
    sync_bytes: float

    def refusals(self, setting: TrainingSetting, cases: TrainingCases) -> list[Refusal]:
        """Cases beside which the engine does not fit, or whose states exceed the host's memory."""
        refused_cases, rollouts = self.rollouts.refused, self.rollouts
        out = [Refusal("rollout", refused_cases, lambda i: rollouts.reasons[i])]
        host = setting.cluster.device.node.host_memory_bytes
        if host is not None:
            needed = self.offloaded_bytes * np.minimum(cases.per_node, cases.devices)
            out.append(
                Refusal(
                    "host-memory",
                    needed > host.value,
                    lambda i: (
                        f"states that wait for the rollout need {gib(needed[i])} of host memory "
                        f"per node, only {gib(host.value)} available; set workload.rollout."
                        "placement: apart, or add nodes"
                    ),
                )
            )
        return out


def at_mean(sampling: Sampling, cases: TrainingCases) -> TrainingCases:
    """The cases of an optimizer step on answers of the mean length."""
    length = np.full(len(cases), sampling.work.mean_tokens)
    return replace(cases, sequence_length=length)


def whole_run_cases(sampling: Sampling, cases: TrainingCases) -> TrainingCases:
    """The cases with all answers of a step as its batch, which the whole run counts in."""
    answers = np.full(len(cases), sampling.work.sequences)
    return replace(at_mean(sampling, cases), global_batch=answers)


def at_longest(sampling: Sampling, cases: TrainingCases) -> TrainingCases:
    """The cases with one packed row a micro-batch: its mean answers, or one of the longest."""
    mean = cases.micro_batch * sampling.work.mean_tokens
    return replace(
        cases,
        sequence_length=np.maximum(mean, cases.sequence_length),
        micro_batch=np.ones_like(cases.micro_batch),
        global_batch=cases.micro_batches * cases.dp,
    )


def forward_share(parts: Parts) -> Float:
    """Share of an optimizer step's computation that its forward pass is (one per case).

    Of the head's three products one, of lookup and loss half.
    """
    forward = add(seconds for name, seconds in parts.items() if name.startswith("forward_"))
    backward = add(seconds for name, seconds in parts.items() if name.startswith("backward_"))
    ends = parts["embedding"] / 2 + parts["loss"] / 2 + parts["head"] / 3
    ends_total = parts["embedding"] + parts["loss"] + parts["head"]
    return np.asarray((forward + ends) / (forward + backward + ends_total))


def forward_s(parts: Parts) -> Float:
    """Seconds of a forward pass over the answers of an optimizer step.

    Bubble, launches and exchange take as much of it as of the step.
    """
    once = ("recompute", "optimizer", "fixed")
    rest = add(seconds for name, seconds in parts.items() if name not in once)
    return np.asarray(forward_share(parts) * rest)


def reinforcement_of(
    setting: TrainingSetting,
    sampling: Sampling,
    cases: TrainingCases,
    mem: Memory,
    update: Parts,
) -> Reinforcement:
    """A whole step of every case.

    ``mem``: of the training alone, at its longest; ``update``: parts of one optimizer step.
    """
    work, many = sampling.work, work_batches(sampling)
    resident = resident_states(setting, sampling, mem)
    rollouts = rollouts_of(setting, sampling, cases, mem, resident)
    pass_s = many * forward_s(update)
    zero = np.zeros(len(cases))
    scored = {
        "old_log_probs": pass_s if work.old_log_probs else zero,
        "reference": pass_s if work.reference else zero,
        "rewards": np.full(len(cases), work.reward_s) + (pass_s if work.reward == "model" else 0.0),
        "values": pass_s if sampling.critic else zero,
    }
    update_s = add(update.values())
    trained = {name: sampling.updates * seconds for name, seconds in update.items()}
    if sampling.critic:
        scored["critic"] = sampling.updates * update_s
    synced, sync_bytes = _weight_sync(setting, sampling, cases)
    waits_there = host_waiting_bytes(sampling, resident)
    base = sleeping_bytes(setting, sampling, rollouts.tp)
    asleep = base + np.where(rollouts.offload, add(waits_there.values()), 0.0)
    travels = 2 * waits_there["trained"] + waits_there["frozen"]
    moved = np.where(rollouts.offload, travels, 0.0) + 2 * base
    moves = moved / setting.calibration.host_link_bytes_per_s.value
    learning = add(scored.values()) + add(trained.values())
    waits = np.maximum(rollouts.seconds - learning, 0.0) if sampling.apart else rollouts.seconds
    phases = {
        "rollout": rollouts.seconds,
        **scored,
        "update": sampling.updates * update_s,
        "weight_sync": synced,
        "state_moves": moves,
    }
    parts = {**trained, "rollout": waits, **scored, "weight_sync": synced, "state_moves": moves}
    parts["reference"] = scored["reference"]
    full_memory = with_companions(setting, sampling, rollouts.offload, mem)
    return Reinforcement(
        sampling,
        rollouts,
        parts,
        phases,
        full_memory,
        training_bytes=full_memory.peak_bytes,
        rollout_bytes=rollouts.device_bytes,
        offloaded_bytes=asleep,
        sync_bytes=sync_bytes,
    )


def work_batches(sampling: Sampling) -> float:
    """Batches of an optimizer step that all answers make."""
    return sampling.work.sequences / sampling.global_batch


# Weights


def _weight_sync(
    setting: TrainingSetting, sampling: Sampling, cases: TrainingCases
) -> tuple[Float, float]:
    """Seconds to bring the trained weights to the engine, and their bytes.

    Every training rank gathers all of them. An engine beside it takes its part from there; devices
    apart are sent them over the slowest link on the way, one after another at full rate.
    """
    sent = float(setting.model.language_parameters)
    if sampling.adapters and not sampling.merged:
        sent = adapter_parameters(setting)
    size = WEIGHT_BYTES * sent
    data = np.full(len(cases), size)
    group = rank_group(setting.cluster, cases, cases.devices)
    gathered = all_gather_s(setting.cluster, group, data, "Gather of weights")
    seconds = np.where(cases.devices > 1, gathered, 0.0)
    if sampling.apart:
        across = (cases.all_devices > cases.per_node).astype(float)
        seconds = seconds + send_s(setting.cluster, across, data)
    return np.asarray(seconds), size
