"""A job that the kernel's OOM killer has ended is named so."""

from __future__ import annotations

from pathlib import Path

from gpuconsole.engine.children.host_memory import oom_kills, why_killed


def test_the_count_is_that_of_the_group_of_this_process(tmp_path: Path) -> None:
    folder = tmp_path / "user.slice" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.events").write_text(
        "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
    )
    assert oom_kills("0::/user.slice/job\n", tmp_path) == 2
    assert oom_kills("0::/elsewhere\n", tmp_path) is None
    (tmp_path / "memory.events").write_text("oom_kill 5\n")
    assert oom_kills("0::/not/mounted/here\n", tmp_path) == 5, (
        "a container sees its own group as the root"
    )
    assert oom_kills("1:memory:/v1\n", tmp_path) is None


def test_a_killed_job_is_explained_only_where_the_kernel_says_so() -> None:
    assert (
        why_killed(-9, 2, 3)
        == "host memory ran out: the kernel's OOM killer ended 1 process of this control group"
    )
    assert why_killed(137, 2, 4).endswith("ended 2 processes of this control group")
    assert why_killed(-9, 2, 2) == why_killed(1, 2, 3) == why_killed(-9, None, None) == ""
