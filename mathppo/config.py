"""What can be set, once: a TOML file plus dotted overrides such as `--learner.lr=1e-6`.

One frozen struct per stage. A default is the value an expert would choose for a first run on a laptop; the unit and the
reason stand in the field's description, which `--help` prints. Derived values are properties. An unknown key or a bad
value fails at once with its path, the value, and what is allowed.

Touches: argv's settings, and configuration files for reading.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mathppo.config_text import assign, check_keys, explain, read_toml, read_value
from mathppo.errors import BadSetting


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings."""


def _doc(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


class RunSettings(Settings, frozen=True):
    seed: Annotated[int, _doc("every random number of the run derives from it", ge=0)] = 0
    iterations: Annotated[int, _doc("PPO iterations: generate, grade, learn", ge=0)] = 130
    checkpoint_every: Annotated[int, _doc("iterations between checkpoints; a kill redoes the updates since", ge=1)] = 10
    keep_checkpoints: Annotated[int, _doc("newest checkpoints kept, besides step 0", ge=1)] = 3
    num_threads: Annotated[int, _doc("CPU threads of torch; 0 = torch's own choice", ge=0, le=1024)] = 0


class ProblemsSettings(Settings, frozen=True):
    source: Annotated[str, _doc('"equations" (built in), a .jsonl or .parquet file, or a hub id of `datasets`')] = (
        "equations"
    )
    mix: Annotated[
        list[tuple[str, int, float]], _doc("built-in equations: rows of family, level, weight", min_length=1)
    ] = msgspec.field(
        default_factory=lambda: [("linear", level, 1.0) for level in range(1, 6)],
    )
    count: Annotated[int, _doc("training problems to prepare from the built-in equations", ge=1)] = 16384
    held_out: Annotated[str, _doc("held-out set: a name under data/held_out, or a file like `source`")] = "linear"
    check_against: Annotated[list[str], _doc("benchmarks that no training problem may be in, by card")] = msgspec.field(
        default_factory=list
    )
    benchmark_dir: Annotated[str, _doc("folder of the benchmarks' files; empty = the hub")] = ""
    template: Annotated[
        Literal["plain", "none", "boxed", "few_shot", "r1", "chat_boxed"],
        _doc('how a question becomes a prompt; "chat_boxed" for instruct models'),
    ] = "plain"
    question_field: Annotated[str, _doc("field of a file or hub data set that holds the question")] = "question"
    reference_field: Annotated[str, _doc("field that holds the reference answer")] = "answer"
    reference_format: Annotated[Literal["plain", "gsm8k"], _doc('"gsm8k": the answer follows ####')] = "plain"
    split: Annotated[str, _doc("split of a hub data set")] = "train"


class ModelSettings(Settings, frozen=True):
    path: Annotated[str, _doc("Hugging Face folder of the policy to start from; empty = from scratch")] = ""
    hidden_size: Annotated[int, _doc("from scratch: width", ge=32)] = 96
    num_layers: Annotated[int, _doc("from scratch: decoder layers", ge=1)] = 3
    num_heads: Annotated[int, _doc("from scratch: attention heads; width / heads = 32 also runs in vLLM", ge=1)] = 3
    intermediate_size: Annotated[int, _doc("from scratch: width of the feed-forward layer", ge=32)] = 256
    initializer_range: Annotated[float, _doc("from scratch: std of the weights; 0.02 learns far slower here", gt=0)] = (
        0.06
    )
    context_tokens: Annotated[int, _doc("from scratch: longest prompt plus completion", ge=16)] = 128


class WarmstartSettings(Settings, frozen=True):
    steps: Annotated[int, _doc("supervised steps on worked derivations", ge=1)] = 500
    batch_size: Annotated[int, _doc("derivations a step", ge=1)] = 128
    lr: Annotated[float, _doc("peak learning rate; cosine to a tenth of it", gt=0)] = 3e-3
    slip_rate: Annotated[float, _doc("share of derivations with one slip: room left for PPO", ge=0, le=1)] = 0.65
    checkpoint_every: Annotated[int, _doc("steps between resumable states", ge=1)] = 100


class GeneratorSettings(Settings, frozen=True):
    engine: Annotated[
        Literal["hf", "vllm", "vllm-http", "openai"],
        _doc('"hf" embedded; "vllm" in process; "vllm-http" a vLLM server; "openai" any, without new weights'),
    ] = "hf"
    prompts_per_iteration: Annotated[int, _doc("problems an iteration", ge=1)] = 128
    samples_per_prompt: Annotated[int, _doc("completions a problem", ge=1)] = 1
    temperature: Annotated[float, _doc("sampling temperature; the learner's log-probabilities use the same", gt=0)] = (
        1.0
    )
    top_p: Annotated[float, _doc("nucleus mass kept; below 1 for evaluation only, no learner follows", gt=0, le=1)] = (
        1.0
    )
    top_k: Annotated[int, _doc("most likely tokens kept; 0 = all; else for evaluation only", ge=0)] = 0
    max_new_tokens: Annotated[int, _doc("token budget of a completion, stop token included", ge=1)] = 32
    max_batch_size: Annotated[int, _doc("completions sampled side by side", ge=1)] = 512
    # Engines other than hf.
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], _doc("vllm: of the sampler; auto = float32 on a CPU, bfloat16 on a GPU")
    ] = "auto"
    context_tokens: Annotated[int, _doc("vllm: longest prompt plus completion; 0 = the model's own", ge=0)] = 0
    kv_cache_bytes: Annotated[int, _doc("vllm: keys and values; 0 = 512 MiB on a CPU, the share on a GPU", ge=0)] = 0
    gpu_memory_share: Annotated[float, _doc("vllm: of a GPU's memory for weights, keys and values", gt=0, le=1)] = 0.45
    own_process: Annotated[bool, _doc("vllm: in processes of its own, which may die and are started again")] = False
    sleeps: Annotated[bool, _doc("vllm: gives the GPU's memory to the learner between iterations")] = False
    max_restarts: Annotated[int, _doc("times that a dead engine is started, or a lost request sent, again", ge=0)] = 2
    url: Annotated[str, _doc("vllm-http, openai: the server's address, for instance http://127.0.0.1:8000")] = ""
    served_model: Annotated[str, _doc("vllm-http, openai: the model's name there; empty = the first it lists")] = ""
    weights_folder: Annotated[str, _doc("vllm-http: folder that learner and server both see; empty = in memory")] = ""
    probe_tolerance: Annotated[
        float, _doc("largest gap of a probe's log-probabilities after a refresh, nats; 0 = by dtype", ge=0)
    ] = 0.0


