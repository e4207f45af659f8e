"""Replaces `print` and `os.fsync` after torch is imported, as programs with several processes do: only one of them prints. Then the agent goes off."""

import builtins
import logging  # before torch
import os
import pickle
import sys

import torch

assert [pickle.loads(pickle.dumps(call)) is call for call in (print, os.fsync, torch.save)] == [True] * 3
plain_print, plain_fsync = builtins.print, os.fsync


def print_on_one_process(*args, force=False, **kwargs):
    if force:
        plain_print(*args, **kwargs)


def fsync(fd):
    print("flushed", force=True)
    plain_fsync(fd)


def state():
    return [type(call).__name__ for call in (plain_print, os.fdatasync, os.fsync, builtins.print)]


builtins.print, os.fsync = print_on_one_process, fsync
before = state()
guard = sys.modules.get("_gpuconsole_agent.hooks.guard")
if guard is not None:
    assert before == [*["builtin_function_or_method"] * 2, *["function"] * 2] and not hasattr(logging.Logger.handle, "__wrapped__")
    guard.switch.off("", None)
print("of another process")
print("of this process", force=True)
with open(os.devnull, "wb") as file:
    try:
        os.fsync(file.fileno())
    except OSError:  # a device that is no file
        print("no file", force=True)
print(os.fdatasync, os.fsync is fsync, builtins.print is print_on_one_process, force=True)
