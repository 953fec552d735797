"""Export formats of two other harnesses, compared with their schemas."""

from typing import Any

import msgspec
import pytest
from results import result

from graders.verdict import Status, Verdict
from mathppo.evaluate.harness_formats import (
    lighteval_results,
    lm_eval_results,
    lm_eval_samples,
    sanitised,
    standard_error,
    task_names,
)
from mathppo.evaluate.samples import GradedSample, Sample
from mathppo.records import FinishReason, Problem

LM_EVAL: dict[str, Any] = {
    "results": dict, "group_subtasks": dict, "configs": dict, "versions": dict, "n-shot": dict,
    "higher_is_better": dict, "n-samples": dict, "config": dict, "git_hash": type(None), "date": float,
    "pretty_env_info": str, "transformers_version": str, "lm_eval_version": str, "upper_git_hash": type(None),
    "task_hashes": dict, "model_source": str, "model_name": str, "model_name_sanitized": str,
    "system_instruction": type(None), "system_instruction_sha": type(None), "fewshot_as_multiturn": type(None),
    "chat_template": type(None), "chat_template_sha": type(None), "total_evaluation_time_seconds": str,
}  # fmt: skip
"""Keys of a result file of lm-eval 0.4.13 in its order, with their types here."""
LM_EVAL_CONFIG = (
    *("model", "model_args", "batch_size", "batch_sizes", "device", "use_cache", "limit", "bootstrap_iters"),
    *("gen_kwargs", "random_seed", "numpy_seed", "torch_seed", "fewshot_seed"),
)
LM_EVAL_TASK = {
    *("task", "dataset_path", "doc_to_text", "doc_to_target", "num_fewshot", "metric_list", "output_type"),
    *("generation_kwargs", "repeats", "filter_list", "metadata"),
}
LM_EVAL_SAMPLE = (
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash"),
    *("prompt_hash", "target_hash", "exact_match"),
)
LIGHTEVAL = (*("config_general", "results", "versions", "config_tasks", "summary_tasks", "summary_general"),)
LIGHTEVAL_GENERAL = (
    *("lighteval_sha", "num_fewshot_seeds", "max_samples", "job_id", "start_time", "end_time"),
    *("total_evaluation_time_secondes", "model_config", "model_name"),
)
LIGHTEVAL_TASK = (
    *("name", "hf_repo", "metrics", "generation_size", "stop_sequence", "original_num_docs", "effective_num_docs"),
    "version",
)


def test_result_file_of_lm_eval() -> None:
    content = lm_eval_results([result([1, 0, 1, 1])], when_s=1.5, version="0.1")
    assert list(content) == list(LM_EVAL)
    for key, kind in LM_EVAL.items():
        assert isinstance(content[key], kind), key
    assert tuple(content["config"]) == LM_EVAL_CONFIG
    assert set(content["configs"]["set"]) == LM_EVAL_TASK
    row = content["results"]["set"]
    assert list(row) == ["name", "alias", "sample_len", "exact_match,none", "exact_match_stderr,none"]
    assert (row["sample_len"], row["exact_match,none"], row["exact_match_stderr,none"]) == (4, 0.75, 0.25)
    assert content["n-samples"] == {"set": {"original": 4, "effective": 4}}
    assert msgspec.json.decode(msgspec.json.encode(content)) == content


def test_sample_lines_of_lm_eval() -> None:
    problem = Problem(id="p0", question="1+1?", reference="2")
    samples = [
        Sample(
            key=str(i), identity="i", benchmark="set", problem_id="p0", sample_index=i, completion=text, num_tokens=1,
            finish_reason=FinishReason.STOP, policy_step=0, seed=0,
        )
        for i, text in enumerate(["so 2", "no"])
    ]  # fmt: skip
    graded = [
        GradedSample(key="a", sample="0", reference="2", verdict=Verdict(Status.CORRECT, "2", "g", "m", "", 0.0)),
        GradedSample(key="b", sample="1", reference="2", verdict=Verdict(Status.NO_ANSWER, None, "g", "m", "", 0.0)),
    ]
    (line,) = lm_eval_samples(result([1], 2), [problem], samples[::-1], graded[::-1], {"p0": "<bos>1+1?\n"})
    assert tuple(line) == LM_EVAL_SAMPLE
    assert line["arguments"]["gen_args_0"]["arg_0"] == "<bos>1+1?\n"
    assert line["resps"] == [["so 2", "no"]]
    assert line["filtered_resps"] == ["2", ""]
    assert line["exact_match"] == 0.5
    assert all(len(line[name]) == 64 for name in ("doc_hash", "prompt_hash", "target_hash"))


def test_result_file_of_lighteval() -> None:
    results = [result([1, 0, 1, 1]), result([0, 0], name="two", template="few_shot", system=None)]
    content = lighteval_results(results, when_s=1.5)
    assert tuple(content) == LIGHTEVAL
    assert tuple(content["config_general"]) == LIGHTEVAL_GENERAL
    assert list(content["results"]) == ["set|0", "two|4", "all"]
    assert content["results"]["set|0"] == {"extractive_match": 0.75, "extractive_match_stderr": 0.25}
    assert content["results"]["all"]["extractive_match"] == 0.375
    assert tuple(content["config_tasks"]["two|4"]) == LIGHTEVAL_TASK
    assert content["summary_general"]["non_truncated"] == 6
    summary = content["summary_tasks"]["set|0"]
    assert list(summary) == ["hashes", "truncated", "non_truncated", "padded", "non_padded"]
    assert list(summary["hashes"]) == ["hash_examples", "hash_full_prompts", "hash_input_tokens", "hash_cont_tokens"]
    assert msgspec.json.decode(msgspec.json.encode(content)) == content


def test_set_with_several_prompts_has_one_task_per_prompt() -> None:
    names = task_names([result([1]), result([1], template="none"), result([1], name="two")])
    assert list(names) == ["set_plain_greedy", "set_none_greedy", "two"]


@pytest.mark.parametrize(("name", "folder"), [("run/000040", "run__000040"), ("a b:c", "a_b_c"), ("x-1.5", "x-1.5")])
def test_model_name_as_a_folder_name(name: str, folder: str) -> None:
    assert sanitised(name) == folder


def test_standard_error_of_one_problem_is_zero() -> None:
    assert standard_error(result([1])) == 0.0
