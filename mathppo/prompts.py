"""Prompt templates and encoding, and the closed-vocabulary tokenizer of the built-in problem families.

A prompt is encoded once, here, and never again. Chat templates come with checkpoints and are untrusted: they run only
in the sandboxed jinja environment of transformers.
"""

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jinja2
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from mathppo.errors import BadInput, BadSetting
from mathppo.records import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
else:
    PreTrainedTokenizerBase = Any  # importing transformers takes a second, which most commands do not need

TEMPLATES: Final = ("plain", "none", "boxed", "few_shot", "few_shot_short", "r1", "chat_boxed")
"""Prompt templates by name. Every template except the chat starts with the BOS token, if the tokenizer has one.

`plain`: the question and a newline. `none`: only the question. `boxed`: the question, then `BOXED_INSTRUCTION` on the
next line. `few_shot`: four worked questions, then this one. `few_shot_short`: three one-line calculations, then this
question; for small models. `r1`: the dialogue of DeepSeek-R1-Zero. `chat_boxed`: the tokenizer's chat template with
`BOXED_INSTRUCTION` as system prompt.
"""

BOXED_INSTRUCTION: Final = "Please reason step by step, and put your final answer within \\boxed{}."

_QUESTION: Final = "<<question>>"
_EXAMPLES: Final = (
    ("A shelf holds 4 rows of 6 jars. 5 jars are empty. How many are full?", "4*6=24, and 24-5=19.", "19"),
    ("What is 3/4 of 20, less 7?", "3/4 of 20 is 15, and 15-7=8.", "8"),
    ("Solve 2x+9=1 for x.", "2x=1-9=-8, so x=-4.", "-4"),
    ("A coat costs 80 dollars, then 15% less. What does it cost now?", "15% of 80 is 12, and 80-12=68.", "68"),
)
SHORT_EXAMPLES: Final = (("Evaluate: 3+4", "3+4=7"), ("Evaluate: 8-3", "8-3=5"), ("Evaluate: 4*8", "4*8=32"))
"""Number facts from the training side of the split."""

_TEXTS: Final = MappingProxyType(
    {
        "plain": f"{_QUESTION}\n",
        "none": _QUESTION,
        "boxed": f"{_QUESTION}\n{BOXED_INSTRUCTION}\n",
        "few_shot": "".join(f"Question: {q}\nAnswer: {steps} \\boxed{{{a}}}\n\n" for q, steps, a in _EXAMPLES)
        + f"Question: {_QUESTION}\nAnswer:",
        "few_shot_short": "".join(f"Question: {q}\nAnswer: {work}\n\n" for q, work in SHORT_EXAMPLES)
        + f"Question: {_QUESTION}\nAnswer:",
        # DeepSeek-AI, "DeepSeek-R1" (2025), table 1, https://arxiv.org/abs/2501.12948, with a boxed answer.
        "r1": "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The "
        "assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
        "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
        "respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. User: "
        f"{_QUESTION} Put your final answer within \\boxed{{}}. Assistant: <think>",
    }
)
_NEXT_TURN: Final = MappingProxyType(
    {"few_shot": ("\nQuestion:",), "few_shot_short": ("\nQuestion:",), "r1": ("\nUser:",)}
)
"""Text with which a completion starts another, invented question."""

_SPECIAL: Final = ("<pad>", "<bos>", "<eos>")
_PHRASES: Final = (
    "Solve for x and y: ",
    "Solve for x: ",
    "Simplify: ",
    "Evaluate: ",
    "all real numbers",
    "no solution",
    "\\boxed{",
)
_CHARACTERS: Final = "0123456789xy+-*/=(),;{}^\n "


def build_equation_tokenizer() -> "PreTrainedTokenizerFast":
    """Build the tokenizer of the built-in families: one token per character, instruction and worded answer.

    It has no unknown token: text outside its alphabet is rejected (M-prompts-1). Decoding returns exactly the encoded
    text. A tokenizer saved with `save_pretrained` loads with `AutoTokenizer`.
    """
    from transformers import PreTrainedTokenizerFast

    tokens = (*_SPECIAL, *_PHRASES, *_CHARACTERS)
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}))
    pattern = "|".join([*map(re.escape, _PHRASES), r"[\s\S]"])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.decoder = decoders.Fuse()
    pad, bos, eos = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


class SpecialIds(NamedTuple):
    """Special token ids that a run needs.

    Args:
        bos: first token of a text; None if the tokenizer has none.
        eos: stop token; sampling it terminates a completion.
        pad: fills rows; its value has no effect. `eos` if the tokenizer has no padding token.
    """

    bos: int | None
    eos: int
    pad: int


