"""Export of results in the file formats of two evaluation harnesses: lm-eval 0.4.13 and lighteval.

Values that this package does not have are null, empty or absent, never invented.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mathppo.evaluate.result import Result
from mathppo.evaluate.samples import GradedSample, Sample
from mathppo.records import Problem

FEW_SHOT = {"few_shot": 4, "few_shot_short": 3}
"""Number of worked examples in the prompt, by template."""
METRIC = "exact_match"
FILTER = "none"


def lm_eval_results(results: Sequence[Result], *, when_s: float, version: str) -> dict[str, Any]:
    """Return the content of `results_<time>.json` with keys in the order of lm-eval.

    Args:
        results: results of one policy.
        when_s: time in seconds since 1970.
        version: version of this package.
    """
    tasks = task_names(results)
    first = results[0]
    return {
        "results": {task: _lm_eval_row(task, result) for task, result in tasks.items()},
        "group_subtasks": {},
        "configs": {task: _lm_eval_config(task, result) for task, result in tasks.items()},
        "versions": dict.fromkeys(tasks, 1.0),
        "n-shot": {task: FEW_SHOT.get(result.template, 0) for task, result in tasks.items()},
        "higher_is_better": {task: {METRIC: True} for task in tasks},
        "n-samples": {
            task: {"original": len(result.problem_ids), "effective": len(result.problem_ids)}
            for task, result in tasks.items()
        },
        "config": {
            **{"model": "mathppo", "model_args": {"pretrained": first.model}, "batch_size": 1, "batch_sizes": []},
            **{"device": None, "use_cache": None, "limit": None, "bootstrap_iters": 0},
            "gen_kwargs": {"temperature": first.temperature, "max_gen_toks": first.max_new_tokens},
            **dict.fromkeys(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), first.seed),
        },
        **{"git_hash": None, "date": when_s, "pretty_env_info": "", "transformers_version": ""},
        **{"lm_eval_version": f"mathppo {version}", "upper_git_hash": None},
        "task_hashes": {task: result.problems_sha256 for task, result in tasks.items()},
        **{"model_source": "mathppo", "model_name": first.model, "model_name_sanitized": sanitised(first.model)},
        "system_instruction": first.system,
        "system_instruction_sha": None if first.system is None else _sha(first.system),
        **{"fewshot_as_multiturn": None, "chat_template": None, "chat_template_sha": None},
        "total_evaluation_time_seconds": "0.0",
    }


def lm_eval_samples(
    result: Result,
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    graded: Sequence[GradedSample],
    prompts: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the lines of `samples_<task>_<time>.jsonl`, one per problem with all its samples.

    Args:
        result: result of the set.
        problems: problems in the order of the set.
        samples: samples of the result, in any order.
        graded: verdicts in the order of the samples.
        prompts: prompt texts by problem id.
    """
    found = _by_problem(problems, samples, graded)
    options = {"temperature": result.temperature, "max_gen_toks": result.max_new_tokens, "until": []}
    lines = []
    for number, problem in enumerate(problems):
        pairs = found[problem.id]
        doc = {"id": problem.id, "question": problem.question, "answer": problem.reference}
        prompt = prompts.get(problem.id, problem.question)
        lines.append(
            {
                "doc_id": number,
                "doc": doc,
                "target": problem.reference,
                "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": options}},
                "resps": [[sample.completion for sample, _ in pairs]],
                "filtered_resps": [graded.verdict.answer or "" for _, graded in pairs],
                "filter": FILTER,
                "metrics": [METRIC],
                "doc_hash": _sha(msgspec.json.encode(doc).decode()),
                "prompt_hash": _sha(prompt),
                "target_hash": _sha(problem.reference),
                METRIC: sum(graded.verdict.correct for _, graded in pairs) / len(pairs),
            }
        )
    return lines


def lighteval_results(results: Sequence[Result], *, when_s: float) -> dict[str, Any]:
    """Return the content of `results_<time>.json` with keys in the order of lighteval.

    Args:
        results: results of one policy.
        when_s: time in seconds since 1970.
    """
    tasks = lighteval_tasks(results)
    first = results[0]
    rows = {
        task: {"extractive_match": _mean(result), "extractive_match_stderr": standard_error(result)}
        for task, result in tasks.items()
    }
    # `secondes` is lighteval's spelling.
    general = {
        **{"lighteval_sha": "", "num_fewshot_seeds": 1, "max_samples": None, "job_id": ""},
        **{"start_time": when_s, "end_time": when_s, "total_evaluation_time_secondes": "0.0"},
        "model_config": {
            "model_name": first.model,
            "generation_parameters": {
                **{"temperature": first.temperature, "max_new_tokens": first.max_new_tokens, "seed": first.seed}
            },
            "system_prompt": first.system,
        },
        "model_name": first.model,
    }
    # lighteval also averages the standard errors in `all`; readers expect the key, though it is not meaningful.
    every = {name: math.fsum(row[name] for row in rows.values()) / len(rows) for name in next(iter(rows.values()))}
    return {
        "config_general": general,
        "results": {**rows, "all": every},
        "versions": dict.fromkeys(tasks, 0),
        "config_tasks": {task: _lighteval_task(task, result) for task, result in tasks.items()},
        "summary_tasks": {task: {"hashes": _hashes(result), **_lengths(result)} for task, result in tasks.items()},
        "summary_general": {
            "hashes": {},
            **{key: sum(_lengths(result)[key] for result in results) for key in _lengths(first)},
        },
    }


