"""What a request may ask of an engine, checked before anything is sampled; the same for every engine."""

from collections.abc import Sequence

from mathppo.errors import BadInput
from mathppo.generator.base import Request, Sampling


def check_requests(
    requests: Sequence[Request], sampling: Sampling, vocab_size: int, context_length: int | None
) -> list[int]:
    """Give each request's budget in new tokens: `max_new_tokens`, or what its prompt leaves of the context.

    Args:
        requests: one per sample.
        sampling: of all of them.
        vocab_size: ids are below it.
        context_length: longest prompt plus completion; None = without limit.

    Raises:
        BadInput: an empty prompt, an id outside the vocabulary, a prompt that leaves no room for one new token, or two
            requests for the same sample.
    """
    budgets: list[int] = []
    seen: set[tuple[str, int]] = set()
    for stop in sampling.stop_token_ids:
        if not 0 <= stop < vocab_size:
            raise BadInput(
                f"sampling: expected stop_token_ids in 0..{vocab_size - 1}, got {stop}; use this model's own"
            )
    if "" in sampling.stop:
        raise BadInput("sampling: expected stop strings of one character or more, got an empty one; leave it out")
    for request in requests:
        where = f"problem {request.problem_id!r} sample {request.sample_index}"
        if (request.problem_id, request.sample_index) in seen:
            raise BadInput(f"{where}: expected one request per sample, got two; number the samples of a problem")
        seen.add((request.problem_id, request.sample_index))
        prompt = request.prompt_ids
        if not prompt:
            raise BadInput(f"{where}: expected at least one prompt id, got none; give the prompt a start token")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            bad = next(i for i in prompt if not 0 <= i < vocab_size)
            raise BadInput(
                f"{where}: expected prompt ids in 0..{vocab_size - 1}, got {bad}; tokenize with this model's tokenizer"
            )
        room = sampling.max_new_tokens if context_length is None else context_length - len(prompt)
        if context_length is not None and room < 1:
            raise BadInput(
                f"{where}: expected a prompt of at most {context_length - 1} tokens (the context is {context_length} "
                f"and one new token needs room), got {len(prompt)}; shorten it or use a model with a longer context"
            )
        budgets.append(min(sampling.max_new_tokens, room))
    return budgets
