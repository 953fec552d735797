"""What every engine is asked and what it answers.

Weights and prompts in, `Rollout`s out. The embedded engine is `hf`; `vllm` and the engines behind HTTP implement
the same protocol, and `engines.open_engine` gives the one that the settings name.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from mathppo.records import Rollout

if TYPE_CHECKING:
    from torch import Tensor


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How completions are sampled; nothing else (such as a model's `generation_config`) has a say.

    Args:
        max_new_tokens: budget of one completion, stop token included.
        temperature: logits are divided by it; 0 = greedy, whose `behaviour_logprobs` are those at temperature 1.
        top_p: nucleus mass kept; 1 = all.
        top_k: most likely tokens kept; 0 = all.
        stop_token_ids: sampling one of these terminates the completion; it is the completion's last token.
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
        problem_id: passed through to the rollout.
        sample_index: which of the problem's samples, from 0.
        prompt_ids: the prompt's token ids; never re-encoded.
        seed: 0 <= seed < 2**63; with the weights and the sampling it fixes the completion, whatever is batched with it.
    """

    problem_id: str
    sample_index: int
    prompt_ids: tuple[int, ...]
    seed: Annotated[int, Meta(ge=0)]


class Generator(Protocol):
    """An engine holding one set of policy weights."""

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        ...

    @property
    def policy_step(self) -> int:
        """Number of updates that the weights have seen."""
        ...

    @property
    def shares_weights(self) -> bool:
        """Whether its weights are the trainer's own memory, so that a refresh copies nothing and cannot go wrong."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as completions finish, in no promised order.

        Raises:
            BadInput: an empty prompt, an id outside the vocabulary, or a prompt that leaves no room for one new token.
            StageFailed: the engine died more often than it may be started again.
        """
        ...

    def refresh(self, policy_step: int, weights: "Mapping[str, Tensor] | None" = None) -> None:
        """Take the weights of `policy_step`, without a restart; nothing of the old ones, caches included, stays in use.

        Args:
            policy_step: number of updates that they have seen.
            weights: every tensor of the policy by its Hugging Face name, tied heads included (a `state_dict()`, not
                `named_parameters()`); None = they are shared memory that has changed in place.

        Raises:
            BadCheckpoint: names or shapes of another model.
            BadInput: the engine cannot take weights.
        """
        ...

    def sleep(self) -> None:
        """Leave a GPU that is shared with the trainer until the next refresh, where the settings say so.

        Engines with no memory of their own there do nothing; one at level 2 samples again after a refresh only.
        """
        ...

    def close(self) -> None:
        """Free the engine's memory and processes; a second call does nothing."""
        ...
