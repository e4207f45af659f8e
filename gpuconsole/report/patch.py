"""The lines for the user's own code: kept changes of a job as a patch for `git apply`. Nothing here
writes a file of the user."""

from __future__ import annotations

import ast
import copy
import difflib
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from gpuconsole.model.job import EDITED, EFFECTS, MAY_DIFFER, JobFacts, Site
from gpuconsole.model.knobs.catalogue import Knobs, Value, show

CLASSES = {
    "loader": ("DataLoader",),
    "optimizer": ("AdamW", "Adam"),
    "arguments": ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig"),
}
"""Names of the calls that decide a setting, by the kind of their site. `arguments`: the arguments
of the HF Trainer."""
TRAINER = "transformers"
MAKE_AGAIN = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")
"""Libraries that make the program's DataLoader anew: the line that calls them is not the line that
decides."""
POSITIONS = (
    *(
        "dataset",
        "batch_size",
        "shuffle",
        "sampler",
        "batch_sampler",
        "num_workers",
        "collate_fn",
        "pin_memory",
        "drop_last",
        "timeout",
    ),
    *("worker_init_fn", "multiprocessing_context", "generator"),
)
"""Arguments that a DataLoader takes without their names."""
FLAGS: dict[Value, dict[str, Value]] = {
    "adamw": {"fused": False, "foreach": False},
    "adamw_foreach": {"foreach": True},
    "adamw_fused": {"fused": True},
}
"""Arguments of torch.optim.AdamW for each implementation."""
OF_WORKERS: dict[str, Value | None] = {
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
}
"""Arguments of a DataLoader that need workers, and their defaults."""
OPTIMIZERS_OF_TRAINER: dict[Value, str] = {
    "adamw": "adamw_torch",
    "adamw_foreach": "adamw_torch",
    "adamw_fused": "adamw_torch_fused",
}
COMPILED: dict[Value, str] = {
    mode: f'model.compile(mode="{mode}")' for mode in ("reduce-overhead", "max-autotune")
}
LINES: dict[str, dict[Value, str]] = {
    "precision": {
        "bf16": (
            "with torch.autocast(device_type, dtype=torch.bfloat16): output = model(batch)  # then"
            " the loss in fp32"
        ),
        "tf32": 'torch.set_float32_matmul_precision("high")',
    },
    "cudnn_benchmark": {
        True: "torch.backends.cudnn.benchmark = True",
        False: "torch.backends.cudnn.benchmark = False",
    },
    "channels_last": {
        True: "model = model.to(memory_format=torch.channels_last)  # before the optimizer is made"
    },
    "torch_compile": COMPILED | {"default": "model.compile()"},
}
"""Lines for changes that have no argument in one call."""


AHEAD = f"# {EFFECTS[MAY_DIFFER]}"
NEW_WORKERS = (
    "makes a DataLoader in each epoch, which starts new workers each time: make it once, before the"
    " epochs"
)


class FolderPatch(msgspec.Struct, frozen=True):
    """A unified diff whose paths begin in `folder`: there `git apply` accepts it. An empty `folder`
    is the current folder."""

    folder: str
    diff: str

    @property
    def where(self) -> str:
        return f"in {self.folder or 'the current folder'}:"


