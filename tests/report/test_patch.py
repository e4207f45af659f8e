"""Kept changes of a job as a patch: `git apply` accepts it, and the result is the program with the
arguments."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from gpuconsole.agent.hooks.watch import EDITED, MAX_BYTES, line_digests, process_start_s
from gpuconsole.cli.files import patch_of, place_in_patch, source, write_patch
from gpuconsole.model import job as model_job
from gpuconsole.model.job import EFFECTS, JOB, MAY_DIFFER, JobFacts, Site
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import Value
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.report.patch import FolderPatch, Patch, in_own_code, make_patch, patch_text
from gpuconsole.session.facts import kept_changes

BEFORE: Knobs = {"num_workers": 0, "optim": "adamw"}


SITES_OF_TWO_LINES = Site("loader", "train.py", 1), Site("optimizer", "train.py", 2)


def patched(
    folder: Path, code: str, changes: Knobs, *sites: Site, before: Knobs = BEFORE
) -> tuple[str, Patch]:
    """The program after `git apply`, and the patch."""
    (folder / "train.py").write_bytes(code.encode())
    facts = JobFacts(
        "train.py",
        sites=list(sites) or [Site("loader", "train.py", 1), Site("optimizer", "train.py", 1)],
    )
    patch = make_patch(
        changes,
        facts,
        before,
        lambda file: (folder / file).read_bytes().decode(),
        lambda file: ("", file),
    )
    if patch.diff:
        (folder / "p.diff").write_bytes(patch.diff.encode())
        subprocess.run(["git", "apply", "p.diff"], cwd=folder, check=True)
    text = (folder / "train.py").read_bytes().decode()
    ast.parse((folder / "train.py").read_bytes())
    return text, patch


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = DataLoader(d)\n", "x = DataLoader(d, num_workers=4)\n"),
        ("x = DataLoader()\n", "x = DataLoader(num_workers=4)\n"),
        ("x = DataLoader(d, num_workers=0)", "x = DataLoader(d, num_workers=4)"),
        (
            "x = data.DataLoader(d, num_workers=args.workers)\n",
            "x = data.DataLoader(d, num_workers=4)\n",
        ),
        (
            (
                "x = torch.utils.data.DataLoader(\n    D('ä'),  # a (comment\n"
                "    batch_size=f(8),\n)\n"
            ),
            (
                "x = torch.utils.data.DataLoader(\n    D('ä'),  # a (comment\n    batch_size=f(8),"
                " num_workers=4,\n)\n"
            ),
        ),
        (
            "x = DataLoader(d, batch_size=(8))\r\ny = 1\r\n",
            "x = DataLoader(d, batch_size=(8), num_workers=4)\r\ny = 1\r\n",
        ),
        (
            "x = DataLoader(d, persistent_workers=False)\n",
            "x = DataLoader(d, persistent_workers=False, num_workers=4)\n",
        ),
        (
            "x = DataLoader(list(i for i in d))\n",
            "x = DataLoader(list(i for i in d), num_workers=4)\n",
        ),
    ],
)
def test_arguments_of_a_loader(tmp_path: Path, before: str, after: str) -> None:
    text, patch = patched(tmp_path, before, {"num_workers": 4})
    assert text == after
    assert not patch.lines


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = DataLoader(d,**kw)\n", "x = DataLoader(d,**{**kw, 'num_workers': 2})\n"),
        ("x = DataLoader(d, **kw, num_workers=0)\n", "x = DataLoader(d, **kw, num_workers=2)\n"),
        (
            "x = DataLoader(d, **args.loader['train'])\n",
            "x = DataLoader(d, **{**args.loader['train'], 'num_workers': 2})\n",
        ),
        (
            "x = DataLoader(d, **(kw or {}))\n",
            "x = DataLoader(d, **({**(kw or {}), 'num_workers': 2}))\n",
        ),
        (
            "x = DataLoader(d, **{'batch_size': 8})\n",
            "x = DataLoader(d, **{**{'batch_size': 8}, 'num_workers': 2})\n",
        ),
    ],
)
def test_a_loader_that_takes_its_arguments_from_a_dict(
    tmp_path: Path, before: str, after: str
) -> None:
    """The dict stays as it is: the test loader of pytorch/examples mnist has a dict of the same
    keys, and `update` may follow."""
    text, patch = patched(tmp_path, before, {"num_workers": 2})
    assert text == after
    assert not patch.lines


def test_the_change_wins_over_the_dict(tmp_path: Path) -> None:
    """The patched calls run, with each argument once, and with none that torch refuses beside the
    change."""
    from torch import nn, optim
    from torch.utils.data import DataLoader

    code = (
        "loader = DataLoader(range(4), **options)\noptimizer = AdamW(model.parameters(), **other)\n"
    )
    options = {
        "batch_size": 2,
        "num_workers": 1,
        "persistent_workers": True,
        "prefetch_factor": 4,
        "timeout": 5,
        "multiprocessing_context": "fork",
    }
    program = {
        "DataLoader": DataLoader,
        "AdamW": optim.AdamW,
        "model": nn.Linear(2, 2),
        "options": options,
        "other": {"lr": 0.5, "foreach": True},
    }
    text, _ = patched(
        tmp_path,
        code,
        {"num_workers": 0, "optim": "adamw_fused"},
        *SITES_OF_TWO_LINES,
        before={"num_workers": 1},
    )
    exec(text, program)
    assert [batch.tolist() for batch in program["loader"]] == [[0, 1], [2, 3]]  # type: ignore[attr-defined]
    assert program["loader"].num_workers == 0  # type: ignore[attr-defined]
    assert (
        program["optimizer"].defaults["fused"] is True
        and program["optimizer"].defaults["lr"] == 0.5
    )  # type: ignore[attr-defined]
    assert options["num_workers"] == 1, "the program's dict is not changed"


def test_arguments_that_need_workers_go_with_the_workers(tmp_path: Path) -> None:
    """torch refuses persistent_workers and prefetch_factor without workers."""
    code = "DataLoader(d, num_workers=2, persistent_workers=True, prefetch_factor=4)\n"
    text, _ = patched(tmp_path, code, {"num_workers": 0}, before={"num_workers": 2})
    assert text == "DataLoader(d, num_workers=0, persistent_workers=False, prefetch_factor=None)\n"


def test_arguments_of_the_hf_trainer_from_a_dict(tmp_path: Path) -> None:
    """Only arguments that TrainingArguments has."""
    site = Site("loader", "train.py", 1, library="transformers")
    text, _ = patched(
        tmp_path,
        "args = TrainingArguments(**config)\n",
        {"num_workers": 0},
        site,
        before={"num_workers": 2},
    )
    unset = (
        "'dataloader_persistent_workers': False, 'dataloader_prefetch_factor': None,"
        " 'dataloader_num_workers': 0"
    )
    assert text == f"args = TrainingArguments(**{{**config, {unset}}})\n"


def test_the_call_on_the_line_is_changed_and_no_other(tmp_path: Path) -> None:
    code = (
        "a = DataLoader(\n    d,\n    8,\n)\nb = DataLoader(e)\n"
        "opt = torch.optim.AdamW(p, foreach=True)\n"
    )
    sites = (
        Site("loader", "train.py", 2),
        Site("loader", "train.py", 5),
        Site("optimizer", "train.py", 6),
    )
    text, patch = patched(
        tmp_path, code, {"num_workers": 2, "prefetch_factor": 4, "optim": "adamw_fused"}, *sites
    )
    assert text == code.replace("    8,\n", "    8, num_workers=2, prefetch_factor=4,\n").replace(
        "foreach=True", "foreach=False, fused=True"
    )
    assert patch_text(patch, {"num_workers": 2})[0] == "for your own code (num_workers=2):"


def test_persistence_is_left_alone_where_the_program_had_workers(tmp_path: Path) -> None:
    text, _ = patched(
        tmp_path, "DataLoader(d, num_workers=1)\n", {"num_workers": 4}, before={"num_workers": 1}
    )
    assert text == "DataLoader(d, num_workers=4)\n"
    assert (
        patched(
            tmp_path,
            "DataLoader(d, num_workers=1)\n",
            {"num_workers": 0},
            before={"num_workers": 1},
        )[0]
        == "DataLoader(d, num_workers=0)\n"
    )


def test_arguments_of_the_hf_trainer(tmp_path: Path) -> None:
    code = "args = TrainingArguments('out', max_steps=5)\nTrainer(args=args).train()\n"
    sites = (
        Site("loader", "train.py", 2, library="transformers"),
        Site("optimizer", "train.py", 2, library="transformers"),
    )
    text, patch = patched(
        tmp_path, code, {"num_workers": 4, "optim": "adamw_fused", "precision": "bf16"}, *sites
    )
    wanted = 'dataloader_num_workers=4, optim="adamw_torch_fused", bf16=True'.replace('"', "'")
    assert text == code.replace("max_steps=5", f"max_steps=5, {wanted}")
    assert not patch.lines


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "DataLoader(d, **options, **more)\n",
            "the call at train.py:1 takes its arguments from several dicts",
        ),
        ("make(d)\n", "no call of DataLoader"),
        (
            "for i in 1, 2: a = 1\na = DataLoader(d); b = DataLoader(d)\n",
            "several calls of DataLoader",
        ),
    ],
)
def test_what_cannot_be_patched_is_shown_with_the_reason(
    tmp_path: Path, code: str, words: str
) -> None:
    text, patch = patched(tmp_path, code, {"num_workers": 4})
    assert text == code and not patch.diff
    assert patch.lines[0].startswith("DataLoader(..., num_workers=4)") and words in patch.lines[0]


def test_a_file_that_is_gone_and_lines_without_a_call(tmp_path: Path) -> None:
    def gone(file: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", file)

    facts = JobFacts("train.py", sites=[Site("loader", "train.py", 1)])
    patch = make_patch(
        {"num_workers": 4, "precision": "bf16"}, facts, BEFORE, gone, lambda file: ("", file)
    )
    assert "No such file" in patch.lines[0] and "torch.autocast" in patch.lines[1]


def test_a_patch_has_the_current_folder_or_the_repository_or_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "code").mkdir()
    file = tmp_path / "repo" / "code" / "train.py"
    file.touch()
    monkeypatch.chdir(tmp_path / "repo" / "code")
    assert place_in_patch(str(file)) == ("", "train.py")
    monkeypatch.chdir(tmp_path)
    assert place_in_patch(str(file)) == ("", "repo/code/train.py")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert place_in_patch(str(file)) == (str(tmp_path / "repo"), "code/train.py")
    assert "no patch" in write_patch(tmp_path / "p.diff", Patch())


LOADER, OPTIMIZER = "x = DataLoader(d)\n", "o = AdamW(p)\n"


def run_printed(folder: Path, *files: tuple[str, Path, int], changes: Knobs) -> str:
    """Write the patch for the kept `changes` of a job with such sites as the user in `folder` does,
    and run the printed command in a shell. Returns the command."""
    first, second = of_job(1, BEFORE), of_job(2, {**BEFORE, **changes}, **changes)
    second.job = JobFacts(
        "train.py", sites=[Site(kind, str(file), line) for kind, file, line in files]
    )
    snapshot = Snapshot(
        created="", gpuconsole="", environment=Environment(), runs=[first, second], trials=[]
    )
    line = write_patch(Path("p.diff"), patch_of(snapshot)[0])
    command = line.removeprefix("patch written: ")
    assert command != line
    subprocess.run(command, shell=True, cwd=folder, check=True)
    return command


def test_the_printed_command_changes_the_file_of_the_job_and_no_copy_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job loads lib/data.py, and the current folder has a file of the same name and content."""
    for name in ("a lib", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path / "run")
    command = run_printed(
        tmp_path / "run", ("loader", tmp_path / "a lib" / "data.py", 1), changes={"num_workers": 4}
    )
    assert command == f"git -C '{tmp_path}/a lib' apply {tmp_path}/run/p.diff"
    assert "num_workers=4" in (tmp_path / "a lib" / "data.py").read_text()
    assert (tmp_path / "run" / "data.py").read_text() == LOADER


