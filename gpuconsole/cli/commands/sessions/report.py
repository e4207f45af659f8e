"""`gpuconsole report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli.exits import OK
from gpuconsole.cli.files import check_sharing, read_snapshot, share
from gpuconsole.cli.options import SHARING, Option
from gpuconsole.report.share.markdown import markdown_page
from gpuconsole.report.share.session import session_document

HELP = "make a page of a session to share: HTML or Markdown"
DESCRIPTION = """Make a report of a session that other people can read: what was slow, the evidence, what was tried with speedups and intervals, charts
before and after, the environment, and whether the numbers are valid.

The HTML page is one file. It has no scripts, and it loads nothing. Without --html and --markdown, the report is printed as Markdown.
The report contains the name of this machine and the settings, and no environment variables. A command line is in it only with
--store-command."""
EXAMPLES = """examples:
  gpuconsole report session.json --html report.html
  gpuconsole report session.json --markdown report.md
  gpuconsole report session.json                         Markdown on stdout, for an issue tracker
"""
OPTIONS = (Option("file", "a snapshot (`gpuconsole run --snapshot`)", "SNAPSHOT", Path), *SHARING)


def run(args: argparse.Namespace) -> int:
    to_files = check_sharing(args)
    snapshot, _ = read_snapshot(args.file)
    document = session_document(snapshot)
    if to_files:
        share(args, document)
    else:
        print(markdown_page(document), end="")
    return OK
