"""Counted FLOPs of known models against published counts, as the table in docs/models.md has
them."""

from __future__ import annotations

import pytest

from benchmarks.doc_table import DOCS, table
from benchmarks.models.published import PUBLISHED, Published, count, row
from gpuconsole.agent.hooks.evidence import arithmetic

TORCHTITAN, ONNX_TOOL = "torchtitan", "onnx-tool"
"""Publishers who count more than products, as the table says."""


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have compiled a model: no step would be counted."""
    monkeypatch.setattr(arithmetic, "has_compiled", lambda: False)


@pytest.mark.parametrize(
    "published",
    PUBLISHED,
    ids=lambda published: f"{published.model}, {published.source.partition(']')[0][1:]}",
)
def test_the_table_has_what_the_agent_counts(published: Published) -> None:
    cells = row(published)
    assert (
        table((), (cells,)).splitlines()[-1]
        in (DOCS / "models.md").read_text(encoding="utf-8").splitlines()
    )
    if not any(publisher in published.source for publisher in (TORCHTITAN, ONNX_TOOL)):
        assert abs(float(cells[4].rstrip("%"))) <= 0.1


def test_the_difference_to_torchtitan_is_the_table_of_embeddings() -> None:
    (published,) = (entry for entry in PUBLISHED if TORCHTITAN in entry.source)
    counted = count(published.build, published.inputs)
    embeddings = 6 * 128256 * 4096
    assert published.figure(counted) + embeddings == pytest.approx(published.flops, rel=1e-3)
