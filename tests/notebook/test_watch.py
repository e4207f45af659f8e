"""`gpuconsole.watch()` in a real program with real torch and a real console."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebook.running import console_of, environment, run, start, told
from tests.waiting import gone, wait_until

pytestmark = pytest.mark.xdist_group("a job")


@pytest.mark.slow
def test_a_block_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    """The model, the optimizer with its scheduler and the loader are older than the block. Two
    blocks follow each other."""
    facts, err = run(
        tmp_path,
        """
        import os
        from left import left
        before = attributes()
        with gpuconsole.watch() as session:
            inside = changed(before)
            train(1 << 14, lambda n: n % 200 == 0 and session.findings)
            status = session.status
            try:
                with gpuconsole.watch():
                    pass
            except gpuconsole.WatchError as problem:
                tell(nested=str(problem))
        tell(inside=inside, after=changed(before), state=session.status.state, running=status.state,
            problem=session.problem)
        run = session.snapshot.runs[0]
        tell(steps=run.summary.steps, phases=run.summary.phases_ratio, unit=run.throughput[1],
            batch=run.knobs["batch_size"], rule=session.findings[0].rule)
        tell(evidence=len(session.findings[0].evidence), report=session.report(), name=run.scenario)
        after_first = left()
        with gpuconsole.watch(quiet=True, name="the second") as second:
            train(20)
            try:
                tell(children=os.waitpid(-1, os.WNOHANG))
            except ChildProcessError:
                tell(children=None)
        tell(after_second=changed(before), second=second.snapshot.runs[0].scenario,
            first_stays=session.findings[0].rule)
        tell(left=left(), left_before=after_first)
        for name in ("a.json", "a.html", "a.md"):
            session.save(name)
        try:
            session.save("a.txt")
        except ValueError as problem:
            tell(suffix=str(problem))
        """,
    )
    assert sys.version_info < (3, 12) or not facts["inside"]
    assert facts["after"] == facts["after_second"] == []
    assert (facts["running"], facts["state"], facts["problem"]) == ("running", "finished", "")
    assert facts["left"] == facts["left_before"] and facts["left"]["agent"] == {}
    assert facts["children"] is None, "a program may wait for all its children"
    assert facts["nested"] == (
        "this process is watched already: leave the block of the first watch() before the next"
        " one begins"
    )
    assert facts["rule"] == facts["first_stays"] == "input.slow_storage" and facts["evidence"]
    assert (facts["unit"], facts["batch"], facts["name"], facts["second"]) == (
        "samples/s",
        4,
        "program.py",
        "the second",
    )
    assert (
        facts["phases"]["data_wait"] > 0.5 > facts["phases"]["optimizer"] > 0
        and facts["phases"]["backward"] > 0
    )
    assert facts["report"] in err and "the second" not in err
    assert facts["suffix"] == "a.txt: the name must end in .json, .html or .md"
    shown = subprocess.run(
        [sys.executable, "-m", "gpuconsole", "report", "a.json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "The DataLoader waits for storage" in shown.stdout
    assert "The DataLoader waits for storage" in (tmp_path / "a.html").read_text()


@pytest.mark.slow
def test_torch_may_be_imported_in_the_block(tmp_path: Path) -> None:
    code = """
        import json
        import gpuconsole
        with gpuconsole.watch(quiet=True) as session:
            from training import *
            from torch import save
            train(60)
            hooks = of_gpuconsole()
        told = {"steps": session.snapshot.runs[0].summary.steps, "inside": hooks,
            "after": of_gpuconsole(), "save": save is torch.serialization.save}
        print("told:" + json.dumps(told))
        """
    with start(tmp_path, code, first="") as program:
        out, err = program.communicate(timeout=120)
    assert program.returncode == 0, err
    facts = told(out)
    assert facts["steps"] >= 50 and (sys.version_info < (3, 12) or not facts["inside"])
    assert facts["after"] == [] and facts["save"]


BITS = """
train(60)
with {block}:
    train(80)