def lighteval_details(
    task: str,
    result: Result,
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    graded: Sequence[GradedSample],
    prompts: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the rows of `details_<task>_<time>.parquet`, one per problem with all its samples.

    The columns `doc`, `model_response` and `metric` are those of lighteval's source; its documentation encloses them in
    double underscores. Token ids are not logged and stay empty.

    Args:
        task: task name in the result file, such as `gsm8k|0`.
        result: result of the set.
        problems: problems in the order of the set.
        samples: samples of the result, in any order.
        graded: verdicts in the order of the samples.
        prompts: prompt texts by problem id.
    """
    rows, found = [], _by_problem(problems, samples, graded)
    for problem in problems:
        pairs = found[problem.id]
        rows.append(
            {
                "doc": {
                    **{"query": prompts.get(problem.id, problem.question), "choices": [problem.reference]},
                    **{"gold_index": [0], "instruction": result.system, "task_name": task, "id": problem.id},
                    **{"original_query": problem.question, "num_samples": len(pairs)},
                    **{"generation_size": result.max_new_tokens, "stop_sequences": []},
                },
                "model_response": {
                    "input": prompts.get(problem.id, problem.question),
                    "text": [sample.completion for sample, _ in pairs],
                    **{"input_tokens": [], "output_tokens": [], "truncated_tokens_count": 0, "padded_tokens_count": 0},
                },
                "metric": {"extractive_match": sum(graded.verdict.correct for _, graded in pairs) / len(pairs)},
            }
        )
    return rows


def lighteval_tasks(results: Sequence[Result]) -> dict[str, Result]:
    """Return the results by lighteval's task name, which includes the number of worked examples."""
    return {f"{task}|{FEW_SHOT.get(r.template, 0)}": r for task, r in task_names(results).items()}


def task_names(results: Sequence[Result]) -> dict[str, Result]:
    """Return the results by task name: the set, with prompt and mode if a set has several results."""
    sets = [result.benchmark for result in results]
    return {r.benchmark if sets.count(r.benchmark) == 1 else r.label.replace(".", "_"): r for r in results}


def sanitised(name: str) -> str:
    """Return the name of a model as a folder name."""
    return "".join(c if c.isalnum() or c in "-_." else "__" if c == "/" else "_" for c in name)


def standard_error(result: Result) -> float:
    """Return the standard error of the mean over problems, as in both harnesses; 0 for a single problem."""
    shares = _shares(result)
    if len(shares) < 2:
        return 0.0
    mean = math.fsum(shares) / len(shares)
    return math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / (len(shares) - 1) / len(shares))


def _by_problem(
    problems: Sequence[Problem], samples: Sequence[Sample], graded: Sequence[GradedSample]
) -> dict[str, list[tuple[Sample, GradedSample]]]:
    """Return the samples and verdicts of each problem, in order of problem and sample index."""
    found: dict[str, list[tuple[Sample, GradedSample]]] = {problem.id: [] for problem in problems}
    for pair in sorted(zip(samples, graded, strict=True), key=lambda pair: pair[0].sample_index):
        found[pair[0].problem_id].append(pair)
    return found


def _shares(result: Result) -> list[float]:
    return [c / n for c, n in zip(result.num_correct, result.num_graded, strict=True) if n]


def _mean(result: Result) -> float:
    shares = _shares(result)
    return math.fsum(shares) / len(shares) if shares else 0.0


def _lm_eval_row(task: str, result: Result) -> dict[str, Any]:
    return {
        **{"name": task, "alias": task, "sample_len": len(result.problem_ids)},
        f"{METRIC},{FILTER}": _mean(result),
        f"{METRIC}_stderr,{FILTER}": standard_error(result),
    }


def _lm_eval_config(task: str, result: Result) -> dict[str, Any]:
    options = {"until": [], "do_sample": result.temperature > 0, "temperature": result.temperature}
    return {
        **{"task": task, "dataset_path": "json", "doc_to_text": result.template, "doc_to_target": "{{answer}}"},
        **{"num_fewshot": FEW_SHOT.get(result.template, 0), "output_type": "generate_until"},
        "metric_list": [{"metric": METRIC, "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {**options, "max_gen_toks": result.max_new_tokens},
        **{"repeats": result.evaluation.samples_per_problem, "filter_list": []},
        "metadata": {"version": 1.0, "grader": result.grader, "golds": result.golds},
    }


def _lighteval_task(task: str, result: Result) -> dict[str, Any]:
    count = len(result.problem_ids)
    return {
        **{"name": task.partition("|")[0], "hf_repo": "", "metrics": ["extractive_match"]},
        **{"generation_size": result.max_new_tokens, "stop_sequence": []},
        **{"original_num_docs": count, "effective_num_docs": count, "version": 0},
    }


def _hashes(result: Result) -> dict[str, str]:
    return {
        "hash_examples": result.problems_sha256[:16],
        "hash_full_prompts": result.prompts_sha256[:16],
        "hash_input_tokens": result.prompts_sha256[:16],
        "hash_cont_tokens": "",
    }


def _lengths(result: Result) -> dict[str, int]:
    """Return lighteval's prompt counts; its `truncated` counts prompts that were cut, which never happens here."""
    count = len(result.problem_ids)
    return {"truncated": 0, "non_truncated": count, "padded": 0, "non_padded": count}


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
