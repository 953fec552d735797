"""Settings of the learner, and checks for settings that contradict each other."""

from typing import Annotated, Literal

from msgspec import Meta

from mathppo.config.section import Settings, doc
from mathppo.errors import BadSetting


class LearnerSettings(Settings, frozen=True):
    # Objective.
    algorithm: Annotated[
        Literal["ppo", "rloo", "grpo", "reinforce++"], doc("advantage estimator; only ppo has a critic")
    ] = "ppo"
    truncation: Annotated[
        Literal["terminal", "bootstrap", "mask", "penalty"],
        doc("treatment of truncated completions; measured: mask and bootstrap teach to overrun, terminal does not"),
    ] = "terminal"
    gamma: Annotated[float, doc("discount; 1 = each token gets the full terminal reward", ge=0, le=1)] = 1.0
    lam: Annotated[float, doc("GAE lambda of the policy's advantages", ge=0, le=1)] = 1.0
    lam_alpha: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("use lambda = 1 - 1 / (lam_alpha * length) per completion for the policy; VAPO: 0.05; none = off"),
    ] = None
    critic_lam: Annotated[float, doc("GAE lambda of the critic's targets; 1 = Monte Carlo", ge=0, le=1)] = 1.0
    whiten: Annotated[bool, doc("normalise advantages to mean 0 and variance 1 over the batch's tokens")] = True
    aggregation: Annotated[
        Literal["token_mean", "sequence_mean", "constant_length"],
        doc("averaging of the policy loss; constant_length divides by completions times token budget"),
    ] = "token_mean"
    clip_low: Annotated[float, doc("lower clip of the ratio: 1 - clip_low", gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, doc("upper clip of the ratio: 1 + clip_high", gt=0)] = 0.2
    dual_clip: Annotated[
        Annotated[float, Meta(gt=1)] | None, doc("bound of the ratio at negative advantages (dual clip); none = off")
    ] = None
    value_clip: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("clip new values to this distance from the old ones; none = off")
    ] = None
    entropy_coef: Annotated[float, doc("weight of the entropy bonus", ge=0)] = 0.0
    positive_nll_coef: Annotated[
        float, doc("weight of the negative log-likelihood of correct completions; VAPO: 0.1", ge=0)
    ] = 0.0

    # Limits on the policy's change: from the reference, from the sampler, per iteration.
    kl_place: Annotated[
        Literal["none", "reward", "loss"], doc("where the KL to the reference policy (the warm start) enters")
    ] = "none"
    kl_kind: Annotated[
        Literal["k1", "k2", "k3"],
        doc("KL estimator; k1 only in the reward: in the loss its expected gradient is 0"),
    ] = "k3"
    kl_coef: Annotated[
        float, doc("weight of the reference KL, 0 = only measured; initial weight if kl_target is set", ge=0)
    ] = 0.0
    kl_target: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("adapt kl_coef to reach this reference KL, nats per token; none = fixed"),
    ] = None
    kl_horizon: Annotated[int, doc("rollouts over which a KL 20 % off its target changes kl_coef by 20 %", ge=1)] = (
        10000
    )
    importance: Annotated[
        Literal["token", "sequence", "off"], doc("truncated importance weights of learner over sampler")
    ] = "token"
    importance_cap: Annotated[float, doc("cap of the importance weights", ge=1)] = 2.0
    stale_anchor: Annotated[
        Literal["behaviour", "old"], doc("denominator of the clipped ratio for rollouts of an earlier step")
    ] = "behaviour"
    target_kl: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("end an iteration after the step whose KL exceeds this, nats per token; none = off"),
    ] = None

    # The critic.
    critic_from: Annotated[
        str, doc("folder of the initial critic, or of a policy whose trunk it takes; empty = the policy's trunk")
    ] = ""
    critic_num_layers: Annotated[int, doc("keep only the first layers of the trunk in a new critic; 0 = all", ge=0)] = 0
    shared_trunk: Annotated[bool, doc("policy and critic share one trunk and differ only in their heads")] = False
    trunk_value_gradient: Annotated[
        float, doc("shared_trunk: factor on the value loss's gradient in the trunk; 0 = none", ge=0)
    ] = 1.0
    critic_warmup_iterations: Annotated[int, doc("initial iterations that train only the critic", ge=0)] = 0
    critic_extra_epochs: Annotated[int, doc("additional critic-only passes after each policy update", ge=0)] = 0
    critic_pretraining_prompts: Annotated[
        int, doc("problems sampled once from the initial policy to pretrain the critic; 0 = off", ge=0)
    ] = 2048
    critic_pretraining_epochs: Annotated[int, doc("maximum passes over those rollouts", ge=1)] = 8
    critic_pretraining_batch_size: Annotated[int, doc("rollouts per optimizer step of critic pretraining", ge=1)] = 128
    critic_pretraining_gate: Annotated[
        float, doc("held-out explained variance of outcomes at which critic pretraining stops early", le=1)
    ] = 0.3

    # Trained parameters and optimizer.
    lora_rank: Annotated[int, doc("LoRA rank for policy and critic; 0 = train all weights; needs peft", ge=0)] = 0
    lora_alpha: Annotated[
        float, doc("LoRA scale: lora_alpha / lora_rank; with 32, use about 10 times the lr", gt=0)
    ] = 32.0
    lr: Annotated[float, doc("policy learning rate", gt=0)] = 3e-4
    critic_lr: Annotated[float, doc("critic learning rate", gt=0)] = 1e-3
    lr_schedule: Annotated[Literal["constant", "linear"], doc("linear decays to 0 over the run's iterations")] = (
        "linear"
    )
    optimizer: Annotated[
        Literal["adamw", "adamw8bit"],
        doc("adamw8bit stores moments in 8 bits, a quarter of the memory; needs bitsandbytes"),
    ] = "adamw"
    weight_decay: Annotated[float, doc("AdamW weight decay of policy and critic", ge=0)] = 0.0
    max_grad_norm: Annotated[float, doc("clip the gradient norm to this", gt=0)] = 1.0
    epochs: Annotated[int, doc("passes over the rollouts of an iteration", ge=1)] = 1
    minibatches: Annotated[int, doc("optimizer steps per pass", ge=1)] = 4
    max_skipped_updates: Annotated[
        int, doc("consecutive updates with a non-finite gradient before the run stops", ge=1)
    ] = 3

    # Memory and speed; results are equal up to rounding.
    micro_batch_size: Annotated[
        int, doc("rollouts per forward and backward pass; changes memory, not results", ge=1)
    ] = 128
    micro_batch_tokens: Annotated[
        int, doc("tokens per pass, padding included, rollouts sorted by length; 0 = use micro_batch_size", ge=0)
    ] = 0
    packing: Annotated[
        Literal["auto", "packed", "padded"],
        doc('"packed": concatenate texts without padding; auto = on a GPU in bfloat16, on a CPU by token budget'),
    ] = "auto"
    head_chunk_tokens: Annotated[
        int, doc("tokens per chunk of logits if the vocabulary exceeds 1024; 0 = all tokens of a pass", ge=0)
    ] = 512
    activation_checkpointing: Annotated[
        bool, doc("recompute each layer in backward instead of storing its activations")
    ] = False
    compute_dtype: Annotated[
        Literal["float32", "bfloat16"], doc("dtype of matrix products; weights and optimizer stay float32")
    ] = "float32"
    device: Annotated[Literal["auto", "cpu", "cuda"], doc("device of the models; auto = a GPU if available")] = "auto"

    @property
    def has_critic(self) -> bool:
        return self.algorithm == "ppo"

    @property
    def takes_one_step(self) -> bool:
        """True if an iteration has one optimizer step, whose forward pass also yields `old_logprobs`."""
        return self.epochs == self.minibatches == 1 and self.kl_place != "reward"


