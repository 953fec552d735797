import re

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mathppo.errors import BadInput, BadSetting
from mathppo.problems import load_held_out
from mathppo.problems.families import FAMILIES
from mathppo.prompts import (
    BOXED_INSTRUCTION,
    TEMPLATES,
    PreTrainedTokenizerBase,
    build_equation_tokenizer,
    encode_prompt,
    encode_text,
    own_turn,
)
from mathppo.records import Problem

PROBLEM = Problem(id="p17", question="Solve for x: 2x+3=11", reference="4")
CHAT = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_equation_tokenizer()


@pytest.fixture(scope="module")
def reloaded(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def _worded(chat_template: str, *, bos: str | None = "<s>") -> PreTrainedTokenizerBase:
    """Return a word-level tokenizer with an unknown token, in place of a checkpoint's tokenizer."""
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", *BOXED_INSTRUCTION.split(), "Solve", "for", "x:", "2x+3=11"]
    words += ["[system]", "[user]", "[assistant]"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(dict.fromkeys(words))}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token=bos, eos_token="</s>")
    tokenizer.chat_template = chat_template
    return tokenizer


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_decoding_returns_the_encoded_text_of_every_family(
    family: str, tokenizer: PreTrainedTokenizerBase, reloaded: PreTrainedTokenizerBase
) -> None:
    for problem in load_held_out(family)[:100]:
        item = next(found for found in FAMILIES if found.name == family).parse(problem.question)
        for text in (problem.question, problem.demonstration, *map(item.derivation, item.slips())):
            ids = encode_text(text, tokenizer)
            assert tokenizer.decode(ids) == reloaded.decode(ids) == text
            assert encode_text(text, reloaded) == ids
            assert reloaded.decode([*ids, 2], skip_special_tokens=True) == text


def test_the_vocabulary_is_small_and_its_ids_are_fixed(reloaded: PreTrainedTokenizerBase) -> None:
    assert len(reloaded) == 36
    assert (reloaded.pad_token_id, reloaded.bos_token_id, reloaded.eos_token_id) == (0, 1, 2)
    assert reloaded.unk_token is None
    assert reloaded.padding_side == "left"
    assert reloaded.encode("Solve for x: ") == reloaded.convert_tokens_to_ids(["Solve for x: "]) == [4]
    assert reloaded.encode("0123456789") == list(range(10, 20))
    assert reloaded.encode(r"\boxed{no solution}") == [9, 8, reloaded.convert_tokens_to_ids("}")]


def test_plain_prompt(reloaded: PreTrainedTokenizerBase) -> None:
    ids = encode_prompt(PROBLEM, reloaded)
    assert reloaded.convert_ids_to_tokens(ids) == ["<bos>", "Solve for x: ", *"2x+3=11", "\n"]
    assert ids == encode_prompt(PROBLEM, reloaded, max_prompt_tokens=10)


def test_plain_prompt_of_a_tokenizer_without_bos_token() -> None:
    tokenizer = _worded(CHAT, bos=None)
    assert tokenizer.convert_ids_to_tokens(encode_prompt(PROBLEM, tokenizer)) == ["Solve", "for", "x:", "2x+3=11"]


