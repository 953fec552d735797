"""The learner's settings, and which of them contradict each other."""

from typing import Annotated, Literal

from msgspec import Meta

from mathppo.config.section import Settings, doc
from mathppo.errors import BadSetting


class LearnerSettings(Settings, frozen=True):
    # What is optimised.
    algorithm: Annotated[
        Literal["ppo", "rloo", "grpo", "reinforce++"], doc("advantage estimator; the last three have no critic")
    ] = "ppo"
    truncation: Annotated[
        Literal["terminal", "bootstrap", "mask", "penalty"],
        doc("what the end of the token budget means; measured: mask and bootstrap teach to overrun, terminal does not"),
    ] = "terminal"
    gamma: Annotated[float, doc("discount; 1 = the episode's reward counts fully at each token", ge=0, le=1)] = 1.0
    lam: Annotated[float, doc("GAE lambda of the policy's advantages", ge=0, le=1)] = 1.0
    lam_alpha: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("the policy's lambda is 1 - 1 / (lam_alpha * length) of each completion instead; VAPO: 0.05; none = off"),
    ] = None
    critic_lam: Annotated[float, doc("GAE lambda of the critic's targets; 1 = Monte Carlo", ge=0, le=1)] = 1.0
    whiten: Annotated[bool, doc("advantages to mean 0 and variance 1 over the batch's tokens")] = True
    aggregation: Annotated[
        Literal["token_mean", "sequence_mean", "constant_length"],
        doc("what the policy loss is a mean over; constant_length: completions times the token budget"),
    ] = "token_mean"
    clip_low: Annotated[float, doc("ratio is clipped at 1 - clip_low", gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, doc("ratio is clipped at 1 + clip_high", gt=0)] = 0.2
    dual_clip: Annotated[
        Annotated[float, Meta(gt=1)] | None, doc("bound of the loss at negative advantages; none = off")
    ] = None
    value_clip: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("values may move this far from the old ones; none = off")
    ] = None
    entropy_coef: Annotated[float, doc("weight of the entropy bonus", ge=0)] = 0.0
    positive_nll_coef: Annotated[
        float, doc("weight of the correct completions' negative log-likelihood; VAPO: 0.1", ge=0)
    ] = 0.0

    # How far the policy may go: from the reference, from the sampler, in one iteration.
    kl_place: Annotated[Literal["none", "reward", "loss"], doc("the one place where KL to the warm start enters")] = (
        "none"
    )
    kl_kind: Annotated[
        Literal["k1", "k2", "k3"],
        doc("KL estimator; k1 for the reward only: in the loss its gradient is 0 in the mean"),
    ] = "k3"
    kl_coef: Annotated[
        float, doc("weight of the reference KL, 0 = measured only; the first where kl_target is set", ge=0)
    ] = 0.0
    kl_target: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("kl_coef follows the reference KL to it, nats a token; none = fixed")
    ] = None
    kl_horizon: Annotated[int, doc("rollouts over which a KL 20 % off its target moves kl_coef by 20 %", ge=1)] = 10000
    importance: Annotated[
        Literal["token", "sequence", "off"], doc("truncated importance weights, learner over sampler")
    ] = "token"
    importance_cap: Annotated[float, doc("cap of the sampler/learner importance weights", ge=1)] = 2.0
    stale_anchor: Annotated[
        Literal["behaviour", "old"], doc("policy that the clip refers to in rollouts of an earlier step")
    ] = "behaviour"
    target_kl: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("end an iteration with the step that met a KL above this, nats a token; none = off"),
    ] = None

    # The critic.
    critic_from: Annotated[
        str, doc("folder of the critic to start from, or of a policy for its trunk; empty = the policy's trunk")
    ] = ""
    critic_num_layers: Annotated[int, doc("first layers of that trunk that a new critic keeps; 0 = all", ge=0)] = 0
    shared_trunk: Annotated[bool, doc("policy and critic are two heads on one trunk")] = False
    trunk_value_gradient: Annotated[
        float, doc("shared_trunk: share of the value loss's gradient that enters the trunk; 0 = none", ge=0)
    ] = 1.0
    critic_warmup_iterations: Annotated[int, doc("first iterations that train the critic only", ge=0)] = 0
    critic_extra_epochs: Annotated[int, doc("further passes of the critic alone, after the policy's", ge=0)] = 0
    critic_pretraining_prompts: Annotated[int, doc("problems sampled once from the frozen policy; 0 = off", ge=0)] = (
        2048
    )
    critic_pretraining_epochs: Annotated[int, doc("most passes over those rollouts", ge=1)] = 8
    critic_pretraining_batch_size: Annotated[int, doc("rollouts an optimizer step of pretraining", ge=1)] = 128
    critic_pretraining_gate: Annotated[
        float, doc("held-out explained variance of outcomes at which pretraining stops early", le=1)
    ] = 0.3

    # What is trained, and the optimizer's steps.
    lora_rank: Annotated[
        int, doc("rank of LoRA's factors beside frozen weights, policy and critic; 0 = train all; needs peft", ge=0)
    ] = 0
    lora_alpha: Annotated[
        float, doc("the factors' product is multiplied by lora_alpha / lora_rank; 32 with about 10 times the lr", gt=0)
    ] = 32.0
    lr: Annotated[float, doc("policy learning rate", gt=0)] = 3e-4
    critic_lr: Annotated[float, doc("critic learning rate", gt=0)] = 1e-3
    lr_schedule: Annotated[Literal["constant", "linear"], doc("linear falls to 0 over the run's iterations")] = "linear"
    optimizer: Annotated[
        Literal["adamw", "adamw8bit"], doc("adamw8bit keeps its moments in 8 bits: a quarter; needs bitsandbytes")
    ] = "adamw"
    weight_decay: Annotated[float, doc("AdamW weight decay of policy and critic", ge=0)] = 0.0
    max_grad_norm: Annotated[float, doc("gradient norm is clipped to it", gt=0)] = 1.0
    epochs: Annotated[int, doc("passes over an iteration's rollouts", ge=1)] = 1
    minibatches: Annotated[int, doc("optimizer steps a pass", ge=1)] = 4
    max_skipped_updates: Annotated[int, doc("updates in a row with a non-finite gradient before it stops", ge=1)] = 3

    # How it is computed: memory and speed, the same results up to rounding.
    micro_batch_size: Annotated[int, doc("rollouts a forward and backward pass; changes memory, not results", ge=1)] = (
        128
    )
    micro_batch_tokens: Annotated[
        int, doc("tokens a pass, padding included, rollouts sorted by length; 0 = micro_batch_size rollouts", ge=0)
    ] = 0
    packing: Annotated[
        Literal["auto", "packed", "padded"],
        doc('"packed": texts one after the other, no padding; auto = on a GPU in bfloat16, on a CPU by token budget'),
    ] = "auto"
    head_chunk_tokens: Annotated[
        int, doc("tokens whose logits exist at one time, where the vocabulary is above 1024; 0 = all of a pass", ge=0)
    ] = 512
    activation_checkpointing: Annotated[bool, doc("compute each layer again in backward instead of keeping it")] = False
    compute_dtype: Annotated[
        Literal["float32", "bfloat16"], doc("of matrix products; weights and optimizer stay float32")
    ] = "float32"
    device: Annotated[Literal["auto", "cpu", "cuda"], doc("where the models are; auto = a GPU where there is one")] = (
        "auto"
    )

    @property
    def has_critic(self) -> bool:
        return self.algorithm == "ppo"

    @property
    def takes_one_step(self) -> bool:
        """Whether an iteration's only step is on the policy that made `old_logprobs`: its own forward gives them."""
        return self.epochs == self.minibatches == 1 and self.kl_place != "reward"


def check_learner(learner: LearnerSettings) -> None:
    """See that the learner's settings go together.

    Raises:
        BadSetting: some contradict each other.
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
            'learner.kl_kind: expected "k2" or "k3" with learner.kl_place="loss", got "k1", whose gradient there is 0 '
            "in the mean and pulls towards no reference; k1 belongs in the reward"
        )
    if learner.kl_target is not None and learner.kl_coef == 0:
        raise BadSetting(
            f"learner.kl_target: expected none while learner.kl_coef is 0, got {learner.kl_target}; "
            "set learner.kl_coef to the first coefficient, from which it is multiplied up or down"
        )


def _check_critic(learner: LearnerSettings) -> None:
    if learner.shared_trunk and (learner.critic_from or learner.critic_num_layers):
        raise BadSetting(
            "learner.shared_trunk: expected no trunk of the critic's own beside it, got "
            f"learner.critic_from={learner.critic_from!r} and "
            f"learner.critic_num_layers={learner.critic_num_layers}; drop one or the other"
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