@pytest.mark.parametrize("repository", [False, True], ids=["without git", "in a repository"])
def test_files_of_two_folders_have_a_patch_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: bool
) -> None:
    train, data = tmp_path / "run" / "train.py", tmp_path / "lib" / "code" / "data.py"
    for file, code in ((train, OPTIMIZER), (data, LOADER)):
        file.parent.mkdir(parents=True)
        file.write_text(code)
    if repository:
        subprocess.run(["git", "init", "-q", tmp_path / "lib"], check=True)
    (tmp_path / "run" / "p-2.diff").write_text("of the user\n")
    monkeypatch.chdir(tmp_path / "run")
    root = tmp_path / "lib" if repository else data.parent
    command = run_printed(
        tmp_path / "run",
        ("loader", data, 1),
        ("optimizer", train, 1),
        changes={"num_workers": 4, "optim": "adamw_fused"},
    )
    assert command == f"git -C {root} apply {tmp_path}/run/p.diff && git apply p-3.diff"
    assert "num_workers=4" in data.read_text() and "fused=True" in train.read_text()
    assert (tmp_path / "run" / "p-2.diff").read_text() == "of the user\n"


def test_a_folder_in_a_folder_of_the_same_name_is_found_in_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    file = tmp_path / "src" / "src" / "train.py"
    file.parent.mkdir(parents=True)
    file.write_text(LOADER)
    monkeypatch.chdir(tmp_path / "src")
    run_printed(tmp_path / "src", ("loader", file, 1), changes={"num_workers": 4})
    assert "num_workers=4" in file.read_text()
    monkeypatch.chdir(tmp_path)
    assert place_in_patch(str(file)) == ("", "src/src/train.py")


