"""Generator protocol, the requests that all engines accept, and the checks that they share.

An engine turns prompts into `Rollout`s with one set of policy weights. `hf` is the embedded engine; `vllm` and the
engines behind HTTP implement the same protocol. `engines.open_engine` opens the engine that the settings name.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from mathppo.errors import BadInput
from mathppo.records import FinishReason, Rollout

if TYPE_CHECKING:
    from torch import Tensor


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters; a model's `generation_config` is ignored.

    Args:
        max_new_tokens: budget of one completion, stop token included.
        temperature: divides the logits; 0 = greedy, with `behaviour_logprobs` at temperature 1.
        top_p: nucleus mass that is kept; 1 = all.
        top_k: number of most likely tokens that are kept; 0 = all.
        stop_token_ids: sampling one of these terminates the completion, with the stop token as its last token.
        stop: strings; the token that completes one of them in the text terminates the completion, as its last token.
    """

    max_new_tokens: Annotated[int, Meta(ge=1)]
    stop_token_ids: tuple[int, ...]
    stop: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One completion to sample.

    Args:
        problem_id: copied to the rollout.
        sample_index: index among the samples of the problem, from 0.
        prompt_ids: token ids of the prompt; never re-encoded.
        seed: 0 <= seed < 2**63. Together with the weights and the sampling parameters it determines the completion,
            independently of the rest of the batch.
    """

    problem_id: str
    sample_index: int
    prompt_ids: tuple[int, ...]
    seed: Annotated[int, Meta(ge=0)]

    @property
    def label(self) -> str:
        """Prefix of error messages about this request."""
        return f"problem {self.problem_id!r} sample {self.sample_index}"

    def rollout(
        self, ids: list[int], logprobs: list[float], reason: FinishReason, completion: str, policy_step: int
    ) -> Rollout:
        """Build the rollout of this request from its sampled ids, their log-probabilities and the decoded text."""
        return Rollout(
            problem_id=self.problem_id,
            sample_index=self.sample_index,
            prompt_ids=list(self.prompt_ids),
            completion_ids=ids,
            completion=completion,
            behaviour_logprobs=logprobs,
            finish_reason=reason,
            policy_step=policy_step,
            seed=self.seed,
        )


class Generator(Protocol):
    """An engine with one set of policy weights."""

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the policy."""
        ...

    @property
    def policy_step(self) -> int:
        """Number of updates that the weights have received."""
        ...

    @property
    def shares_weights(self) -> bool:
        """True if the weights are the trainer's own tensors; a refresh then copies nothing."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as completions finish, in any order.

        Raises:
            BadInput: an empty prompt, an id outside the vocabulary, or a prompt that fills the whole context.
            StageFailed: the engine died more often than it may be restarted.
        """
        ...

    def refresh(self, policy_step: int, weights: "Mapping[str, Tensor] | None" = None) -> None:
        """Load the weights of `policy_step` without a restart and drop everything cached under the old weights.

        Args:
            policy_step: number of updates that the weights have received.
            weights: every tensor of the policy by its Hugging Face name, tied heads included (a `state_dict()`, not
                `named_parameters()`); None = shared memory that has changed in place.

        Raises:
            BadCheckpoint: names or shapes of another model.
            BadInput: the engine cannot load weights.
        """
        ...

    def sleep(self) -> None:
        """Free the engine's memory on a GPU shared with the trainer until the next refresh, if the settings ask for it.

        Engines without separate GPU memory do nothing. After a sleep of level 2 the engine needs a refresh before it
        samples again.
        """
        ...

    def close(self) -> None:
        """Free the engine's memory and processes; a second call does nothing."""
        ...


def check_requests(
    requests: Sequence[Request], sampling: Sampling, vocab_size: int, context_length: int | None
) -> list[int]:
    """Check requests before sampling and return the budget of each in new tokens.

    Args:
        requests: one per sample.
        sampling: applies to all of them.
        vocab_size: exclusive upper bound of token ids.
        context_length: longest prompt plus completion in tokens; None = unlimited.

    Returns:
        Per request, `max_new_tokens` or the rest of the context, the smaller of the two.

    Raises:
        BadInput: an empty prompt, an id outside the vocabulary, a prompt that fills the whole context, or two requests
            for one sample.
    """
    budgets: list[int] = []
    seen: set[tuple[str, int]] = set()
    for stop in sampling.stop_token_ids:
        if not 0 <= stop < vocab_size:
            raise BadInput(
                f"sampling: expected stop_token_ids in 0..{vocab_size - 1}, got {stop}; use ids of this model"
            )
    if "" in sampling.stop:
        raise BadInput("sampling: expected stop strings of one character or more, got an empty one; remove it")
    for request in requests:
        where, prompt = request.label, request.prompt_ids
        if (request.problem_id, request.sample_index) in seen:
            raise BadInput(f"{where}: expected one request per sample, got two; number the samples of a problem")
        seen.add((request.problem_id, request.sample_index))
        if not prompt:
            raise BadInput(f"{where}: expected at least one prompt id, got none; add a start token to the prompt")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            bad = next(i for i in prompt if not 0 <= i < vocab_size)
            raise BadInput(
                f"{where}: expected prompt ids in 0..{vocab_size - 1}, got {bad}; tokenize with this model's tokenizer"
            )
        remaining = sampling.max_new_tokens if context_length is None else context_length - len(prompt)
        if context_length is not None and remaining < 1:
            raise BadInput(
                f"{where}: expected a prompt of at most {context_length - 1} tokens (the context is {context_length} "
                f"and one new token must fit), got {len(prompt)}; shorten it or use a model with a longer context"
            )
        budgets.append(min(sampling.max_new_tokens, remaining))
    return budgets
