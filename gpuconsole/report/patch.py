"""The lines for the user's own code: kept changes of a job as a patch for `git apply`. Nothing here writes a file of the user."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gpuconsole.model.job import JobFacts, Site
from gpuconsole.model.knobs.catalogue import Knobs, Value, show

CLASSES = {
    "loader": ("DataLoader",),
    "optimizer": ("AdamW", "Adam"),
    "arguments": ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig"),
}
"""Names of the calls that decide a setting, by the kind of their site. `arguments`: the arguments of the HF Trainer."""
TRAINER = "transformers"
FLAGS: dict[Value, dict[str, Value]] = {
    "adamw": {"fused": False, "foreach": False},
    "adamw_foreach": {"foreach": True},
    "adamw_fused": {"fused": True},
}
"""Arguments of torch.optim.AdamW for each implementation."""
OF_WORKERS: dict[str, Value | None] = {"persistent_workers": False, "prefetch_factor": None, "multiprocessing_context": None, "timeout": 0}
"""Arguments of a DataLoader that need workers, and their defaults."""
OPTIMIZERS_OF_TRAINER: dict[Value, str] = {"adamw": "adamw_torch", "adamw_foreach": "adamw_torch", "adamw_fused": "adamw_torch_fused"}
COMPILED: dict[Value, str] = {mode: f'model.compile(mode="{mode}")' for mode in ("reduce-overhead", "max-autotune")}
LINES: dict[str, dict[Value, str]] = {
    "precision": {
        "bf16": "with torch.autocast(device_type, dtype=torch.bfloat16): output = model(batch)  # then the loss in fp32",
        "tf32": 'torch.set_float32_matmul_precision("high")',
    },
    "cudnn_benchmark": {True: "torch.backends.cudnn.benchmark = True", False: "torch.backends.cudnn.benchmark = False"},
    "channels_last": {True: "model = model.to(memory_format=torch.channels_last)  # before the optimizer is made"},
    "torch_compile": COMPILED | {"default": "model.compile()"},
}
"""Lines for changes that have no argument in one call."""


NEW_WORKERS = "makes a DataLoader in each epoch, which starts new workers each time: make it once, before the epochs"


class Patch(msgspec.Struct, frozen=True):
    """`diff`: a unified diff, empty where no file can be patched. `lines`: what the user must write by hand, each with the reason."""

    diff: str = ""
    lines: tuple[str, ...] = ()


class NotPatchable(Exception):
    """The call cannot be changed by machine; the message is the reason."""


def make_patch(changes: Knobs, facts: JobFacts, before: Knobs, source: Callable[[str], str], name: Callable[[str], str]) -> Patch:
    """The patch for `changes`. `before`: the knobs of the program. `source` returns the text of a file (raises OSError), `name` its name in
    the diff."""
    files: dict[str, _File] = {}
    lines = []
    for kind, arguments in _arguments(changes, before, facts).items():
        try:
            place = _place(kind, facts)
            file = files.get(place.file) or _File(source(place.file))
            file.change(place, kind, arguments)
            files[place.file] = file
        except (OSError, NotPatchable) as problem:
            why = problem.strerror if isinstance(problem, OSError) else str(problem)
            lines.append(f"{_call(kind, arguments)}  # not in the patch: {why}")
        else:
            if place.again and not place.library and arguments.get("num_workers"):
                lines.append(f"# {name(place.file)}:{place.line} {NEW_WORKERS}")
    for knob, values in LINES.items():
        if knob in changes and (line := values.get(changes[knob])) and not (knob == "precision" and _by_trainer(facts)):
            lines.append(line)
    diff = "".join(file.diff(name(path)) for path, file in files.items())
    return Patch(diff, tuple(lines))


def in_own_code(changes: Knobs, facts: JobFacts, before: Knobs) -> list[str]:
    """What the user would write for `changes`, a line for each call, with the place where the program has it."""
    calls = []
    for kind, arguments in _arguments(changes, before, facts).items():
        site = next((site for site in facts.sites if site.kind == ("loader" if kind == "arguments" else kind)), None)
        calls.append(_call(kind, arguments) + (f" at {os.path.basename(site.file)}:{site.line}" if site and kind != "arguments" else ""))
    return calls + [line for knob, values in LINES.items() if (line := values.get(changes.get(knob, "")))]


def _by_trainer(facts: JobFacts) -> bool:
    return any(site.library == TRAINER for site in facts.sites)


def _arguments(changes: Knobs, before: Knobs, facts: JobFacts) -> dict[str, dict[str, Value]]:
    """The arguments to set, by the kind of the call."""
    loader: dict[str, Value] = {name: changes[name] for name in ("num_workers", "prefetch_factor", "pin_memory") if name in changes}
    if loader.get("num_workers") == 0:
        loader.pop("prefetch_factor", None)
    if loader.get("num_workers") and not before.get("num_workers"):
        loader["persistent_workers"] = True  # as the console's own workers did
    optimizer = dict(FLAGS.get(changes.get("optim", ""), {}))
    if not _by_trainer(facts):
        return {kind: arguments for kind, arguments in (("loader", loader), ("optimizer", optimizer)) if arguments}
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
    if arguments.get("dataloader_num_workers") == 0:  # the HF Trainer has no arguments for the two others
        return {f"dataloader_{name}": OF_WORKERS[name] for name in ("persistent_workers", "prefetch_factor")}
    return {}


def _call(kind: str, arguments: dict[str, Value]) -> str:
    return f"{CLASSES[kind][0]}(..., {', '.join(f'{name}={_code(value)}' for name, value in arguments.items())})"


def _code(value: Value | None) -> str:
    return repr(value)


def _place(kind: str, facts: JobFacts) -> Site:
    """The site whose call decides. For the HF Trainer: its file; the call is looked for there."""
    of = "loader" if kind == "arguments" else kind
    site = next((site for site in facts.sites if site.kind == of), None)
    if site is None:
        raise NotPatchable("the line is not known")
    return site


@dataclass
class _File:
    """A file under change. `edits`: start, end and new text, in bytes of the source."""

    text: str
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    def change(self, site: Site, kind: str, arguments: dict[str, Value]) -> None:
        """Set keyword arguments of the call at `site`. Raises NotPatchable."""
        try:
            tree = ast.parse(self.text)
        except SyntaxError:
            raise NotPatchable("the file has changed") from None
        call = _find(tree, kind, None if kind == "arguments" else site.line)
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        dicts = [keyword.value for keyword in call.keywords if keyword.arg is None]
        if len(dicts) > 1:
            raise NotPatchable(f"the call at {os.path.basename(site.file)}:{call.lineno} takes its arguments from several dicts (**)")
        unset = {name: value for name, value in _excluded(arguments).items() if name in given or dicts}
        wanted = unset | arguments
        for name in given.keys() & wanted.keys():
            self.edits.append((self._start(given[name]), self._end(given[name]), _code(wanted[name])))
        new = {name: value for name, value in wanted.items() if name not in given}
        if new and dicts:
            self._merge(dicts[0], new)
        elif new:
            last = max((self._end(argument) for argument in (*call.args, *given.values())), default=0)
            start = last or self._end(call) - 1
            self.edits.append((start, start, (", " if last else "") + ", ".join(f"{name}={_code(value)}" for name, value in new.items())))

    def _merge(self, unpacked: ast.expr, new: Mapping[str, Value | None]) -> None:
        """Let `new` win over the dict that the call unpacks. The dict itself stays as it is: other calls may use it, and other lines may fill it."""
        start, end = self._start(unpacked), self._offset(unpacked.end_lineno or 0, unpacked.end_col_offset or 0)
        text = self.text.encode()[start:end].decode()
        if not isinstance(unpacked, ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Dict):
            text = f"({text})"
        self.edits.append((start, end, f"{{**{text}, {', '.join(f'{name!r}: {_code(value)}' for name, value in new.items())}}}"))

    def diff(self, name: str) -> str:
        """The unified diff of this file."""
        data = self.text.encode()
        for start, end, text in sorted(self.edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        before, after = self.text.splitlines(keepends=True), data.decode().splitlines(keepends=True)
        return "".join(_ended(line) for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))

    def _start(self, node: ast.expr) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _offset(self, line: int, column: int) -> int:
        return len("".join(self.text.splitlines(keepends=True)[: line - 1]).encode()) + column

    def _end(self, node: ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        end = self._offset(node.end_lineno, node.end_col_offset)
        data = self.text.encode()
        while isinstance(node, ast.expr) and data[end : end + 1] == b")" and _opens(data, self._start(node)):
            end += 1  # a generator or tuple in parentheses of its own
            break
        return end


def _opens(data: bytes, start: int) -> bool:
    """Whether the expression at `start` stands in parentheses of its own."""
    before = data[:start].rstrip()
    return before.endswith(b"(") and before[:-1].rstrip()[-1:] in (b"=", b",", b"(")


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _find(tree: ast.Module, kind: str, line: int | None) -> ast.Call:
    """The call of this kind that spans `line`, the innermost one; without a line, or where that line has none, the only such call."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in CLASSES[kind]]
    here = [call for call in calls if line is not None and call.lineno <= line <= (call.end_lineno or call.lineno)]
    if here:
        return min(here, key=lambda call: (call.end_lineno or 0) - call.lineno)
    if len(calls) == 1:
        return calls[0]
    names = " or ".join(CLASSES[kind][:2])
    raise NotPatchable(f"no call of {names} in the script" if not calls else f"several calls of {names} in the script")


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def patch_text(patch: Patch, changes: Knobs) -> list[str]:
    """The patch for people: what it does, the diff, and the other lines."""
    if not patch.diff and not patch.lines:
        return []
    shown: Sequence[str] = patch.diff.splitlines()
    settings = ", ".join(f"{name}={show(value)}" for name, value in changes.items())
    return [f"for your own code ({settings}):", *(f"  {line}" for line in shown), *(f"  {line}" for line in patch.lines)]
