"""Chunked LM head compared with the unchunked form: numbers, gradients and peak tensor size."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.logprobs import chunked_token_logprobs, entropy, token_logprobs

B, T, D, V = 3, 5, 7, 11


def drawn(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, T, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (B, T), generator=generator)


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden @ weight.T
    return token_logprobs(logits, ids, temperature=temperature), entropy(logits, temperature=temperature)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 15, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("parts", ["logprobs", "entropies", "both"])
def test_chunked_values_and_gradients_equal_the_unchunked_ones(chunk_tokens: int, temperature: float, parts: str):
    hidden, weight, ids = drawn(torch.float64)
    pull = torch.randn(2, B, T, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    used = {"logprobs": [0], "entropies": [1], "both": [0, 1]}[parts]
    chunked = chunked_token_logprobs(hidden, weight, ids, temperature=temperature, chunk_tokens=chunk_tokens)
    results = []
    for form in (plain(hidden, weight, ids, temperature), chunked):
        loss = torch.stack([(pull[i] * form[i]).sum() for i in used]).sum()
        results.append((*form, *torch.autograd.grad(loss, (hidden, weight))))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


def test_float32_gradients_equal_the_unchunked_ones():
    hidden, weight, ids = drawn(torch.float32)
    grads = [
        torch.autograd.grad((form[0] + 0.1 * form[1]).sum(), (hidden, weight))
        for form in (plain(hidden, weight, ids, 0.8), chunked_token_logprobs(hidden, weight, ids, temperature=0.8))
    ]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def test_bfloat16_states_with_a_float32_head_keep_a_float32_gradient():
    hidden, weight, ids = drawn(torch.float32)
    logprobs, _ = chunked_token_logprobs(hidden.bfloat16(), weight, ids, chunk_tokens=4)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, plain(hidden, weight, ids, 1.0)[0], rtol=0, atol=0.1)
    expected = torch.autograd.grad(plain(hidden, weight, ids, 1.0)[0].sum(), weight)[0]
    got = torch.autograd.grad(logprobs.sum(), weight)[0]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=0, atol=0.15)


def test_autocast_around_the_call_sets_the_product_dtype():
    hidden, weight, ids = drawn(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside, _ = chunked_token_logprobs(hidden, weight, ids)
    outside, _ = chunked_token_logprobs(hidden.bfloat16(), weight, ids)
    assert torch.equal(inside, outside)


def test_only_inputs_that_require_grad_get_a_gradient():
    hidden, weight, ids = drawn(torch.float64)
    chunked_token_logprobs(hidden, weight.detach(), ids)[0].sum().backward()
    assert hidden.grad is not None
    frozen = hidden.detach()
    chunked_token_logprobs(frozen, weight, ids)[1].sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        assert not chunked_token_logprobs(hidden, weight, ids)[0].requires_grad


def test_empty_input_gives_empty_output():
    hidden = torch.zeros(0, D, requires_grad=True)
    logprobs, entropies = chunked_token_logprobs(hidden, torch.zeros(V, D), torch.zeros(0, dtype=torch.long))
    (logprobs.sum() + entropies.sum()).backward()
    assert logprobs.shape == entropies.shape == (0,)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_at_most_one_chunk_of_logits_exists_at_a_time():
    tokens, width, vocabulary, chunk_tokens = 64, 4, 1000, 8
    hidden, weight = torch.randn(tokens, width, requires_grad=True), torch.randn(vocabulary, width, requires_grad=True)
    with LargestTensor() as largest:
        logprobs, entropies = chunked_token_logprobs(
            hidden, weight, torch.arange(tokens), temperature=0.9, chunk_tokens=chunk_tokens
        )
        (logprobs.sum() + entropies.sum()).backward()
    assert largest.numel == chunk_tokens * vocabulary


def test_errors_name_the_argument():
    hidden, weight, ids = drawn(torch.float32)
    with pytest.raises(BadInput, match=r"got \[3, 5, 7\], \[11, 7\] and \[3, 4\]; align hidden states"):
        chunked_token_logprobs(hidden, weight, ids[:, :4])
    with pytest.raises(BadSetting, match="expected chunk_tokens of at least 1, got 0"):
        chunked_token_logprobs(hidden, weight, ids, chunk_tokens=0)
    with pytest.raises(BadSetting, match="expected a finite temperature above 0"):
        chunked_token_logprobs(hidden, weight, ids, temperature=0.0)