def test_a_patch_whose_name_begins_with_a_dash_is_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        write_patch(Path("-p.diff"), Patch((FolderPatch("", "x"),)))
        == "patch written: git apply ./-p.diff"
    )


def test_a_link_to_a_file_whose_name_has_a_line_break_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a\nb.py").write_text(LOADER)
    (tmp_path / "train.py").symlink_to(tmp_path / "a\nb.py")
    with pytest.raises(OSError, match="control characters"):
        source(str(tmp_path / "train.py"))


def test_each_part_of_the_text_names_its_folder(tmp_path: Path) -> None:
    parts = FolderPatch("", "--- a/train.py\n"), FolderPatch("/lib", "--- a/data.py\n")
    assert patch_text(Patch(parts), {"num_workers": 4})[1:] == [
        "  in the current folder:", "  --- a/train.py", "  in /lib:", "  --- a/data.py",
    ]  # fmt: skip
    assert patch_text(Patch(parts[:1]), {"num_workers": 4})[1:] == ["  --- a/train.py"]
    assert patch_text(Patch(parts[1:]), {"num_workers": 4})[1:] == ["  in /lib:", "  --- a/data.py"]


def of_job(number: int, knobs: Knobs, **changes: Value) -> Run:
    """A run of the job in which `knobs` were observed, after `changes`."""
    return Run(str(number), "train.py", JOB, knobs, "cpu", changes=changes)


