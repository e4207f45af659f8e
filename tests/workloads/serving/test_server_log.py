"""The cause of a model server's end, from logs of vLLM 0.32 on a CPU (`vllm_logs/`, shortened), and
from the format of GPU logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuconsole.workloads.serving.http import cause

LOGS = Path(__file__).parent / "vllm_logs"
EXPECTED = {
    "engine_core_killed": (
        "its engine process exited unexpectedly without an error: it was killed, or it crashed"
    ),
    "too_little_memory": (
        "ValueError: Available memory on node 0 (12.4/15.09 GiB) on kv cache allocation is less"
        " than requested"
    ),
    "model_not_found": (
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name':"
        " '/nowhere/model'"
    ),
    "model_not_on_the_hub": (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files"
    ),
    "port_taken": "OSError: [Errno 98] Address already in use",
    "unknown_flag": "api_server.py: error: unrecognized arguments: --no-such-flag",
    "kv_cache_too_small": (
        "ValueError: To serve at least one request with the model's max seq len (512), (0.0 GiB KV"
        " cache is needed"
    ),
    "max_model_len_too_long": (
        "ValidationError: User-specified max_model_len (100000) is greater than the derived"
        " max_model_len"
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_cause_is_the_first_failure_in_the_log(name: str) -> None:
    assert cause((LOGS / f"{name}.log").read_text().splitlines()).startswith(EXPECTED[name])


def test_every_recorded_log_is_tested() -> None:
    assert {path.stem for path in LOGS.iterdir()} == EXPECTED.keys()


def test_a_failed_request_before_is_not_the_cause() -> None:
    core, api = (
        "(EngineCore_DP0 pid=7) ERROR 11-20 10:00:09 [core.py:710] ",
        "(APIServer pid=1) ERROR 11-20 10:00:09 [async_llm.py:70] ",
    )
    log = [
        (
            "(APIServer pid=1) ERROR 11-20 10:00:01 [serving.py:99] Error in preprocessing prompt"
            " inputs"
        ),
        (
            "(APIServer pid=1) ERROR 11-20 10:00:01 [serving.py:99] ValueError: The decoder prompt"
            " is longer than the maximum model length"
        ),
        f"{core}EngineCore encountered a fatal error.",
        f"{core}Traceback (most recent call last):",
        (
            f"{core}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0"
            " has a total capacity of 79.10 GiB"
        ),
        f"{api}AsyncLLM output_handler failed.",
        (
            f"{api}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See"
            " stack trace (above) for the root cause."
        ),
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
    assert cause(log).startswith(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB"
    )
    killed = [
        log[1],
        (
            "(APIServer pid=1) WARNING 11-20 10:00:05 [core_client.py:818] [shutdown] MPClient:"
            " engine core exited unexpectedly"
        ),
    ]
    assert cause([*killed, log[6]]).startswith("its engine process exited unexpectedly")


def test_lines_without_an_error() -> None:
    assert (
        cause(["INFO loading", "ValueError: too large", "  at line 3", "INFO bye"])
        == "ValueError: too large"
    )
    assert cause(["loading", "UserWarning: something", "  warnings.warn("]) == "loading"
    assert cause(["INFO loading", ""]) == "INFO loading" and cause([]) == ""
