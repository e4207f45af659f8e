"""Reports from traces of our own making, in Kineto's format: what a GPU's trace says, without a
GPU."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuconsole.model.profile import OpClassName, ProfileReport
from gpuconsole.workloads.profiling.summary import Update, summarize, work_of
from gpuconsole.workloads.profiling.trace import Args, TraceError, TraceEvent, read_trace

Json = dict[str, Any]


def span(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Json:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": 0,
        "tid": tid,
        "args": args,
    }


def op(
    name: str,
    ts: float,
    dur: float,
    number: int,
    *tensors: tuple[str, list[int]],
    values: tuple[str, ...] = (),
) -> Json:
    return span(
        "cpu_op",
        name,
        ts,
        dur,
        1,
        **{
            "External id": number,
            "Input type": [kind for kind, _ in tensors],
            "Input Dims": [size for _, size in tensors],
            "Input Strides": [[1] * len(size) for _, size in tensors],
            "Concrete Inputs": list(values),
        },
    )


def kernel(name: str, ts: float, dur: float, number: int) -> Json:
    return span("kernel", name, ts, dur, 7, **{"External id": number, "device": 0, "stream": 7})


BF16, FLOAT = "c10::BFloat16", "float"
GPU_TRACE: list[Json] = [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    span("user_annotation", "ProfilerStep#1", 0, 1000),
    op("aten::linear", 10, 60, 1, (BF16, [512, 1024])),
    op("aten::addmm", 20, 40, 2, (BF16, [4096]), (BF16, [512, 1024]), (BF16, [1024, 4096])),
    op("aten::gelu", 80, 10, 3, (BF16, [512, 4096])),
    span("user_annotation", "Optimizer.step#AdamW.step", 200, 100),
    op("aten::_fused_adamw_", 210, 50, 4),
    kernel("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNN", 100, 300, 2),
    kernel("void cublasLt::splitKreduce_kernel<32, 16>", 400, 20, 2),
    kernel("void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", 420, 80, 3),
    kernel(
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
        700,
        100,
        4,
    ),
    span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 500, 60, 7, bytes=6_000_000),
    span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 560, 20, 7, bytes=6_000_000),
    span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 580, 20, 7, bytes=4),
    span("gpu_user_annotation", "ProfilerStep#1", 100, 900, 7),
    span("overhead", "Activity Buffer Request", 5, 5000, -1),
]


def test_the_longest_kernels_have_their_work_their_launcher_and_their_blocks(
    tmp_path: Path,
) -> None:
    first = kernel("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNN", 100, 300, 2)
    first["args"] |= {"blocks per SM": 1.94, "est. achieved occupancy %": 12, "grid": [16, 16, 1]}
    report = report_of(
        [
            *GPU_TRACE[:7],
            first,
            *GPU_TRACE[8:],
            op("aten::_scaled_dot_product_flash_attention", 150, 5, 9),
        ],
        tmp_path,
    )
    longest = report.top[0]
    assert (
        longest.op_class,
        longest.launched_by,
        longest.blocks_per_sm,
        longest.occupancy_ratio,
    ) == ("gemm", "aten::addmm", 1.94, 0.12)
    assert longest.flops_per_s == pytest.approx(2 * 512 * 1024 * 4096 / 300e-6)
    unknown = next(one for one in report.top if one.name.startswith("Memcpy"))
    assert unknown.blocks_per_sm is None and unknown.bytes_per_s == pytest.approx(6e6 / 60e-6)
    assert report.attention == ["flash"]


def written(events: list[Json], path: Path) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def report_of(events: list[Json], tmp_path: Path, update: Update = Update()) -> ProfileReport:  # noqa: B008
    return summarize(read_trace(written(events, tmp_path / "trace.json")), update)


def test_a_gpu_trace(tmp_path: Path) -> None:
    report = report_of(GPU_TRACE, tmp_path, Update(elements=10.0, bytes=280.0))
    found = {one.name: one for one in report.classes}
    total = 300 + 20 + 80 + 100 + 100
    assert {name: round(one.share_ratio * total) for name, one in found.items()} == {
        "gemm": 320, "elementwise": 80, "optimizer": 100, "copy": 100,
    }  # fmt: skip
    assert sum(one.share_ratio for one in report.classes) == pytest.approx(1.0)
    gemm = found["gemm"]
    # of two kernels that one operator launched, one carries its work
    assert gemm.flops == 2 * 512 * 1024 * 4096
    assert gemm.counted_s == pytest.approx(320e-6)
    assert gemm.bytes == 2 * (4096 + 512 * 1024 + 1024 * 4096 + 512 * 4096)
    assert found["elementwise"].bytes == 2 * 2 * 512 * 4096
    assert (found["optimizer"].flops, found["optimizer"].bytes) == (10.0, 280.0)
    assert report.tensor_core_ratio == pytest.approx(300 / 500)
    assert [(one.kind, one.memory, one.calls, one.bytes) for one in report.copies] == [
        ("H2D", "pageable", 1, 6_000_000),
        ("H2D", "pinned", 1, 6_000_000),
        ("D2H", "pageable", 1, 4),
    ]
    assert (report.steps, report.kernels) == (1, 7)
    assert report.wall_s == pytest.approx(1e-3)
    assert report.busy_s == pytest.approx(600e-6)
    assert [round(gap.duration_s * 1e6) for gap in report.gaps] == [200, 100, 100]
    assert report.gaps[0].after.startswith("void at::native::(anonymous namespace)::multi_tensor")


def test_work_that_a_replayed_graph_did_has_no_operator_and_counts_by_name(tmp_path: Path) -> None:
    report = report_of(
        [span("user_annotation", "ProfilerStep#1", 0, 100), kernel("flash_fwd_kernel", 10, 20, 0)],
        tmp_path,
    )
    assert [(one.name, one.flops, one.share_ratio) for one in report.classes] == [
        ("attention", None, 1.0)
    ]


def test_a_cpu_trace_counts_each_operators_own_time(tmp_path: Path) -> None:
    report = report_of(
        [
            span("user_annotation", "ProfilerStep#1", 0, 200),
            op("aten::linear", 10, 100, 1, (FLOAT, [8, 16])),
            op("aten::addmm", 20, 80, 2, (FLOAT, [32]), (FLOAT, [8, 16]), (FLOAT, [16, 32])),
            op("aten::copy_", 30, 10, 3, (FLOAT, [8, 32]), (FLOAT, [8, 32])),
            span("user_annotation", "## Call CompiledFxGraph fabc ##", 120, 50),
            op("aten::mm", 130, 20, 4, (FLOAT, [8, 16]), (FLOAT, [16, 8])),
        ],
        tmp_path,
    )
    times = {one.name: round(one.time_s * 1e6) for one in report.classes}
    assert times == {"gemm": 70 + 20, "copy": 10, "other": 20, "fused": 30}
    assert report.tensor_core_ratio is None
    assert report.tensor_core_note == "the device is a CPU"
    assert report.kernels == 4  # linear only calls addmm


def test_communication_on_a_thread_of_its_own_counts_and_is_not_the_devices_work(
    tmp_path: Path,
) -> None:
    report = report_of(
        [
            span("user_annotation", "ProfilerStep#1", 0, 200),
            op("aten::mm", 0, 60, 1, (FLOAT, [8, 16]), (FLOAT, [16, 8])),
            span("user_annotation", "gloo:all_reduce", 40, 140, 2),
        ],
        tmp_path,
    )
    assert {one.name: round(one.time_s * 1e6) for one in report.classes} == {
        "communication": 140,
        "gemm": 60,
    }
    assert report.busy_s == pytest.approx(60e-6)
    assert "the wait for other processes" in report.notes[0]


@pytest.mark.parametrize(
    ("name", "op_class", "args", "flops", "moved"),
    [
        (
            "aten::bmm",
            "gemm",
            Args(dims=[[4, 8, 16], [4, 16, 32]], types=[FLOAT] * 2),
            2 * 4 * 8 * 16 * 32,
            4 * (512 + 2048 + 1024),
        ),
        (
            "aten::mv",
            "gemm",
            Args(dims=[[8, 16], [16]], types=[FLOAT] * 2),
            2 * 8 * 16,
            4 * (128 + 16 + 8),
        ),
        # no such product: shapes not understood
        ("aten::mm", "gemm", Args(dims=[[8, 16], [32, 8]], types=[FLOAT] * 2), None, None),
        (
            "aten::add_",
            "elementwise",
            Args(dims=[[8, 16], [16]], types=[FLOAT] * 2),
            128,
            4 * (128 + 16 + 128),
        ),
        (
            "aten::mul",
            "elementwise",
            Args(dims=[[8, 16], [8, 16]], strides=[[16, 1], [0, 1]], types=[FLOAT] * 2),
            128,
            4 * (128 + 16 + 128),
        ),
        (
            "aten::fill_",
            "elementwise",
            Args(dims=[[8, 16], []], types=[FLOAT, "Scalar"]),
            0,
            4 * 128,
        ),
        ("aten::cat", "copy", Args(dims=[[]], types=["TensorList"]), None, None),
        (
            "aten::index_select",
            "embedding",
            Args(dims=[[1000, 64], [], [10]], types=[FLOAT, "Scalar", "long int"]),
            0,
            8 * 640 + 80,
        ),
        (
            "aten::cudnn_convolution",
            "convolution",
            Args(
                dims=[[2, 3, 32, 32], [8, 3, 3, 3]],
                types=[FLOAT] * 2,
                values=["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"],
            ),
            2 * 2 * 8 * 16 * 16 * 27,
            4 * (2 * 3 * 1024 + 216 + 2 * 8 * 256),
        ),
        (
            "aten::_flash_attention_forward",
            "attention",
            Args(dims=[[2, 4, 128, 64]] * 3, types=[BF16] * 3, values=["", "", "", "0.", "True"]),
            2 * 2 * 2 * 4 * 128 * 128 * 64 / 2,
            2 * 4 * 2 * 4 * 128 * 64,
        ),
    ],
)
def test_flops_and_bytes_from_shapes(
    name: str, op_class: OpClassName, args: Args, flops: float | None, moved: float | None
) -> None:
    assert work_of(name, op_class, args) == (flops, moved)


def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no operator and no kernel"):
        report_of([], tmp_path)
    (tmp_path / "half.json").write_text('{"traceEvents": [')
    with pytest.raises(TraceError, match="not a profiler trace"):
        read_trace(tmp_path / "half.json")


def analysed(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    module = "gpuconsole.workloads.profiling.analyse"
    paths = [str(tmp_path / "trace.json"), str(tmp_path / "report.json")]
    return subprocess.run(
        [sys.executable, "-m", module, *paths, *options], capture_output=True, text=True, timeout=60
    )


def test_the_analysing_process_keeps_the_trace_gzipped_and_needs_no_torch(tmp_path: Path) -> None:
    written(GPU_TRACE, tmp_path / "trace.json")
    done = analysed(tmp_path, "--keep", str(tmp_path / "kept.json.gz"))
    assert (done.returncode, done.stderr) == (0, "")
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=ProfileReport)
    assert report.trace == str(tmp_path / "kept.json.gz")
    with gzip.open(report.trace) as kept:
        assert json.load(kept)["traceEvents"] == GPU_TRACE
    assert not (tmp_path / "trace.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json.gz", "report.json"]
    code = "import gpuconsole.workloads.profiling.analyse, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_trace_that_cannot_be_kept_costs_no_report(tmp_path: Path) -> None:
    written(GPU_TRACE, tmp_path / "trace.json")
    assert analysed(tmp_path, "--keep", str(tmp_path / "nowhere" / "kept.json.gz")).returncode == 0
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=ProfileReport)
    assert report.trace == ""
    assert "No such file" in report.notes[0]


def test_a_gpus_trace_without_kernels_is_not_taken_for_a_cpus(tmp_path: Path) -> None:
    written([event for event in GPU_TRACE if event.get("tid") == 1], tmp_path / "trace.json")
    done = analysed(tmp_path, "--gpu")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no GPU kernel" in done.stderr


def test_a_trace_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    done = analysed(tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "not a profiler trace" in done.stderr


def test_an_event_is_what_kineto_writes() -> None:
    line = (
        b'{"ph":"X","cat":"gpu_memset","name":"Memset'
        b' (Device)","pid":0,"tid":7,"ts":1.5,"dur":0.8,"args":{"bytes":8,"queued":0}}'
    )
    assert msgspec.json.decode(line, type=TraceEvent).args.bytes == 8