def test_kept_changes_are_what_the_console_changed() -> None:
    """The program may change the others by itself: the observed batch size is that of the largest
    batch so far."""
    first = of_job(1, {"num_workers": 0, "optim": "adamw", "batch_size": 50})
    second = of_job(
        2,
        {"num_workers": 4, "prefetch_factor": 2, "optim": "adamw", "batch_size": 57},
        num_workers=4,
    )
    third = of_job(3, {**second.knobs, "optim": "adamw_fused"}, optim="adamw_fused")
    assert kept_changes([first]) == {}
    assert kept_changes([first, second]) == {"num_workers": 4}
    assert kept_changes([first, second, third]) == {"num_workers": 4, "optim": "adamw_fused"}
    assert kept_changes([first, second, third, of_job(4, second.knobs, optim="adamw")]) == {
        "num_workers": 4
    }, "taken back"
    refused = msgspec.structs.replace(third, knobs=second.knobs)
    assert kept_changes([first, second, refused]) == {"num_workers": 4}, (
        "the program went back by itself"
    )


def test_the_patch_names_no_setting_that_the_console_left_alone(tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text("loader = DataLoader(data, batch_size=8)\n")
    first = of_job(1, {"num_workers": 0, "batch_size": 50})
    second = of_job(2, {"num_workers": 4, "prefetch_factor": 2, "batch_size": 57}, num_workers=4)
    second.job = JobFacts("train.py", sites=[Site("loader", str(code), 1)])
    _, lines = patch_of(
        Snapshot(
            created="", gpuconsole="", environment=Environment(), runs=[first, second], trials=[]
        )
    )
    assert lines[0] == "for your own code (num_workers=4):"


def test_a_loader_that_is_made_in_each_epoch_gets_a_hint(tmp_path: Path) -> None:
    """The workers of the trial lived on over epochs; those of the patched program start anew."""
    code = "for epoch in range(3):\n    for batch in DataLoader(d, 8):\n        pass\n"
    hint = (
        "# train.py:2 makes a DataLoader in each epoch, which starts new workers each time: make it"
        " once, before the epochs"
    )
    for again, lines in ((True, (hint,)), (False, ())):
        text, patch = patched(
            tmp_path, code, {"num_workers": 4}, Site("loader", "train.py", 2, again=again)
        )
        assert "DataLoader(d, 8, num_workers=4" in text and patch.lines == lines


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "x = DataLoader(d, 8, True, None, None, 2)\n",
            "x = DataLoader(d, 8, True, None, None, 4)\n",
        ),
        (
            "x = DataLoader(d, num_workers=(2 if a else 0))\n",
            "x = DataLoader(d, num_workers=(4))\n",
        ),
        (
            "x = DataLoader(d, sampler=(\n  a or b  # (\n))\n",
            "x = DataLoader(d, sampler=(\n  a or b  # (\n), num_workers=4)\n",
        ),
        (
            "x = DataLoader(d, collate_fn=((f)))\n",
            "x = DataLoader(d, collate_fn=((f)), num_workers=4)\n",
        ),
        (
            "y = '\x0c\u2028\x85'; x = DataLoader(d)\n",
            "y = '\x0c\u2028\x85'; x = DataLoader(d, num_workers=4)\n",
        ),
        ("\ufeffx = DataLoader(d)\r\n", "\ufeffx = DataLoader(d, num_workers=4)\r\n"),
        (
            "if 1:\r\n\tx = DataLoader(\r\n\t\td,  # ä\r\n\t)\r\n",
            "if 1:\r\n\tx = DataLoader(\r\n\t\td, num_workers=4,  # ä\r\n\t)\r\n",
        ),
    ],
)
def test_unusual_forms(tmp_path: Path, before: str, after: str) -> None:
    line = 2 if before.startswith("if") else 1
    text, patch = patched(tmp_path, before, {"num_workers": 4}, Site("loader", "train.py", line))
    assert text == after and not patch.lines