def special_ids(tokenizer: PreTrainedTokenizerBase) -> SpecialIds:
    """Read the special ids of a tokenizer.

    Raises:
        BadInput: the tokenizer has no end token.
    """
    bos, eos, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    if not isinstance(eos, int):
        raise BadInput(
            "tokenizer: expected an end token, got none; set eos_token in its folder's tokenizer_config.json"
        )
    return SpecialIds(bos=bos if isinstance(bos, int) else None, eos=eos, pad=pad if isinstance(pad, int) else eos)


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Encode a text unchanged: no token is added, and no part of the text becomes a special token.

    Raises:
        BadInput: part of the text is outside the vocabulary, or the text contains a special token.
    """
    _reject_special(text, tokenizer)
    return _encode(text, tokenizer)


def encode_prompt(
    problem: Problem,
    tokenizer: PreTrainedTokenizerBase,
    *,
    template: str = "plain",
    system: str | None = None,
    max_prompt_tokens: int | None = None,
) -> list[int]:
    """Encode the prompt of a problem with a named template.

    Args:
        problem: supplies the question; its reference is not used.
        tokenizer: tokenizer of the policy.
        template: one of `TEMPLATES`.
        system: system prompt of a chat; None for `BOXED_INSTRUCTION`, "" for no system prompt.
        max_prompt_tokens: longest prompt allowed; None for no limit.

    Raises:
        BadSetting: unknown template, `chat_boxed` with a tokenizer that has no chat template, or a system prompt with a
            template other than `chat_boxed`.
        BadInput: text outside the vocabulary, a duplicated BOS token, a failing chat template, or a prompt that is too
            long.
    """
    if template == "chat_boxed":
        ids = _encode_chat(problem, tokenizer, BOXED_INSTRUCTION if system is None else system)
    elif template in _TEXTS:
        if system is not None:
            raise BadSetting(
                f"template {template!r}: expected no system prompt, got {system!r}; only chat_boxed has one"
            )
        where = f"problem {problem.id!r}: "
        _reject_special(problem.question, tokenizer, where)
        ids = _encode(_TEXTS[template].replace(_QUESTION, problem.question), tokenizer, where)
        if tokenizer.bos_token_id is not None:
            ids = [tokenizer.bos_token_id, *ids]
    else:
        raise BadSetting(f"template: expected one of {', '.join(TEMPLATES)}, got {template!r}")
    _reject_duplicate_bos(problem, ids, tokenizer)
    if max_prompt_tokens is not None and len(ids) > max_prompt_tokens:
        raise BadInput(
            f"problem {problem.id!r}: expected a prompt of at most {max_prompt_tokens} tokens, got {len(ids)}; "
            "raise the context length or leave the problem out"
        )
    return ids


def own_turn(completion: str, template: str) -> str:
    """Return the part of a completion before it starts another question.

    >>> own_turn(" 4+4=8. \\\\boxed{8}\\n\\nQuestion: And 9+9?\\nAnswer: \\\\boxed{18}", "few_shot")
    ' 4+4=8. \\\\boxed{8}\\n'
    """
    ends = [completion.find(mark) for mark in _NEXT_TURN.get(template, ())]
    return completion[: min([end for end in ends if end >= 0], default=len(completion))]


def _encode_chat(problem: Problem, tokenizer: PreTrainedTokenizerBase, system: str) -> list[int]:
    if not tokenizer.chat_template:
        raise BadSetting(
            "template 'chat_boxed': expected a tokenizer with a chat template, got one without; use template 'plain'"
        )
    where = f"problem {problem.id!r}: "
    _reject_special(problem.question, tokenizer, where)  # otherwise a question could forge a turn
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": problem.question})
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise BadInput(
            f"problem {problem.id!r}: expected the tokenizer's chat template to render a system and a user message, "
            f"got {type(error).__name__}: {_shorten(str(error))}; fix the template or use template 'plain'"
        ) from error
    return _encode(str(text), tokenizer, where)


def _encode(text: str, tokenizer: PreTrainedTokenizerBase, where: str = "") -> list[int]:
    """Encode a text in which special tokens keep their meaning; `where` is the prefix of the error message."""
    unknown = _unknown_pieces(text, tokenizer)
    ids = [] if unknown else tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        unknown = [str(tokenizer.unk_token)]
    if unknown:
        raise BadInput(
            f"{where}text {_shorten(text)}: expected text that the tokenizer's vocabulary covers, got {unknown[0]!r}; "
            "use a tokenizer that knows it, such as the checkpoint's own"
        )
    return ids


def _unknown_pieces(text: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the pieces that a word-level model has no token for; its own error does not name them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.WordLevel) or backend.pre_tokenizer is None:
        return []
    special = "|".join(map(re.escape, _special_tokens(tokenizer))) or "(?!)"
    segments = [backend.pre_tokenizer.pre_tokenize_str(segment) for segment in re.split(special, text) if segment]
    return [piece for pieces in segments for piece, _ in pieces if backend.token_to_id(piece) is None]


def _reject_special(text: str, tokenizer: PreTrainedTokenizerBase, where: str = "") -> None:
    found = [token for token in _special_tokens(tokenizer) if token in text]
    if found:
        raise BadInput(
            f"{where}text {_shorten(text)}: expected no special token, got {found[0]!r}; remove it from the text"
        )


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    return [*tokenizer.all_special_tokens, *added]


def _reject_duplicate_bos(problem: Problem, ids: list[int], tokenizer: PreTrainedTokenizerBase) -> None:
    """Check the start of the prompt only: some models begin every turn with their BOS token."""
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        raise BadInput(
            f"problem {problem.id!r}: expected one BOS token {tokenizer.bos_token!r} at the start of the prompt, "
            "got two; fix the chat template, which writes it twice"
        )


def _shorten(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else f"{text[:limit]}…")
