"""Settings of a run: a TOML file plus dotted overrides such as `--learner.lr=1e-6`.

There is one frozen struct per stage. A default is the value an expert would choose for a first run on a laptop; the
field's description, which `--help` prints, has the unit and the reason. Derived values are properties. An unknown key
or a bad value fails at once; the message names its path, the value and the allowed values.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mathppo.config.learner_settings import LearnerSettings, check_learner
from mathppo.config.section import Settings, doc
from mathppo.config.toml_text import assign, check_keys, explain, read_toml, read_value
from mathppo.errors import BadSetting


class RunSettings(Settings, frozen=True):
    seed: Annotated[int, doc("seed of all random numbers of the run", ge=0)] = 0
    iterations: Annotated[int, doc("PPO iterations: generate, grade, learn", ge=0)] = 130
    checkpoint_every: Annotated[
        int, doc("iterations between checkpoints; a resumed run repeats the updates since the last one", ge=1)
    ] = 10
    keep_checkpoints: Annotated[int, doc("number of newest checkpoints kept, besides step 0", ge=1)] = 3
    num_threads: Annotated[int, doc("CPU threads of torch; 0 = torch's default", ge=0, le=1024)] = 0


class ProblemsSettings(Settings, frozen=True):
    source: Annotated[
        str,
        doc('"equations" (built in), a .jsonl, .json, .csv, .parquet or .arrow file, a folder or hub id of `datasets`'),
    ] = "equations"
    mix: Annotated[
        list[tuple[str, int, float]], doc("built-in equations: list of [family, level, weight]", min_length=1)
    ] = msgspec.field(
        default_factory=lambda: [("linear", level, 1.0) for level in range(1, 6)],
    )
    count: Annotated[int, doc("number of training problems to generate from the built-in equations", ge=1)] = 16384
    held_out: Annotated[
        str, doc("held-out set: a name under data/held_out, a benchmark by card, or a file like `source`")
    ] = "linear"
    check_against: Annotated[list[str], doc("benchmarks, by card, that must not contain a training problem")] = (
        msgspec.field(default_factory=list)
    )
    benchmark_dir: Annotated[str, doc("folder of the benchmarks' files; empty = the Hugging Face hub")] = ""
    template: Annotated[
        Literal["plain", "none", "boxed", "few_shot", "few_shot_short", "r1", "chat_boxed"],
        doc('prompt template; "chat_boxed" for instruct models'),
    ] = "plain"
    question_field: Annotated[str, doc("question field of a file or hub data set")] = "question"
    reference_field: Annotated[str, doc("reference-answer field of a file or hub data set")] = "answer"
    reference_format: Annotated[Literal["plain", "gsm8k"], doc('"gsm8k": the answer follows ####')] = "plain"
    split: Annotated[str, doc("split of a hub data set")] = "train"


class ModelSettings(Settings, frozen=True):
    path: Annotated[str, doc("Hugging Face folder of the initial policy; empty = from scratch")] = ""
    hidden_size: Annotated[int, doc("from scratch: width", ge=32)] = 96
    num_layers: Annotated[int, doc("from scratch: decoder layers", ge=1)] = 3
    num_heads: Annotated[int, doc("from scratch: attention heads; a head size of 32 also works in vLLM", ge=1)] = 3
    intermediate_size: Annotated[int, doc("from scratch: width of the feed-forward layer", ge=32)] = 256
    initializer_range: Annotated[
        float, doc("from scratch: std of the initial weights; 0.02 learns much slower at this size", gt=0)
    ] = 0.06
    context_tokens: Annotated[int, doc("from scratch: maximum tokens of prompt plus completion", ge=16)] = 128


class WarmstartSettings(Settings, frozen=True):
    steps: Annotated[int, doc("supervised steps on worked derivations", ge=1)] = 500
    batch_size: Annotated[int, doc("derivations per step", ge=1)] = 128
    lr: Annotated[float, doc("peak learning rate; cosine decay to a tenth of it", gt=0)] = 3e-3
    slip_rate: Annotated[
        float, doc("share of derivations with one sign error, left for PPO to correct", ge=0, le=1)
    ] = 0.65
    checkpoint_every: Annotated[int, doc("steps between resumable checkpoints", ge=1)] = 100


class GeneratorSettings(Settings, frozen=True):
    engine: Annotated[
        Literal["hf", "vllm", "vllm-http", "openai"],
        doc('"hf" embedded; "vllm" in process; "vllm-http" a vLLM server; "openai" any server, no weight updates'),
    ] = "hf"
    prompts_per_iteration: Annotated[int, doc("problems per iteration", ge=1)] = 128
    samples_per_prompt: Annotated[int, doc("completions per problem", ge=1)] = 1
    temperature: Annotated[float, doc("sampling temperature; the learner's log-probabilities use it too", gt=0)] = 1.0
    top_p: Annotated[
        float, doc("nucleus sampling mass; below 1 only in generate and evaluate, not in training", gt=0, le=1)
    ] = 1.0
    top_k: Annotated[
        int, doc("sample from the k most likely tokens; 0 = all; else only in generate and evaluate", ge=0)
    ] = 0
    max_new_tokens: Annotated[int, doc("token budget of a completion, stop token included", ge=1)] = 32
    stop: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        doc("strings that end a completion; they stay in its text and in its training tokens"),
    ] = msgspec.field(default_factory=list)
    stop_token_ids: Annotated[
        list[Annotated[int, Meta(ge=0)]], doc("tokens that end a completion, in addition to the tokenizer's end token")
    ] = msgspec.field(default_factory=list)
    max_batch_size: Annotated[int, doc("completions sampled concurrently", ge=1)] = 512
    # Engines other than hf.
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        doc("vllm: dtype; auto = learner.compute_dtype in training, else float32 on a CPU, bfloat16 on a GPU"),
    ] = "auto"
    context_tokens: Annotated[
        int, doc("vllm: maximum tokens of prompt plus completion; 0 = the model's limit", ge=0)
    ] = 0
    kv_cache_bytes: Annotated[
        int, doc("vllm: size of the KV cache; 0 = 512 MiB on a CPU, gpu_memory_share on a GPU", ge=0)
    ] = 0
    gpu_memory_share: Annotated[float, doc("vllm: share of a GPU's memory for weights and KV cache", gt=0, le=1)] = 0.45
    own_process: Annotated[bool, doc("vllm: run in separate processes, which are restarted if they die")] = False
    sleep: Annotated[
        int,
        doc("vllm, sharing a GPU: free its memory while learning; 1 = weights to host memory, 2 = discard", ge=0, le=2),
    ] = 0
    max_restarts: Annotated[int, doc("maximum restarts of a dead engine and retries of a lost request", ge=0)] = 2
    url: Annotated[str, doc("vllm-http, openai: address of the server, for example http://127.0.0.1:8000")] = ""
    served_model: Annotated[
        str, doc("vllm-http, openai: model name on the server; empty = the first that it lists")
    ] = ""
    weight_transfer: Annotated[
        Literal["auto", "file", "ipc", "nccl"],
        doc("vllm-http: weight transfer; auto = nccl from a GPU, file from a CPU; ipc = server on the same GPU"),
    ] = "auto"
    weights_folder: Annotated[str, doc("vllm-http: folder that learner and server share; empty = shared memory")] = ""
    probe_tolerance: Annotated[
        float, doc("maximum log-probability difference of the probe after a weight update, nats; 0 = by dtype", ge=0)
    ] = 0.0


class GraderSettings(Settings, frozen=True):
    name: Annotated[str, doc('grader: a name, "package.module:attr" or "file.py:attr"')] = "math"
    num_workers: Annotated[int, doc("sandboxed processes", ge=1, le=1024)] = 1
    time_limit_s: Annotated[float, doc("time limit per completion, seconds", gt=0)] = 2.0
    memory_limit_bytes: Annotated[int, doc("address-space limit of a worker, bytes", ge=1 << 26, le=1 << 48)] = 1 << 30
    max_error_share: Annotated[float, doc("share of grader errors above which the stage fails", ge=0, le=1)] = 0.05


class RewardSettings(Settings, frozen=True):
    kind: Annotated[
        Literal["grader", "random", "format"],
        doc('"grader": 1 if correct; controls: "random" (coin flip), "format" (1 if an answer is stated)'),
    ] = "grader"
    correct: Annotated[float, doc("reward of a correct completion")] = 1.0
    incorrect: Annotated[float, doc("reward of every other graded completion, including over_budget")] = 0.0
    format_penalty: Annotated[float, doc("penalty for a missing or unparsable answer", ge=0)] = 0.0
    missing_stop_penalty: Annotated[float, doc("penalty for a truncated completion (no stop token sampled)", ge=0)] = (
        0.0
    )
    overlong_buffer_tokens: Annotated[
        int, doc("truncation=penalty: final tokens of the budget over which the penalty grows", ge=1)
    ] = 8
    overlong_penalty: Annotated[float, doc("truncation=penalty: penalty at the end of the budget", ge=0)] = 1.0


class EvaluateSettings(Settings, frozen=True):
    every: Annotated[int, doc("iterations between evaluations; 0 = only before and after training", ge=0)] = 20
    num_problems: Annotated[int, doc("held-out problems of intermediate evaluations; 0 = all", ge=0)] = 500
    num_problems_final: Annotated[int, doc("held-out problems of the first and last evaluation; 0 = all", ge=0)] = 0
    samples_per_problem: Annotated[int, doc("sampled completions per problem", ge=1)] = 1
    temperature: Annotated[float, doc("temperature of the sampled mode", gt=0)] = 1.0


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
        check_learner(self.learner)
        _check_sizes(self.learner, self.generator)
        _check_shape(self.model)


def _check_sizes(learner: LearnerSettings, generator: GeneratorSettings) -> None:
    if learner.algorithm in ("rloo", "grpo") and generator.samples_per_prompt < 2:
        raise BadSetting(
            f'generator.samples_per_prompt: expected at least 2 with learner.algorithm="{learner.algorithm}", '
            f"which compares samples of one problem, got {generator.samples_per_prompt}"
        )
    rollouts = generator.prompts_per_iteration * generator.samples_per_prompt
    if learner.minibatches > rollouts:
        raise BadSetting(
            f"learner.minibatches: expected at most {rollouts}, the rollouts per iteration, got {learner.minibatches}"
        )


def _check_shape(model: ModelSettings) -> None:
    if model.hidden_size % (2 * model.num_heads):
        raise BadSetting(
            f"model.hidden_size: expected a multiple of twice model.num_heads={model.num_heads}, because rotary "
            f"positions need an even head size, got {model.hidden_size}"
        )


def settings_of(section: type[Settings]) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield (name, type with limits, description, default) of each setting of a section, in order."""
    for field in msgspec.structs.fields(section):
        metas = [m for m in getattr(field.type, "__metadata__", ()) if isinstance(m, Meta)]
        text = next((m.description for m in metas if m.description), "")
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[operator]
        yield field.name, field.type, text, default


def load_config(path: Path | None = None, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Return the resolved configuration: defaults, then the file, then the overrides.

    Args:
        path: TOML file; None = defaults only.
        overrides: dotted key and value text, for example `("learner.lr", "1e-6")`; the value is parsed as TOML, or
            taken as a string if it is not TOML.

    Raises:
        BadSetting: the file is missing or not TOML, a key is unknown, a type is wrong, a value is out of range, or
            settings contradict each other.
    """
    tree: dict[str, Any] = read_toml(path) if path is not None else {}
    for key, text in overrides:
        assign(tree, key, read_value(text))
    check_keys(tree, Config)
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        # msgspec wraps errors of __post_init__; the original message is complete.
        if isinstance(error.__cause__, BadSetting):
            raise error.__cause__ from None
        raise BadSetting(explain(error, tree, Config)) from None


def encode_config(config: Config) -> bytes:
    """Encode the configuration as TOML; settings that are None are left out."""
    tree = {
        section: {key: value for key, value in body.items() if value is not None}
        for section, body in msgspec.to_builtins(config).items()
    }
    return msgspec.toml.encode(tree)