class GraderSettings(Settings, frozen=True):
    name: Annotated[str, _doc('grader: a name, "package.module:attr" or "file.py:attr"')] = "math"
    num_workers: Annotated[int, _doc("sandboxed processes", ge=1, le=1024)] = 1
    time_limit_s: Annotated[float, _doc("seconds of grading one completion", gt=0)] = 2.0
    memory_limit_bytes: Annotated[int, _doc("address space of a worker", ge=1 << 26, le=1 << 48)] = 1 << 30
    max_error_share: Annotated[float, _doc("share of grader failures past which the stage stops", ge=0, le=1)] = 0.05


class RewardSettings(Settings, frozen=True):
    kind: Annotated[
        Literal["grader", "random", "format"],
        _doc('"grader": 1 if correct; controls: "random" (a coin), "format" (1 if it states an answer)'),
    ] = "grader"
    correct: Annotated[float, _doc("reward of a correct completion")] = 1.0
    incorrect: Annotated[float, _doc("reward of every other completion, exhausted budgets included")] = 0.0
    format_penalty: Annotated[float, _doc("taken off where no answer is stated, or none that can be read", ge=0)] = 0.0
    missing_stop_penalty: Annotated[float, _doc("taken off where no stop token was sampled: truncated", ge=0)] = 0.0
    overlong_buffer_tokens: Annotated[
        int, _doc("truncation=penalty: last tokens of the budget over which the penalty grows", ge=1)
    ] = 8
    overlong_penalty: Annotated[float, _doc("truncation=penalty: penalty at the end of the budget", ge=0)] = 1.0