def check_learner(learner: LearnerSettings) -> None:
    """Check that the learner's settings are consistent.

    Raises:
        BadSetting: settings contradict each other.
    """
    _check_kl(learner)
    _check_critic(learner)


def _check_kl(learner: LearnerSettings) -> None:
    if learner.kl_place == "none" and learner.kl_coef > 0:
        raise BadSetting(
            f'learner.kl_coef: expected 0 while learner.kl_place is "none", got {learner.kl_coef}; '
            'set learner.kl_place to "reward" or "loss"'
        )
    if learner.kl_place == "loss" and learner.kl_kind == "k1":
        raise BadSetting(
            'learner.kl_kind: expected "k2" or "k3" with learner.kl_place="loss", got "k1", whose expected gradient '
            "in the loss is 0; use k1 in the reward"
        )
    if learner.kl_target is not None and learner.kl_coef == 0:
        raise BadSetting(
            f"learner.kl_target: expected none while learner.kl_coef is 0, got {learner.kl_target}; "
            "set learner.kl_coef to the initial coefficient"
        )


def _check_critic(learner: LearnerSettings) -> None:
    if learner.shared_trunk and (learner.critic_from or learner.critic_num_layers):
        raise BadSetting(
            "learner.shared_trunk: expected no settings of a separate critic trunk, got "
            f"learner.critic_from={learner.critic_from!r} and "
            f"learner.critic_num_layers={learner.critic_num_layers}; remove one or the other"
        )
    if learner.has_critic:
        return
    for name in ("critic_warmup_iterations", "critic_extra_epochs"):
        if getattr(learner, name):
            raise BadSetting(
                f'learner.{name}: expected 0 with learner.algorithm="{learner.algorithm}", which has no critic, got '
                f"{getattr(learner, name)}"
            )
    if learner.truncation == "bootstrap":
        raise BadSetting(
            f'learner.truncation: expected "terminal", "mask" or "penalty" with learner.algorithm='
            f'"{learner.algorithm}", which has no critic to bootstrap from, got "bootstrap"'
        )
