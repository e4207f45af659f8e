"""Datasheet peaks and published throughput, by the names that NVML reports."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from gpuconsole.model.peaks import peaks_of, published_of

ENTRIES = tomllib.loads((files("gpuconsole") / "data/devices.toml").read_text())["device"]


@pytest.mark.parametrize(
    ("name", "bytes_per_s", "bf16"),
    [
        ("NVIDIA H200", 4.8e12, 989.4e12),
        ("NVIDIA H200 NVL", 4.8e12, 835.5e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12, 989.4e12),
        ("NVIDIA H100 PCIe", 2.0e12, 756e12),
        ("NVIDIA H100 NVL", 3.938e12, 835e12),
        ("NVIDIA B200", 7.7e12, 2250e12),
        ("NVIDIA GB200", 8.0e12, 2500e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12, 312e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12, 312e12),
        ("NVIDIA A100 80GB PCIe", 1.935e12, 312e12),
        ("NVIDIA A100-PCIE-40GB", 1.555e12, 312e12),
        ("NVIDIA A10", 0.6e12, 125e12),
        ("NVIDIA A10G", 0.6e12, 70e12),
        ("NVIDIA GH200 480GB", 4.0e12, 989.4e12),
        ("NVIDIA GH200 144G HBM3e", 4.9e12, 989.4e12),
        ("NVIDIA H20", 4.0e12, 148e12),
        ("NVIDIA H20-3e", 4.8e12, 148e12),
        ("NVIDIA H800", 3.35e12, 989.4e12),
        ("NVIDIA H800 PCIe", 2.0e12, 756e12),
        ("NVIDIA B300 SXM6 AC", 8.0e12, 2250e12),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1.792e12, 503.8e12),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1.597e12, 500e12),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 1.792e12, None),
        ("NVIDIA A40", 0.696e12, 149.7e12),
        ("NVIDIA RTX A6000", 0.768e12, 154.8e12),
        ("NVIDIA RTX 6000 Ada Generation", 0.96e12, 364.2e12),
        ("NVIDIA GeForce RTX 3090", 0.936e12, 71e12),
        ("NVIDIA GeForce RTX 4090", 1.008e12, 165.2e12),
        ("NVIDIA GeForce RTX 5090", 1.792e12, 209.5e12),
        ("NVIDIA L40S", 0.864e12, 362e12),
        ("NVIDIA L40", 0.864e12, 181e12),
        ("NVIDIA L4", 0.3e12, 121e12),
        ("Tesla T4", 0.3e12, None),
        ("NVIDIA GB10", 0.273e12, 125e12),
        ("NVIDIA GH200 120GB", 4.0e12, 989.4e12),
        ("NVIDIA A100-SXM-64GB", 1.638e12, 358e12),
        ("Tesla V100S-PCIE-32GB", 1.134e12, None),
        ("Tesla V100-SXM3-32GB", 0.981e12, None),
        ("NVIDIA L20", 0.864e12, 119.5e12),
        ("NVIDIA A2", 0.2e12, 18e12),
        ("NVIDIA A16", 0.2e12, 17.9e12),
        ("NVIDIA RTX 4000 Ada Generation", 0.36e12, 81.9e12),
        ("NVIDIA RTX 5000 Ada Generation", 0.576e12, 261.1e12),
        ("NVIDIA GeForce RTX 3060", None, 25.5e12),
        ("NVIDIA GeForce RTX 4070", None, 58.3e12),
        ("NVIDIA GeForce RTX 5070", 0.672e12, 61.7e12),
        ("NVIDIA GeForce RTX 5070 Ti", 0.896e12, 87.9e12),
        ("NVIDIA GeForce RTX 4070 Ti", 0.504e12, 80.2e12),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 0.672e12, 88.2e12),
        ("NVIDIA GeForce RTX 4080 SUPER", 0.736e12, 104.4e12),
        ("NVIDIA RTX A4000", 0.448e12, 76.7e12),
        ("NVIDIA RTX PRO 5000 Blackwell", 1.344e12, None),
        ("NVIDIA RTX PRO 4500 Blackwell", 0.896e12, None),
        ("NVIDIA Thor", 0.273e12, None),
        ("NVIDIA B100", 8.0e12, 1750e12),
        ("Tesla V100-SXM2-16GB", 0.9e12, None),
        ("Tesla V100-PCIE-32GB", 0.9e12, None),
    ],
)
def test_peaks_are_of_the_named_device(
    name: str, bytes_per_s: float | None, bf16: float | None
) -> None:
    found = peaks_of(name)
    assert (found.memory_bytes_per_s, found.bf16_flops_per_s) == (bytes_per_s, bf16)
    assert found.source


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 64GB HBM2",
        "NVIDIA A100X",
        "NVIDIA GH200 96GB HBM2e",
        "NVIDIA RTX PRO 4000 Blackwell",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 3060 Ti",
        "NVIDIA GeForce RTX 4070 SUPER",
        "NVIDIA GeForce RTX 5070 Ti Laptop GPU",
        "NVIDIA RTX 4000 SFF Ada Generation",
        "NVIDIA RTX A2000",
        "NVIDIA GB100",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "Quadro RTX 6000",
        "NVIDIA A40-48Q",
        "GRID A100-40C",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA T400 4GB",
        "AMD EPYC",
    ],
)
def test_another_product_has_no_peaks_rather_than_a_guess(name: str) -> None:
    assert peaks_of(name) == type(peaks_of(name))()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["match"][0])
def test_every_figure_is_dense(entry: dict[str, float]) -> None:
    """Each halving of the width doubles the rate; a figure with sparsity among dense ones would be
    twice off."""
    bf16, fp16, tf32, fp8 = (
        entry.get(f"{name}_flops_per_s") for name in ("bf16", "fp16", "tf32", "fp8")
    )
    if bf16 and fp16:
        assert bf16 == fp16
    if bf16 and tf32:
        assert bf16 / tf32 == pytest.approx(2, rel=0.03)
    if bf16 and fp8:
        assert fp8 / bf16 == pytest.approx(2, rel=0.03)
    if fp8 and "int8_ops_per_s" in entry:
        assert entry["int8_ops_per_s"] / fp8 == pytest.approx(
            2 if "fp32 accumulation" in str(entry["source"]) else 1, rel=0.03
        )
    assert "dense" in str(entry["source"])


@pytest.mark.parametrize(
    ("name", "fp4"),
    [
        ("NVIDIA B200", 9e15),
        ("NVIDIA GB200", 10e15),
        ("NVIDIA GB300", 15e15),
        ("NVIDIA B300 SXM6 AC", 13.5e15),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 2015.2e12),
        ("NVIDIA GeForce RTX 5080", 900.4e12),
        ("NVIDIA GeForce RTX 5090", 1676e12),
        ("NVIDIA GB10", 500e12),
        ("NVIDIA H100 80GB HBM3", None),
    ],
)
def test_four_bits_have_a_peak_from_blackwell_on(name: str, fp4: float | None) -> None:
    """Dense: half of the figure with sparsity, and on the Ultra chips three times the rate of 8
    bits."""
    assert peaks_of(name).fp4_flops_per_s == fp4


def test_the_clock_of_a_data_center_card_is_the_one_of_its_peaks() -> None:
    """16-bit products of an SM: 1024 operations a cycle on Volta, Turing and GA10x, 2048 on
    GA100."""
    for name, processors, operations in (
        ("Tesla T4", 40, 1024),
        ("NVIDIA L4", 58, 1024),
        ("NVIDIA A100-SXM4-80GB", 108, 2048),
    ):
        found = peaks_of(name)
        assert found.boost_clock_hz is not None and found.fp16_flops_per_s is not None
        assert found.fp16_flops_per_s == pytest.approx(
            processors * operations * found.boost_clock_hz, rel=0.01
        )


def test_each_entry_can_be_reached_by_its_own_name() -> None:
    for entry in ENTRIES:
        for match in entry["match"]:
            assert peaks_of(f"NVIDIA {match}").source == entry["source"]


def test_published_throughput_is_of_the_named_device() -> None:
    h200 = published_of("NVIDIA H200")
    assert max(run.tokens_per_s for run in h200 if run.parameters == 6.74e9) == 10_471
    assert {run.source for run in published_of("NVIDIA A100-SXM4-80GB")} >= {"IBM fms-fsdp"}
    assert (
        published_of("NVIDIA H200 NVL")
        == ()
        == published_of("NVIDIA H100 PCIe")
        == published_of("cpu")
    )