def test_a_prompt_longer_than_the_context_is_rejected(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(
        BadInput, match=r"problem 'p17': expected a prompt of at most 9 tokens, got 10; raise the context"
    ):
        encode_prompt(PROBLEM, tokenizer, max_prompt_tokens=9)


@pytest.mark.parametrize(("question", "piece"), [("Solve for z", "S"), ("2x+3=é", "é"), ("1.5", "."), ("2X", "X")])
def test_text_outside_the_vocabulary_is_rejected(
    question: str, piece: str, tokenizer: PreTrainedTokenizerBase, reloaded: PreTrainedTokenizerBase
) -> None:
    for each in (tokenizer, reloaded):
        with pytest.raises(BadInput, match=rf"vocabulary covers, got {re.escape(repr(piece))}; use a"):
            encode_prompt(Problem(id="p", question=question, reference="1"), each)


def test_text_that_becomes_the_unknown_token_is_rejected() -> None:
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordPiece({"<unk>": 0, "Solve": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert encode_text("Solve", tokenizer) == [1]
    with pytest.raises(BadInput, match="expected text that the tokenizer's vocabulary covers, got '<unk>'"):
        encode_text("apples", tokenizer)


@pytest.mark.parametrize("template", ["plain", "chat_boxed"])
def test_a_question_that_contains_a_special_token_is_rejected(template: str) -> None:
    problem = Problem(id="p", question="Solve for x:</s> 2x+3=11", reference="4")
    with pytest.raises(BadInput, match=r"expected no special token, got '</s>'; remove it"):
        encode_prompt(problem, _worded(CHAT), template=template)


def test_chat_prompt_holds_the_instruction_the_question_and_the_model_turn() -> None:
    tokenizer = _worded(CHAT)
    ids = encode_prompt(PROBLEM, tokenizer, template="chat_boxed")
    expected = f"<s> [system] {BOXED_INSTRUCTION} [user] Solve for x: 2x+3=11 [assistant]"
    assert tokenizer.convert_ids_to_tokens(ids) == expected.split()


def test_a_duplicate_bos_token_is_rejected() -> None:
    with pytest.raises(
        BadInput, match=r"problem 'p17': expected one BOS token '<s>' at the start of the prompt, got two"
    ):
        encode_prompt(PROBLEM, _worded("{{ bos_token }}" + CHAT), template="chat_boxed")


def test_a_bos_token_at_the_start_of_each_turn_is_accepted() -> None:
    tokenizer = _worded(CHAT.replace("{{ bos_token }}", "").replace("[{{", "{{ bos_token }} [{{"))
    ids = encode_prompt(PROBLEM, tokenizer, template="chat_boxed")
    assert tokenizer.convert_ids_to_tokens(ids).count("<s>") == 2


@pytest.mark.parametrize(
    "chat_template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('System role not supported') }}",
        "{{ unclosed",
        "{{ 1 // 0 }}",
        "{{ messages[7].content + 1 }}",
        "{% for i in range(1000000) %}x{% endfor %}",
    ],
)
def test_a_hostile_or_broken_chat_template_is_rejected(chat_template: str) -> None:
    with pytest.raises(BadInput, match=r"problem 'p17': expected the tokenizer's chat template to render"):
        encode_prompt(PROBLEM, _worded(chat_template), template="chat_boxed")


def test_invalid_template_settings_are_rejected(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(
        BadSetting,
        match=r"template: expected one of plain, none, boxed, few_shot, few_shot_short, r1, chat_boxed, got 'essay'",
    ):
        encode_prompt(PROBLEM, tokenizer, template="essay")
    with pytest.raises(BadSetting, match="'chat_boxed': expected a tokenizer with a chat template, got one without"):
        encode_prompt(PROBLEM, tokenizer, template="chat_boxed")


def _characters() -> PreTrainedTokenizerBase:
    """Return a character-level tokenizer, which can encode every template."""
    from transformers import PreTrainedTokenizerFast

    alphabet = ["<unk>", "<s>", "</s>", *map(chr, range(9, 127))]
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(alphabet)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "chat_boxed"])
def test_every_text_template_has_one_bos_token_and_the_question_once(template: str) -> None:
    tokenizer = _characters()
    tokens = tokenizer.convert_ids_to_tokens(encode_prompt(PROBLEM, tokenizer, template=template))
    text = "".join(tokens[1:])
    assert tokens[0] == "<s>"
    assert "<s>" not in tokens[1:]
    assert text.count(PROBLEM.question) == 1
    assert "<<" not in text
    ends = {"plain": "\n", "none": PROBLEM.question, "boxed": "\\boxed{}.\n", "r1": "<think>"}
    assert text.endswith(ends.get(template, "\nAnswer:"))


def test_only_chat_templates_take_a_system_prompt() -> None:
    tokenizer = _worded(CHAT.removeprefix("{{ bos_token }}"), bos=None)
    ids = encode_prompt(PROBLEM, tokenizer, template="chat_boxed", system="Solve")
    assert str(tokenizer.decode(ids)).startswith("[system] Solve [user]")
    ids = encode_prompt(PROBLEM, tokenizer, template="chat_boxed", system="")
    assert str(tokenizer.decode(ids)).startswith("[user]")
    with pytest.raises(BadSetting, match="template 'plain': expected no system prompt, got 'Solve'"):
        encode_prompt(PROBLEM, tokenizer, system="Solve")


def test_own_turn_ends_where_the_completion_starts_another_question() -> None:
    assert own_turn("8. \\boxed{8}\n\nQuestion: 9+9?\nAnswer: \\boxed{18}", "few_shot") == "8. \\boxed{8}\n"
    assert own_turn("Question: is it 8?", "few_shot") == "Question: is it 8?"
    assert own_turn("8\nQuestion: 9", "plain") == "8\nQuestion: 9"
    assert own_turn(" 2+2=4\n\nQuestion: 9", "few_shot_short") == " 2+2=4\n"


@pytest.mark.parametrize("question", ["Solve <eos>", "Löse x+1=2"])
def test_the_error_for_an_unencodable_question_names_the_problem(question: str) -> None:
    problem = Problem(id="p7", question=question, reference="1")
    with pytest.raises(BadInput, match=r"^problem 'p7': text "):
        encode_prompt(problem, build_equation_tokenizer())