def test_characters_that_end_no_line_stand_before_the_call(tmp_path: Path) -> None:
    code = "a = 1\n\x0c\nb = '\u2028'\nx = DataLoader(d)\n"
    text, _ = patched(tmp_path, code, {"num_workers": 4}, Site("loader", "train.py", 4))
    assert text == code.replace("(d)", "(d, num_workers=4)")


VALIDATION = "val = DataLoader(v)\n"


@pytest.mark.parametrize(
    ("code", "site", "words"),
    [
        (
            "class Mine(DataLoader):\n    pass\ntrain = Mine(t)\n",
            Site("loader", "train.py", 3),
            "train.py:3 makes it by another call",
        ),
        (
            "class Mine(DataLoader):\n def __init__(self):\n  super().__init__(d)\n",
            Site("loader", "train.py", 3),
            "another call",
        ),
        (
            "make = partial(DataLoader, batch_size=8)\ntrain = make(t)\n",
            Site("loader", "train.py", 2),
            "another call",
        ),
        (
            "train = library.loader(t)\n",
            Site("loader", "train.py", 1, library="library"),
            "another call",
        ),
        ("train = DataLoader(i for i in t)\n", Site("loader", "train.py", 1), "unusual form"),
        ("train = DataLoader(*arguments)\n", Site("loader", "train.py", 1), "from a list (*)"),
        (
            "a, train = DataLoader(a), DataLoader(t)\n",
            Site("loader", "train.py", 1),
            "several calls of DataLoader",
        ),
        (
            "def make():\n    return 1\nx = DataLoader(a)\n",
            Site("loader", "train.py", 3, "make"),
            "the file has changed",
        ),
    ],
)
def test_no_other_call_is_changed_in_place_of_the_one_that_made_the_loader(
    tmp_path: Path, code: str, site: Site, words: str
) -> None:
    """A patch that applies and changes the validation would be worse than none."""
    text, patch = patched(tmp_path, code + VALIDATION, {"num_workers": 4}, site)
    assert text == code + VALIDATION and not patch.diff
    assert words in patch.lines[0]