class Patch(msgspec.Struct, frozen=True):
    """`parts`: a diff for each folder, none where no file can be patched. `lines`: what the user
    must write by hand, each with the reason."""

    parts: tuple[FolderPatch, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """All parts as one text for people. Of several parts, each has a line that names its
        folder."""
        if len(self.parts) == 1:
            return self.parts[0].diff
        return "".join(f"{part.where}\n{part.diff}" for part in self.parts)


class NotPatchable(Exception):
    """The call cannot be changed by machine; the message is the reason."""


def make_patch(
    changes: Knobs,
    facts: JobFacts,
    before: Knobs,
    source: Callable[[str], str],
    place_of: Callable[[str], tuple[str, str]],
) -> Patch:
    """Return the patch for `changes`. `before`: the knobs of the program. `source` returns the text
    of a file (raises OSError), `place_of` the folder in which its patch is applied (empty: the
    current folder) and its path from there."""
    files: dict[str, _PatchedFile] = {}
    lines = []
    for kind, arguments in _arguments(changes, facts).items():
        for place in _places(kind, facts):
            try:
                if place is None:
                    raise NotPatchable("the line is not known")
                file = files.get(place.file) or _PatchedFile(
                    source(place.file), facts.lines.get(place.file, "")
                )
                here = place if kind == "arguments" else file.present(place)
                file.change(here, kind, arguments)
                files[place.file] = file
            except (OSError, NotPatchable) as problem:
                why = problem.strerror if isinstance(problem, OSError) else str(problem)
                lines.append(f"{_call(kind, arguments)}  # not in the patch: {why}")
            else:
                if place.again and not place.library and arguments.get("num_workers"):
                    lines.append(f"# {place_of(here.file)[1]}:{here.line} {NEW_WORKERS}")
    for knob, values in LINES.items():
        if (
            knob in changes
            and (line := values.get(changes[knob]))
            and not (knob == "precision" and _by_trainer(facts))
        ):
            lines.append(line)
    diffs: dict[str, str] = {}
    for path, file in files.items():
        folder, name = place_of(path)
        diffs[folder] = diffs.get(folder, "") + file.diff(name)
    # git apply and patch skip lines before the first file
    ahead = f"{AHEAD}\n" if _has_workers(changes, before) else ""
    return Patch(
        tuple(FolderPatch(folder, ahead + diff) for folder, diff in diffs.items() if diff),
        tuple(lines),
    )


def in_own_code(changes: Knobs, facts: JobFacts, before: Knobs) -> list[str]:
    """What the user would write for `changes`, a line for each call, with the place where the
    program has it."""
    calls = []
    for kind, arguments in _arguments(changes, facts).items():
        site = next(
            (
                site
                for site in facts.sites
                if site.kind == ("loader" if kind == "arguments" else kind)
            ),
            None,
        )
        calls.append(
            _call(kind, arguments)
            + (
                f" at {os.path.basename(site.file)}:{site.line}"
                if site and kind != "arguments"
                else ""
            )
        )
    calls += [AHEAD] * _has_workers(changes, before)
    return calls + [
        line for knob, values in LINES.items() if (line := values.get(changes.get(knob, "")))
    ]


def _has_workers(changes: Knobs, before: Knobs) -> bool:
    """Whether `changes` are of a loader that has workers then."""
    return any(name in changes for name in ("num_workers", "prefetch_factor")) and bool(
        changes.get("num_workers", before.get("num_workers"))
    )


def _by_trainer(facts: JobFacts) -> bool:
    return any(site.library == TRAINER for site in facts.sites)


def _arguments(changes: Knobs, facts: JobFacts) -> dict[str, dict[str, Value]]:
    """The arguments to set, by the kind of the call."""
    loader: dict[str, Value] = {
        name: changes[name]
        for name in ("num_workers", "prefetch_factor", "pin_memory")
        if name in changes
    }
    if loader.get("num_workers") == 0:
        loader.pop("prefetch_factor", None)
    optimizer = dict(FLAGS.get(changes.get("optim", ""), {}))
    if not _by_trainer(facts):
        return {
            kind: arguments
            for kind, arguments in (("loader", loader), ("optimizer", optimizer))
            if arguments
        }
    trainer: dict[str, Value] = {f"dataloader_{name}": value for name, value in loader.items()}
    if optimizer:
        trainer["optim"] = OPTIMIZERS_OF_TRAINER[changes["optim"]]
    if changes.get("precision") in ("bf16", "tf32"):
        trainer[str(changes["precision"])] = True
    return {"arguments": trainer} if trainer else {}


def _excluded(arguments: dict[str, Value]) -> dict[str, Value | None]:
    """Arguments that torch refuses beside `arguments`, with their defaults."""
    if arguments.get("fused") is True:
        return {"foreach": False}
    if arguments.get("num_workers") == 0:
        return dict(OF_WORKERS)
    # the HF Trainer has no arguments for the two others
    if arguments.get("dataloader_num_workers") == 0:
        return {
            f"dataloader_{name}": OF_WORKERS[name]
            for name in ("persistent_workers", "prefetch_factor")
        }
    return {}


def _call(kind: str, arguments: dict[str, Value]) -> str:
    return (
        f"{CLASSES[kind][0]}(..., "
        f"{', '.join(f'{name}={_code(value)}' for name, value in arguments.items())})"
    )


def _code(value: Value | None) -> str:
    return repr(value)


def _places(kind: str, facts: JobFacts) -> list[Site | None]:
    """The sites whose calls decide. For the HF Trainer: its file; the call is looked for there. A
    change of the optimizer is one of all optimizers."""
    of = "loader" if kind == "arguments" else kind
    sites = [site for site in facts.sites if site.kind == of]
    return [*(sites if kind == "optimizer" else sites[:1])] or [None]


BOM = "\ufeff"
LINE_OF_PYTHON = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Python counts them. `str.splitlines` also ends lines at form feeds, and at characters
that a string may hold."""
LINE_OF_DIFF = re.compile(r"[^\n]*\n|[^\n]+")
Edit = tuple[int, int, str]
"""Start, end and new text, in bytes of the source."""


class _PatchedFile:
    """A file under change. `digests`: the checksums of its lines in the job, from `JobFacts.lines`.
    Raises NotPatchable for one that is no Python source in UTF-8."""

    def __init__(self, text: str, digests: str) -> None:
        self._bom = BOM if text.startswith(BOM) else ""
        self._text = text.removeprefix(BOM)
        try:
            self._data = self._text.encode()
            with warnings.catch_warnings(action="ignore"):  # of the user's own code
                self._tree = ast.parse(self._text)
        except UnicodeEncodeError:
            raise NotPatchable("the file is not in UTF-8") from None
        except (SyntaxError, ValueError):
            raise NotPatchable("the file has changed") from None
        self._edits: list[Edit] = []
        starts = [0]
        for line in LINE_OF_PYTHON.findall(self._text):
            starts.append(starts[-1] + len(line.encode()))
        self._starts = starts
        self._digests = digests
        self._former: dict[int, int] = {}
        """For each present line the line of the job that it is, or that it replaces (both from 1).
        Empty where the text is the same."""

    def present(self, site: Site) -> Site:
        """`site` with its line in the present text. Raises NotPatchable where that line is not
        found."""
        digests = self._digests
        if not digests:
            return site
        former = [digests[at : at + 4] for at in range(0, len(digests), 4)]
        present = [f"{zlib.crc32(text.rstrip()) & 0xFFFF:04x}" for text in self._data.splitlines()]
        if former == present:
            return site
        changes = (
            []
            if digests == EDITED
            else difflib.SequenceMatcher(None, former, present, autojunk=False).get_opcodes()
        )
        for change, begin, end, at, last in changes:
            was, now = former[begin:end], present[at:last]
            # by hand, or by an earlier patch
            edited = len(was) == len(now) and not {*was} & {*present} and not {*now} & {*former}
            if change == "equal" or edited:
                self._former |= {at + n + 1: begin + n + 1 for n in range(end - begin)}
        for line, before in self._former.items():
            if before == site.line:
                return msgspec.structs.replace(site, line=line)
        raise NotPatchable(self._edited_during_job(site))

    def _check(self, call: ast.Call, site: Site) -> None:
        """Raises NotPatchable where a line of `call` does not belong to the same call of the
        job."""
        last = call.end_lineno or call.lineno
        if self._former and call.lineno <= site.line <= last:
            offset = self._former.get(site.line, 0) - site.line
            if any(
                self._former.get(line) != line + offset for line in range(call.lineno, last + 1)
            ):
                raise NotPatchable(self._edited_during_job(site))

    @staticmethod
    def _edited_during_job(site: Site) -> str:
        return f"{os.path.basename(site.file)} is not as it was at the start of the job"

    def change(self, site: Site, kind: str, arguments: dict[str, Value]) -> None:
        """Set arguments of the call at `site`. Raises NotPatchable; everything is then as
        before."""
        tree = copy.deepcopy(self._tree)
        call = _find(tree, kind, site)
        self._check(call, site)
        place = f"the call at {os.path.basename(site.file)}:{call.lineno}"
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            raise NotPatchable(f"{place} takes its arguments from a list (*)")
        dicts = [keyword for keyword in call.keywords if keyword.arg is None]
        if len(dicts) > 1:
            raise NotPatchable(f"{place} takes its arguments from several dicts (**)")
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        if kind == "loader":
            given |= dict(zip(POSITIONS, call.args, strict=False))
        unset = {
            name: value for name, value in _excluded(arguments).items() if name in given or dicts
        }
        wanted = unset | arguments
        edits = [
            (self._start(given[name]), self._end(given[name]), _code(wanted[name]))
            for name in given.keys() & wanted.keys()
        ]
        new = {name: value for name, value in wanted.items() if name not in given}
        if new and dicts:
            edits.append(self._merged(dicts[0].value, new))
        elif new:
            edits.append(self._added(call, new))
        _set(call, given, wanted, dicts[0] if dicts else None)
        edits += self._edits
        try:
            with warnings.catch_warnings(action="ignore"):
                right = ast.dump(ast.parse(self._edited(edits))) == ast.dump(tree)
        except SyntaxError:
            right = False
        if not right:
            raise NotPatchable(f"{place} has an unusual form")
        self._tree, self._edits = tree, edits

    def _added(self, call: ast.Call, new: Mapping[str, Value | None]) -> Edit:
        """`new` as further arguments of a call, behind the last one and the parentheses around
        it."""
        text = ", ".join(f"{name}={_code(value)}" for name, value in new.items())
        closing = self._end(call) - 1
        last = max(
            (
                self._end(argument)
                for argument in (*call.args, *(keyword.value for keyword in call.keywords))
            ),
            default=0,
        )
        if not last:
            return closing, closing, text
        start = at = min(last, closing)
        while at < closing:
            if self._data[at : at + 1] == b"#":
                at = self._data.index(b"\n", at)
            elif self._data[at : at + 1] == b")":
                start = at + 1
            at += 1
        return start, start, f", {text}"

    def _merged(self, unpacked: ast.expr, new: Mapping[str, Value | None]) -> Edit:
        """Let `new` win over the dict that the call unpacks. The dict itself stays as it is: other
        calls may use it, and other lines may fill it."""
        start, end = self._start(unpacked), self._end(unpacked)
        text = self._data[start:end].decode()
        if not isinstance(unpacked, ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Dict):
            text = f"({text})"
        return (
            start,
            end,
            (
                f"{{**{text}, "
                f"{', '.join(f'{name!r}: {_code(value)}' for name, value in new.items())}}}"
            ),
        )

    def _edited(self, edits: Sequence[Edit]) -> str:
        data = self._data
        for start, end, text in sorted(edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()

    def diff(self, name: str) -> str:
        """The unified diff of this file."""
        before, after = (
            LINE_OF_DIFF.findall(self._bom + text)
            for text in (self._text, self._edited(self._edits))
        )
        return "".join(
            _ended(line) for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        )

    def _start(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset


def _set(
    call: ast.Call,
    given: Mapping[str, ast.expr],
    wanted: Mapping[str, Value | None],
    unpacked: ast.keyword | None,
) -> None:
    """Make a call of the syntax tree what the patched source must be."""
    values = {name: ast.Constant(value) for name, value in wanted.items()}
    replaced = {id(given[name]): values[name] for name in given.keys() & values.keys()}
    call.args = [replaced.get(id(argument), argument) for argument in call.args]
    for keyword in call.keywords:
        keyword.value = replaced.get(id(keyword.value), keyword.value)
    new = {name: value for name, value in values.items() if name not in given}
    if new and unpacked is not None:
        unpacked.value = ast.Dict([None, *map(ast.Constant, new)], [unpacked.value, *new.values()])
    else:
        call.keywords += [ast.keyword(name, value) for name, value in new.items()]


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _find(tree: ast.Module, kind: str, site: Site) -> ast.Call:
    """The call of this kind at the line of `site`. The only such call of the file, where the line
    calls a library that makes the object again, and for the arguments of the HF Trainer. No other
    call would do: it may be that of the validation, beside a class or a function that makes the
    loader."""
    calls = {
        node: scope for node, scope in _calls(tree, "<module>") if _called(node) in CLASSES[kind]
    }
    names, place = " or ".join(CLASSES[kind][:2]), f"{os.path.basename(site.file)}:{site.line}"
    here = [call for call in calls if call.lineno <= site.line <= (call.end_lineno or call.lineno)]
    here = [call for call in here if call.lineno == site.line] or here
    if kind == "arguments" or (site.library in MAKE_AGAIN and not here):
        here = list(calls)
    if not calls or (len(calls) > 1 and len(here) != 1):
        raise NotPatchable(
            f"no call of {names} in the script"
            if not calls
            else f"several calls of {names} in the script"
        )
    if not here:
        raise NotPatchable(f"{place} makes it by another call than {names}")
    if kind == "arguments" or site.library in MAKE_AGAIN:
        return here[0]
    if site.function and site.function not in (calls[here[0]], *OWN_SCOPES):
        raise NotPatchable("the file has changed")
    return here[0]


OWN_SCOPES = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def _calls(node: ast.AST, scope: str) -> Iterator[tuple[ast.Call, str]]:
    """The calls below `node`, each with the name of the function or the class around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, scope
        inner = (
            child.name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else scope
        )
        yield from _calls(child, inner)


def _called(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else ""
    )


def patch_text(patch: Patch, changes: Knobs) -> list[str]:
    """The patch for people: what it does, the diff, and the other lines."""
    if not patch.diff and not patch.lines:
        return []
    shown = [
        row
        for part in patch.parts
        for row in (
            *([part.where] if part.folder or patch.parts[1:] else []),
            *part.diff.splitlines(),
        )
    ]
    settings = ", ".join(f"{name}={show(value)}" for name, value in changes.items())
    return [
        f"for your own code ({settings}):",
        *(f"  {line}" for line in shown),
        *(f"  {line}" for line in patch.lines),
    ]