class LearnerSettings(Settings, frozen=True):
    # What is optimised.
    algorithm: Annotated[
        Literal["ppo", "rloo", "grpo", "reinforce++"], _doc("advantage estimator; the last three have no critic")
    ] = "ppo"
    truncation: Annotated[
        Literal["terminal", "bootstrap", "mask", "penalty"], _doc("what the end of the token budget means")
    ] = "terminal"
    gamma: Annotated[float, _doc("discount; 1 = the episode's reward counts fully at each token", ge=0, le=1)] = 1.0
    lam: Annotated[float, _doc("GAE lambda of the policy's advantages", ge=0, le=1)] = 1.0
    lam_alpha: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        _doc("the policy's lambda is 1 - 1 / (lam_alpha * length) of each completion instead; VAPO: 0.05; none = off"),
    ] = None
    critic_lam: Annotated[float, _doc("GAE lambda of the critic's targets; 1 = Monte Carlo", ge=0, le=1)] = 1.0
    whiten: Annotated[bool, _doc("advantages to mean 0 and variance 1 over the batch's tokens")] = True
    aggregation: Annotated[
        Literal["token_mean", "sequence_mean", "constant_length"],
        _doc("what the policy loss is a mean over; constant_length: completions times the token budget"),
    ] = "token_mean"
    clip_low: Annotated[float, _doc("ratio is clipped at 1 - clip_low", gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, _doc("ratio is clipped at 1 + clip_high", gt=0)] = 0.2
    dual_clip: Annotated[
        Annotated[float, Meta(gt=1)] | None, _doc("bound of the loss at negative advantages; none = off")
    ] = None
    value_clip: Annotated[
        Annotated[float, Meta(gt=0)] | None, _doc("values may move this far from the old ones; none = off")
    ] = None
    entropy_coef: Annotated[float, _doc("weight of the entropy bonus", ge=0)] = 0.0
    positive_nll_coef: Annotated[
        float, _doc("weight of the correct completions' negative log-likelihood; VAPO: 0.1", ge=0)
    ] = 0.0

    # How far the policy may go: from the reference, from the sampler, in one iteration.
    kl_place: Annotated[Literal["none", "reward", "loss"], _doc("the one place where KL to the warm start enters")] = (
        "none"
    )
    kl_kind: Annotated[
        Literal["k1", "k2", "k3"], _doc("KL estimator: k1 suits the reward, k2 and k3 the loss, where k1 pulls nowhere")
    ] = "k3"
    kl_coef: Annotated[float, _doc("weight of the reference KL; the first one where kl_target is set", ge=0)] = 0.0
    kl_target: Annotated[
        Annotated[float, Meta(gt=0)] | None, _doc("kl_coef follows the reference KL to it, nats a token; none = fixed")
    ] = None
    kl_horizon: Annotated[int, _doc("rollouts over which a KL 20 % off its target moves kl_coef by 20 %", ge=1)] = 10000
    importance: Annotated[
        Literal["token", "sequence", "off"], _doc("truncated importance weights, learner over sampler")
    ] = "token"
    importance_cap: Annotated[float, _doc("cap of the sampler/learner importance weights", ge=1)] = 2.0
    stale_anchor: Annotated[
        Literal["behaviour", "old"], _doc("policy that the clip refers to in rollouts of an earlier step")
    ] = "behaviour"
    target_kl: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        _doc("end an iteration with the step that met a KL above this, nats a token; none = off"),
    ] = None

    # The critic.
    critic_from: Annotated[
        str, _doc("folder of the critic to start from, or of a policy for its trunk; empty = the policy's trunk")
    ] = ""
    critic_num_layers: Annotated[int, _doc("first layers of that trunk that a new critic keeps; 0 = all", ge=0)] = 0
    shared_trunk: Annotated[bool, _doc("policy and critic are two heads on one trunk")] = False
    trunk_value_gradient: Annotated[
        float, _doc("shared_trunk: share of the value loss's gradient that enters the trunk; 0 = none", ge=0)
    ] = 1.0
    critic_warmup_iterations: Annotated[int, _doc("first iterations that train the critic only", ge=0)] = 0
    critic_extra_epochs: Annotated[int, _doc("further passes of the critic alone, after the policy's", ge=0)] = 0
    critic_pretraining_prompts: Annotated[int, _doc("problems sampled once from the frozen policy; 0 = off", ge=0)] = (
        2048
    )
    critic_pretraining_epochs: Annotated[int, _doc("most passes over those rollouts", ge=1)] = 8
    critic_pretraining_batch_size: Annotated[int, _doc("rollouts an optimizer step of pretraining", ge=1)] = 128
    critic_pretraining_gate: Annotated[
        float, _doc("held-out explained variance of outcomes at which pretraining stops early", le=1)
    ] = 0.3

    # What is trained, and the optimizer's steps.
    lora_rank: Annotated[
        int, _doc("rank of LoRA's factors beside frozen weights, policy and critic; 0 = train all; needs peft", ge=0)
    ] = 0
    lora_alpha: Annotated[
        float, _doc("the factors' product is multiplied by lora_alpha / lora_rank; 32 with about 10 times the lr", gt=0)
    ] = 32.0
    lr: Annotated[float, _doc("policy learning rate", gt=0)] = 3e-4
    critic_lr: Annotated[float, _doc("critic learning rate", gt=0)] = 1e-3
    lr_schedule: Annotated[Literal["constant", "linear"], _doc("linear falls to 0 over the run's iterations")] = (
        "linear"
    )
    optimizer: Annotated[
        Literal["adamw", "adamw8bit"], _doc("adamw8bit keeps its moments in 8 bits: a quarter; needs bitsandbytes")
    ] = "adamw"
    weight_decay: Annotated[float, _doc("AdamW weight decay of policy and critic", ge=0)] = 0.0
    max_grad_norm: Annotated[float, _doc("gradient norm is clipped to it", gt=0)] = 1.0
    epochs: Annotated[int, _doc("passes over an iteration's rollouts", ge=1)] = 1
    minibatches: Annotated[int, _doc("optimizer steps a pass", ge=1)] = 4
    max_skipped_updates: Annotated[int, _doc("updates in a row with a non-finite gradient before it stops", ge=1)] = 3

    # How it is computed: memory and speed, the same results up to rounding.
    micro_batch_size: Annotated[
        int, _doc("rollouts a forward and backward pass; changes memory, not results", ge=1)
    ] = 128
    micro_batch_tokens: Annotated[
        int, _doc("tokens a pass, padding included, rollouts sorted by length; 0 = micro_batch_size rollouts", ge=0)
    ] = 0
    head_chunk_tokens: Annotated[
        int, _doc("tokens whose logits exist at one time, where the vocabulary is above 1024; 0 = all of a pass", ge=0)
    ] = 512
    activation_checkpointing: Annotated[bool, _doc("compute each layer again in backward instead of keeping it")] = (
        False
    )
    compute_dtype: Annotated[
        Literal["float32", "bfloat16"], _doc("of matrix products; weights and optimizer stay float32")
    ] = "float32"
    device: Annotated[Literal["auto", "cpu", "cuda"], _doc("where the models are; auto = a GPU where there is one")] = (
        "auto"
    )

    @property
    def has_critic(self) -> bool:
        return self.algorithm == "ppo"

    @property
    def takes_one_step(self) -> bool:
        """Whether an iteration's only step is on the policy that made `old_logprobs`: its own forward gives them."""
        return self.epochs == self.minibatches == 1 and self.kl_place != "reward"


