"""`gpuconsole report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli.exits import OK
from gpuconsole.cli.files import (
    check_changes,
    check_sharing,
    patch_of,
    read_measured,
    share,
    write_patch,
)
from gpuconsole.cli.options import SHARING, CommandFailed, Option
from gpuconsole.cli.values import writable
from gpuconsole.report.share.markdown import markdown_page
from gpuconsole.report.share.session import session_document

HELP = "make a page of a session to share: HTML or Markdown"
DESCRIPTION = """Make a report of a session that other people can read: what was slow, the evidence,
what was tried with speedups and intervals, charts before and after, the environment, and whether
the numbers are valid.

The HTML page is one file. It has no scripts, and it loads nothing. Without --html and --markdown,
the report is printed as Markdown. The report contains the name of this machine and the settings,
and no environment variables. A command line is in it only with --store-command.

With --patch, the changes that were kept in a job of your own are written as a patch of its code,
for git apply. The source files must still be where the job had them."""
EXAMPLES = """examples:
  gpuconsole report session.json --html report.html
  gpuconsole report session.json --markdown report.md
  gpuconsole report session.json                         Markdown on stdout, for an issue tracker
  gpuconsole report session.json --patch faster.patch    the kept changes, for git apply
"""
PATCH = Option(
    "--patch",
    "write the changes that were kept in a job of your own as a patch of its code (git apply)",
    "FILE",
    Path,
)
OPTIONS = (
    Option(
        "file",
        (
            "a snapshot (`gpuconsole run --snapshot`), or a result file of another client"
            " (docs/serving.md)"
        ),
        "SNAPSHOT",
        Path,
    ),
    PATCH,
    *SHARING,
)


def run(args: argparse.Namespace) -> int:
    to_files = check_sharing(args)
    writable(args, "--patch")
    snapshot = read_measured(args.file)
    if args.patch is not None:
        check_changes(snapshot, args.file)
        patch, _ = patch_of(snapshot)
        if not patch.parts:
            raise CommandFailed("; ".join([write_patch(args.patch, patch), *patch.lines]))
        print(write_patch(args.patch, patch))
    if to_files or args.patch is None:
        document = session_document(snapshot)
        if to_files:
            share(args, document)
        else:
            print(markdown_page(document), end="")
    return OK
