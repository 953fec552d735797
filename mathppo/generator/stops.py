"""Where a completion ends by its text: stop strings, with one meaning for every engine.

A completion ends with the first token after which its decoded text, special tokens spelt out, holds one of the strings.
It is terminated, as by a stop token, and that last token is an action like the others. Tokens stay as they were sampled
and none is cut, so the text that is graded keeps the string, and whatever else its last token spells (M-gen-4).
"""

from collections.abc import Sequence
from typing import Any

MARGIN_TOKENS = 4
"""Decoded before the stretch that is looked at: some tokenizers write a first token otherwise, or in parts."""


class StopStrings:
    """Finds the token that ends a completion.

    Args:
        tokenizer: the policy's.
        strings: none of them empty; no strings at all end nothing.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        # A token spells one byte at least, so that no string is spread over more tokens than it has bytes.
        self._width = max((len(text.encode()) for text in strings), default=0) + MARGIN_TOKENS

    def __bool__(self) -> bool:
        return bool(self._strings)

    def end(self, ids: Sequence[int], start: int = 0) -> int | None:
        """Give the number of ids up to and with the one that ends the completion; None where none does.

        Args:
            ids: the completion's, as far as it is sampled.
            start: number of ids that are known not to end it.
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