class EvaluateSettings(Settings, frozen=True):
    every: Annotated[int, _doc("iterations between evaluations; 0 = only before and after", ge=0)] = 20
    num_problems: Annotated[int, _doc("held-out problems used on the way; 0 = all", ge=0)] = 500
    num_problems_final: Annotated[int, _doc("held-out problems used before and after; 0 = all", ge=0)] = 0
    samples_per_problem: Annotated[int, _doc("sampled completions a problem", ge=1)] = 1
    temperature: Annotated[float, _doc("temperature of the sampled mode", gt=0)] = 1.0


class Config(Settings, frozen=True):
    """Every setting of a run, by stage."""

    run: RunSettings = RunSettings()
    problems: ProblemsSettings = ProblemsSettings()
    model: ModelSettings = ModelSettings()
    warmstart: WarmstartSettings = WarmstartSettings()
    generator: GeneratorSettings = GeneratorSettings()
    grader: GraderSettings = GraderSettings()
    reward: RewardSettings = RewardSettings()
    learner: LearnerSettings = LearnerSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    def __post_init__(self) -> None:
        _check_kl(self.learner)
        _check_critic(self.learner)
        _check_sizes(self.learner, self.generator)
        _check_shape(self.model)


def _check_kl(learner: LearnerSettings) -> None:
    if learner.kl_place == "none" and learner.kl_coef > 0:
        raise BadSetting(
            f'learner.kl_coef: expected 0 while learner.kl_place is "none", got {learner.kl_coef}; '
            'set learner.kl_place to "reward" or "loss"'
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


def _check_sizes(learner: LearnerSettings, generator: GeneratorSettings) -> None:
    if learner.algorithm in ("rloo", "grpo") and generator.samples_per_prompt < 2:
        raise BadSetting(
            f'generator.samples_per_prompt: expected at least 2 with learner.algorithm="{learner.algorithm}", '
            f"which compares samples of one problem, got {generator.samples_per_prompt}"
        )
    rollouts = generator.prompts_per_iteration * generator.samples_per_prompt
    if learner.minibatches > rollouts:
        raise BadSetting(
            f"learner.minibatches: expected at most one a rollout ({rollouts} an iteration), got {learner.minibatches}"
        )


def _check_shape(model: ModelSettings) -> None:
    if model.hidden_size % (2 * model.num_heads):
        raise BadSetting(
            f"model.hidden_size: expected a multiple of twice model.num_heads={model.num_heads}, for rotary positions "
            f"turn pairs of a head's numbers, got {model.hidden_size}"
        )


def settings_of(section: type[Settings]) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield (name, type with limits, description, default) of each setting of a section, in order."""
    for field in msgspec.structs.fields(section):
        metas = [m for m in getattr(field.type, "__metadata__", ()) if isinstance(m, Meta)]
        text = next((m.description for m in metas if m.description), "")
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[operator]
        yield field.name, field.type, text, default


def load_config(path: Path | None = None, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Give the resolved configuration: defaults, then the file, then the overrides.

    Args:
        path: TOML file; None = defaults only.
        overrides: dotted key and value text, for instance `("learner.lr", "1e-6")`; the value is read as TOML, and as a
            string where it is none.

    Raises:
        BadSetting: a file that is missing or no TOML, an unknown key, a wrong type, a value out of range, or settings
            that contradict each other.
    """
    tree: dict[str, Any] = read_toml(path) if path is not None else {}
    for key, text in overrides:
        assign(tree, key, read_value(text))
    check_keys(tree, Config)
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        # A check in __post_init__ arrives wrapped; its own message is already whole.
        if isinstance(error.__cause__, BadSetting):
            raise error.__cause__ from None
        raise BadSetting(explain(error, tree, Config)) from None


def encode_config(config: Config) -> bytes:
    """Give the configuration as TOML; settings that are off (None) are left out."""
    tree = {
        section: {key: value for key, value in body.items() if value is not None}
        for section, body in msgspec.to_builtins(config).items()
    }
    return msgspec.toml.encode(tree)
