"""`python -m tests.tui.golden`: which pictures differ from the files; `--write` writes them,
`--show NAME` prints one."""

from __future__ import annotations

import argparse

from tests.tui.golden.pictures import ALL, path_of, picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write all files again")
    parser.add_argument(
        "--show",
        metavar="NAME",
        choices=sorted({name for name, _ in ALL}),
        help="print this situation at every size",
    )
    args = parser.parse_args()
    for name, size in ALL:
        if args.show:
            if name == args.show:
                print(picture(name, size))
            continue
        path, shown = path_of(name, size), picture(name, size)
        changed = not path.exists() or path.read_text() != shown
        if changed and args.write:
            path.write_text(shown)
        if changed:
            print(path.name)


if __name__ == "__main__":
    main()