def test_the_only_call_stands_for_a_library_that_makes_the_loader_again(tmp_path: Path) -> None:
    code = "def make(d):\n    return DataLoader(d)\ntrain = accelerator.prepare(make(t))\n"
    text, patch = patched(
        tmp_path,
        code,
        {"num_workers": 4},
        Site("loader", "train.py", 3, "<module>", library="accelerate"),
    )
    assert "return DataLoader(d, num_workers=4)\n" in text and not patch.lines


def test_a_file_in_another_encoding_is_not_patched(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_bytes("# coding: latin-1\nx = DataLoader('ä')\n".encode("latin-1"))
    facts = JobFacts("train.py", sites=[Site("loader", str(file), 2)])
    patch = make_patch({"num_workers": 4}, facts, BEFORE, source, lambda file: ("", file))
    assert not patch.diff and "not in UTF-8" in patch.lines[0]


def test_a_change_of_the_optimizer_is_one_of_all_optimizers(tmp_path: Path) -> None:
    """As in the trial: a GAN has one for the generator, and one for the discriminator."""
    code = "g = Adam(p)\nd = Adam(q, fused=False)\n"
    sites = Site("optimizer", "train.py", 2), Site("optimizer", "train.py", 1)
    text, patch = patched(tmp_path, code, {"optim": "adamw_fused"}, *sites)
    assert text == "g = Adam(p, fused=True)\nd = Adam(q, fused=True)\n" and not patch.lines


PROGRAM = "import d\n\ntrain = DataLoader(t, 8, shuffle=True)\nval = DataLoader(v, 8)\n"
TRAIN, VAL = PROGRAM.splitlines()[2:]
PATCHED = "train = DataLoader(t, 8, shuffle=True, num_workers=4)"
LINE = 3


STARTED_S = "gpuconsole.agent.hooks.watch.STARTED_S"


@pytest.fixture(autouse=True)
def job_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of these tests are newer than this process."""
    monkeypatch.setattr(STARTED_S, time.time() + 60.0)


def patched_later(
    folder: Path, code: str, edited: str, line: int = LINE, **site: str
) -> tuple[str, Patch]:
    """A program that was edited after the agent has seen it make the loader in `line`."""
    (folder / "program.py").write_text(code)
    facts = JobFacts(
        "train.py",
        sites=[Site("loader", "train.py", line, **site)],
        lines={"train.py": line_digests(str(folder / "program.py"))},
    )
    (folder / "train.py").write_bytes(edited.encode())
    patch = make_patch(
        {"num_workers": 4},
        facts,
        BEFORE,
        lambda file: (folder / file).read_bytes().decode(),
        lambda file: ("", file),
    )
    if patch.diff:
        (folder / "p.diff").write_bytes(patch.diff.encode())
        subprocess.run(["git", "apply", "p.diff"], cwd=folder, check=True)
    return (folder / "train.py").read_bytes().decode(), patch


@pytest.mark.parametrize(
    ("edited", "after"),
    [
        (PROGRAM, PROGRAM.replace(TRAIN, PATCHED)),
        ("# a note\n" + PROGRAM, "# a note\n" + PROGRAM.replace(TRAIN, PATCHED)),
        (
            PROGRAM.replace("import d\n", ""),
            PROGRAM.replace("import d\n", "").replace(TRAIN, PATCHED),
        ),
        (f"import d\n\n{VAL}\n{TRAIN}\n", f"import d\n\n{VAL}\n{PATCHED}\n"),
        (
            PROGRAM.replace("t, 8", "t, 16"),
            PROGRAM.replace(TRAIN, PATCHED.replace("t, 8", "t, 16")),
        ),
        (PROGRAM.replace(TRAIN, PATCHED), PROGRAM.replace(TRAIN, PATCHED)),
        (PROGRAM.replace(TRAIN, PATCHED.replace("4", "2")), PROGRAM.replace(TRAIN, PATCHED)),
        (
            "\ufeff" + PROGRAM.replace("\n", "\r\n"),
            "\ufeff" + PROGRAM.replace(TRAIN, PATCHED).replace("\n", "\r\n"),
        ),
    ],
)
def test_after_an_edit_during_the_job_the_patch_finds_the_line_that_the_job_has(
    tmp_path: Path, edited: str, after: str
) -> None:
    text, patch = patched_later(tmp_path, PROGRAM, edited)
    assert text == after and not patch.lines


@pytest.mark.parametrize(
    "edited",
    [
        PROGRAM.replace(TRAIN + "\n", ""),
        PROGRAM.replace("import d\n", "").replace(TRAIN + "\n", ""),
        PROGRAM.replace(TRAIN, "train = make(t)"),
        PROGRAM.replace(TRAIN, "train = DataLoader(\n    t, 8)"),
        PROGRAM.replace(TRAIN, "# one\n# two").replace("v, 8", "v, 9"),
        f"import d\n\n{VAL}\nx = 1\n",
    ],
)
def test_where_that_line_is_gone_nothing_is_changed(tmp_path: Path, edited: str) -> None:
    text, patch = patched_later(tmp_path, PROGRAM, edited)
    assert text == edited and not patch.diff and "not in the patch" in patch.lines[0], patch


@pytest.mark.parametrize(
    "edited", [(VAL, "a = 1", TRAIN), (VAL, "a = 1"), (VAL.replace("8", "16"), "a = 1", TRAIN)]
)
def test_a_line_that_took_the_place_of_another_is_not_that_line(
    tmp_path: Path, edited: tuple[str, ...]
) -> None:
    code = "\n".join(["import d", TRAIN, "a = 1", VAL, ""])
    text, patch = patched_later(tmp_path, code, "\n".join(["import d", *edited, ""]), line=2)
    assert edited[0] in text
    assert (
        (PATCHED in text or patch.lines)
        if TRAIN in edited
        else "not in the patch" in patch.lines[0]
    )


def test_a_call_over_several_lines_is_found_by_all_of_them(tmp_path: Path) -> None:
    train, val = (
        f"    DataLoader(\n        {name},\n        batch_size=8,\n    ),\n" for name in "tv"
    )
    code, without_train = f"loaders = [\n{train}{val}]\n", f"loaders = [\n{val}]\n"
    text, patch = patched_later(tmp_path, code, without_train, line=2)
    assert text == without_train and not patch.diff and "not in the patch" in patch.lines[0]
    text, _ = patched_later(tmp_path, code, f"# a note\n{code}", line=2)
    assert text == f"# a note\n{code}".replace("batch_size=8,", "batch_size=8, num_workers=4,", 1)


def test_a_line_that_a_library_needs_is_found_after_an_edit(tmp_path: Path) -> None:
    """Without the comparison of lines, line 3 would be that of the validation."""
    code = "train = DataLoader(t, 8)\nval = DataLoader(v, 8)\ntrain = prepare(train)\n"
    _, patch = patched_later(tmp_path, code, "# a note\n" + code, library="accelerate")
    assert not patch.diff and "several calls" in patch.lines[0]


def test_a_file_that_was_written_after_the_start_of_the_job_is_not_patched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reads a file when the program makes its first loader there, which may be minutes
    after Python has read the file."""
    monkeypatch.setattr(STARTED_S, time.time() - 60.0)
    _, patch = patched_later(tmp_path, PROGRAM, PROGRAM)
    assert not patch.diff and "train.py is not as it was at the start of the job" in patch.lines[0]
    monkeypatch.setattr(sys, "ps1", "> ", raising=False)
    assert patched_later(tmp_path, PROGRAM, PROGRAM)[1].diff, (
        "an interactive Python may have read it just now"
    )


def test_the_start_of_the_process_is_known() -> None:
    # psutil knows the start of the machine in whole seconds
    assert abs(process_start_s() - psutil.Process().create_time()) < 1.5


def test_the_lines_of_what_is_no_file_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("#" * (MAX_BYTES + 1))
    os.mkfifo(tmp_path / "pipe")
    files = ("<string>", "a\0b", str(tmp_path), str(tmp_path / "large.py"), str(tmp_path / "pipe"))
    assert [line_digests(file) for file in files] == [""] * 5
    assert line_digests(__file__) != "" and EDITED == model_job.EDITED


def test_no_warning_of_the_users_own_code_is_printed(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    _, patch = patched_later(
        tmp_path, "x = DataLoader(find('\\d'))\n", "x = DataLoader(find('\\d'))\n", line=1
    )
    assert patch.diff and not recwarn.list


def test_a_call_whose_line_is_not_its_first_is_found_by_all_of_its_lines(tmp_path: Path) -> None:
    """In a chain over lines, Python names the line of the last attribute."""
    train, val = (
        f"    torch.utils\n    .data.DataLoader(\n        {name},\n    ),\n" for name in "tv"
    )
    edited = f"loaders = [\n{val}]\n"
    text, patch = patched_later(tmp_path, f"loaders = [\n{train}{val}]\n", edited, line=3)
    assert text == edited and not patch.diff and "not as it was" in patch.lines[0]


def test_the_patch_of_workers_says_what_may_differ(tmp_path: Path) -> None:
    """Where git and patch skip it. Workers that live over epochs are for the author to decide: they
    do not see what the program changes between epochs."""
    code = "x = DataLoader(d)\n"
    text, patch = patched(tmp_path, code, {"num_workers": 4})
    assert text == code.replace("(d)", "(d, num_workers=4)")
    assert [part.diff.startswith(f"# {EFFECTS[MAY_DIFFER]}\n---") for part in patch.parts] == [True]
    facts = JobFacts("train.py", sites=[Site("loader", "train.py", 1)])
    assert in_own_code({"num_workers": 4}, facts, {}) == [
        "DataLoader(..., num_workers=4) at train.py:1",
        f"# {EFFECTS[MAY_DIFFER]}",
    ]
    assert len(in_own_code({"num_workers": 0}, facts, {"num_workers": 2})) == 1