train(10)
tell(digest=digest())
"""


@pytest.mark.slow
def test_the_training_computes_the_same_bits(tmp_path: Path) -> None:
    plain, _ = run(tmp_path, "import contextlib" + BITS.format(block="contextlib.nullcontext()"))
    watched, _ = run(tmp_path, BITS.format(block="gpuconsole.watch()"))
    assert plain == watched


@pytest.mark.slow
def test_an_error_and_an_interrupt_leave_the_block_as_ever(tmp_path: Path) -> None:
    facts, _ = run(
        tmp_path,
        """
        import os, signal
        before = attributes()
        def fail(n):
            if n == 30:
                raise ZeroDivisionError("of the program")
        try:
            with gpuconsole.watch(quiet=True) as session:
                train(100, fail)
        except ZeroDivisionError as problem:
            tell(error=str(problem), state=session.status.state, answer=session.status.answer,
                after=changed(before))
        def interrupt(n):
            if n == 30:
                os.kill(os.getpid(), signal.SIGINT)
        try:
            with gpuconsole.watch(quiet=True) as session:
                train(100, interrupt)
        except KeyboardInterrupt:
            tell(interrupted=session.status.state, steps=session.snapshot.runs[0].summary.steps,
                after_interrupt=changed(before))
        """,
    )
    assert (facts["error"], facts["state"], facts["after"]) == ("of the program", "failed", [])
    assert "ZeroDivisionError: of the program" in facts["answer"]
    assert (
        facts["interrupted"] == "stopped"
        and facts["steps"] >= 28
        and facts["after_interrupt"] == []
    )


@pytest.mark.slow
def test_a_console_that_is_killed_does_not_disturb_the_training(tmp_path: Path) -> None:
    facts, _ = run(
        tmp_path,
        """
        import psutil
        before = attributes()
        def kill(n):
            if n == 40:
                psutil.Process(session._console._process.pid).kill()
        with gpuconsole.watch() as session:
            train(120, kill)
            tell(status=session.status.state, answer=session.status.answer,
                findings=len(session.findings))
        tell(losses=len(losses), after=changed(before), problem=session.problem,
            report=session.report())
        """,
    )
    assert (facts["losses"], facts["after"]) == (120, [])
    assert (
        facts["status"] == "not watched"
        and "the console has ended" in facts["problem"] == facts["answer"]
    )
    assert facts["problem"] in facts["report"]


@pytest.mark.slow
def test_the_console_of_a_process_that_is_killed_ends(tmp_path: Path) -> None:
    code = """
        with gpuconsole.watch() as session:
            tell(folder=session._console.joined.folder)
            train(1 << 14)
        """
    with start(tmp_path, code) as program:
        assert program.stdout is not None
        folder = Path(program.stdout.readline().partition('"folder": "')[2].partition('"')[0])
        assert (folder / "socket").exists()
        consoles = console_of(program.pid)
        assert len(consoles) >= 2, "the console and its sampler"
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        wait_until(
            lambda: all(gone(console.pid) for console in consoles),
            what="the end of the console and its children",
        )
        assert not folder.exists()


@pytest.mark.slow
def test_a_trial_that_the_end_of_the_block_breaks_off_is_taken_back(tmp_path: Path) -> None:
    """An iterator that outlives the block still gives all its batches, in their order."""
    facts, _ = run(
        tmp_path,
        """
        import threading, psutil
        before, answers = attributes(), []
        ordered = DataLoader(Samples(), batch_size=4)
        first = []
        def take(count):
            for _ in range(count):
                batch = next(batches)
                first.append(round(batch[0, 0].item() * (1 << 16)))
                step(batch)
        def ask():
            try:
                answers.append(session.try_change(num_workers=2).state)
            except gpuconsole.WatchError as problem:
                answers.append(str(problem))
        def loading():
            return psutil.Process().children()
        with gpuconsole.watch(quiet=True, allow_loader=True) as session:
            batches = iter(ordered)
            take(60)
            try:
                session.try_change(num_workers=2)
            except gpuconsole.WatchError as problem:
                tell(here=str(problem))
            thread = threading.Thread(target=ask)
            thread.start()
            while not (session.snapshot.trials and session.snapshot.trials[0].blocks >= 1
                and loading()):
                take(10)
            tell(workers=len(loading()))
        thread.join()
        trial = session.snapshot.trials[0]
        tell(state=trial.state, kept=trial.kept, error=trial.error, answers=answers,
            stays=changed(before))
        take(60)
        in_order = first == [4 * n for n in range(len(first))]
        del batches
        tell(in_order=in_order, after=changed(before), left=len(loading()),
            num_workers=ordered.num_workers, yielded=len(first))
        """,
    )
    assert facts["here"].startswith("this thread trains, and a trial needs its steps")
    assert facts["workers"] == 2 and facts["kept"] is False and facts["state"] != "running"
    assert {name.partition(".")[0] for name in facts["stays"]} <= {
        "_BaseDataLoaderIter",
        "_MultiProcessingDataLoaderIter",
        "DataLoader",
    }
    assert facts["in_order"] and facts["yielded"] > 100
    assert (facts["after"], facts["left"], facts["num_workers"]) == ([], 0, 0)


@pytest.mark.rates
@pytest.mark.slow
def test_a_proven_win_is_kept_in_the_block_and_its_code_is_shown(tmp_path: Path) -> None:
    facts, _ = run(
        tmp_path,
        """
        before = attributes()
        with gpuconsole.watch(tries={"num_workers": 2}, allow_loader=True, quiet=True) as session:
            def over(n):
                if session.status.kept_changes:
                    raise StopIteration
            try:
                for _ in range(200):
                    train(100)
                    over(0)
            except StopIteration:
                pass
            train(100)
        tell(kept=session.status.kept_changes, patch=session.patch(), lines=session.lines,
            verdict=session.snapshot.trials[0].verdict, after=changed(before))
        tell(runs=[run.knobs["num_workers"] for run in session.snapshot.runs])
        """,
    )
    assert (facts["kept"], facts["verdict"], facts["after"]) == ({"num_workers": 2}, "win", [])
    assert facts["runs"] == [0, 2]


@pytest.mark.slow
def test_a_training_in_another_thread_is_watched(tmp_path: Path) -> None:
    facts, _ = run(
        tmp_path,
        """
        import threading
        before = attributes()
        thread = threading.Thread(target=train, args=(400,))
        with gpuconsole.watch(quiet=True) as session:
            thread.start()
            while len(losses) < 100:
                time.sleep(0.05)
        made = len(losses)
        thread.join()
        tell(steps=session.snapshot.runs[0].summary.steps, made=made, all=len(losses),
            after=changed(before), problem=session.problem)
        """,
    )
    assert 80 <= facts["steps"] <= facts["made"] + 20 and facts["all"] == 400
    assert (facts["after"], facts["problem"]) == ([], "")


@pytest.mark.slow
def test_bad_usage_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    facts, _ = run(
        tmp_path,
        """
        import psutil
        before = attributes()
        for options in ({"interval": -1}, {"tries": {"workers": 3}}, {"device": "gpu:9"},
            {"log_to": ["nowhere"]}):
            try:
                with gpuconsole.watch(**options):
                    tell(started=True)
            except ValueError as problem:
                tell(**{str(*options): str(problem)})
        tell(children=len(psutil.Process().children()), after=changed(before))
        """,
    )
    assert "started" not in facts and (facts["children"], facts["after"]) == (0, [])
    assert (
        "--interval" in facts["interval"]
        and "num_workers" in facts["tries"]
        and "gpu:9" in facts["device"]
        and "nowhere" in facts["log_to"]
    )


def test_the_package_imports_nothing_until_it_is_asked() -> None:
    code = (
        "import sys; before = set(sys.modules); import gpuconsole; print(set(sys.modules) -"
        " before); gpuconsole.watch; print(callable(gpuconsole.watch))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["{'gpuconsole'}", "True"]


@pytest.mark.slow
def test_under_run_the_block_does_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from training import *\nimport gpuconsole\n"
        "with gpuconsole.watch() as session:\n    train(30)\nprint(session.problem)\n"
    )
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--device",
        "cpu",
        "--",
        sys.executable,
        str(program),
    ]
    done = subprocess.run(
        words, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (
        done.stdout == "gpuconsole run watches this process already: watch() does nothing in it\n"
    )
    assert "samples/s" in done.stderr
