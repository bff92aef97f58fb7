#!/usr/bin/env python3
"""The commands of pages in docs/, taken out of them to be run to the letter, and what they print held against what the page says.

A block ```sh is run. A block ```text behind it is what it prints: each line of the block stands in the output, in this order; `...` in a line is anything.
A block ```sh not run: REASON is left to the reader. All blocks of a page run in one shell, as somebody would who types them, and one that fails ends it.

    tests/docs/blocks.py write DIR PAGE...      makes DIR/run, which runs them and keeps what they print
    tests/docs/blocks.py compare DIR PAGE...    after that; ends with `N passed, N failed`
"""
import pathlib
import re
import sys

FENCE = re.compile(r"^```(.*)$")


class Block:
    def __init__(self, page, line, info):
        self.page, self.line, self.info, self.lines, self.says = page, line, info, [], None

    @property
    def name(self):
        return f"{self.page.stem}-{self.line}"

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


def fenced(page):
    """All fenced blocks of a page."""
    block = None
    for i, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence and block is None:
            block = Block(page, i, fence[1].strip())
        elif fence:
            yield block
            block = None
        elif block:
            block.lines.append(line)
    if block:
        raise SystemExit(f"{page}:{block.line}: the block does not end")


def to_run(page):
    """The blocks that are run, each with the lines that it is to print."""
    found = []
    for b in fenced(page):
        if b.info == "sh":
            found.append(b)
        elif b.info == "text" and found and found[-1].says is None:
            found[-1].says = b.lines
        elif b.info.startswith("sh ") and not b.info.startswith("sh not run: "):
            raise SystemExit(f"{page}:{b.line}: a block is `sh`, or `sh not run: REASON`")
    return found


def write(folder, pages):
    folder.mkdir(parents=True, exist_ok=True)
    run = ["#!/bin/bash", "set -e", 'here=$(cd "$(dirname "$0")" && pwd)', "trap 'echo \"$? in $block\" >\"$here/ended\"' EXIT"]
    for page in pages:
        blocks = to_run(page)
        if not blocks:
            raise SystemExit(f"{page}: nothing to run")
        for b in blocks:
            (folder / f"{b.name}.sh").write_text(b.text)
            run += [f'block={b.name}; echo "--- {page}:{b.line} after $SECONDS s"', f'{{ . "$here/{b.name}.sh"; }} </dev/null >"$here/{b.name}.out" 2>&1']
    run += ["block=end"]
    (folder / "run").write_text("\n".join(run) + "\n")
    (folder / "run").chmod(0o755)


def missing(says, printed):
    """The first line of `says` that does not stand in `printed` behind those before it, or None."""
    rest = iter(printed.splitlines())
    for line in says:
        want = ".*".join(re.escape(part) for part in line.strip().split("...")).replace("\\ ", r"\ +")
        if line.strip() and not any(re.fullmatch(want, got.strip()) for got in rest):
            return line
    return None


def compare(folder, pages):
    passed = failed = 0
    for page in pages:
        for b in to_run(page):
            out = folder / f"{b.name}.out"
            printed = out.read_text(errors="replace") if out.exists() else None
            wrong = "it was not run" if printed is None else None
            if printed is not None and b.says and (line := missing(b.says, printed)) is not None:
                wrong = f"it does not print: {line}"
            if wrong:
                failed += 1
                print(f"FAIL {page}:{b.line}: {wrong}\n{b.text}--- printed:\n{printed or ''}")
            else:
                passed += 1
    ended = (folder / "ended").read_text().strip() if (folder / "ended").exists() else "never"
    if ended != "0 in end":
        failed += 1
        out = folder / f"{ended.split()[-1]}.out"
        print(f"FAIL ended with status {ended}\n{out.read_text(errors='replace')[-4000:] if out.exists() else ''}")
    print(f"{passed} passed, {failed} failed")
    return failed == 0


def main():
    if len(sys.argv) < 4 or sys.argv[1] not in ("write", "compare"):
        sys.exit(__doc__)
    folder, pages = pathlib.Path(sys.argv[2]), [pathlib.Path(p) for p in sys.argv[3:]]
    if sys.argv[1] == "write":
        write(folder, pages)
    elif not compare(folder, pages):
        sys.exit(1)


if __name__ == "__main__":
    main()
