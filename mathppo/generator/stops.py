"""Stop strings, with the same meaning for every engine.

A completion ends with the first token after which its decoded text, special tokens included, contains one of the
strings. It is terminated, as by a stop token, and its last token is an action like the others. Sampled tokens are never
cut: the graded text keeps the stop string and the rest of the text of its last token (M-gen-4).
"""

from collections.abc import Sequence
from typing import Any

MARGIN_TOKENS = 4
"""Tokens decoded before the window that is searched: some tokenizers decode the first tokens of a text differently."""


class StopStrings:
    """Finds the token that ends a completion.

    Args:
        tokenizer: tokenizer of the policy.
        strings: non-empty stop strings; without any, no completion ends early.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        # A token decodes to at least one byte, so a string spans at most as many tokens as it has bytes.
        self._width = max((len(text.encode()) for text in strings), default=0) + MARGIN_TOKENS

    def __bool__(self) -> bool:
        return bool(self._strings)

    def find_end(self, ids: Sequence[int], start: int = 0) -> int | None:
        """Return the number of ids up to and including the one that completes a stop string; None if there is none.

        Args:
            ids: completion ids sampled so far.
            start: number of leading ids that were searched before.
        """
        ends = range(start + 1, len(ids) + 1)
        if not self._strings or not ends:
            return None
        texts = self._tokenizer.batch_decode(
            [list(ids[max(0, end - self._width) : end]) for end in ends],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        found = (end for end, text in zip(ends, texts, strict=True) if any(string in text for string in self._strings))
        return next(found, None)
