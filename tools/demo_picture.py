"""Play the demo, and draw what it printed: ``python tools/demo_picture.py docs/demo.svg``.

The picture has the demo's own lines, and nothing else. Which of them is decided by ``shown``; no word is
written or changed here. Beside it goes one for a phone (``docs/demo-phone.svg``), where a long line goes on
below its words.
"""

import io
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["narrow", "picture", "shown"]

ROOT = Path(__file__).resolve().parents[1]
#: The scenes whose verdicts are shown: what this package is for, in eight lines.
SCENES = ("1", "3", "5", "6")
TITLE = "make demo: four of its verdicts"
#: Seconds the demo may take: each group of its scenes gives up after 60.
PATIENCE = 240.0
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
#: Characters of a line on a phone.
PHONE = 46
#: What would tell of the machine: a path, or a process by its host's name.
PRIVATE = re.compile(r"(?<!\S)/\w|\w@\w|\b[a-z]\w*:\d{2,}")


def main(path: Path) -> None:
    """Play the demo and write the picture.

    Raises:
        SystemExit: the demo has failed, or what is shown tells of this machine.
    """
    played = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if played.returncode:
        raise SystemExit(f"the demo ended with status {played.returncode}:\n{played.stdout}")
    lines = shown(played.stdout.splitlines())
    if private := [line for line in lines if PRIVATE.search(line)]:
        raise SystemExit("this tells of the machine:\n" + "\n".join(private))
    path.write_text(picture(lines), encoding="utf-8")
    path.with_stem(f"{path.stem}-phone").write_text(picture(narrow(lines)), encoding="utf-8")


def shown(lines: Iterable[str]) -> list[str]:
    """Return the lines that the picture shows: verdicts, with what was seen, and the last line."""
    lines = list(lines)
    chosen = []
    scene = ""
    for line in lines:
        if verdict := re.match(r"\w+ +(\d+)\. ", line):
            scene = verdict[1]
        if scene in SCENES and (verdict or line.split(maxsplit=1)[:1] == ["seen"]):
            chosen.append(line)
    return [*chosen, lines[-1]]


def narrow(lines: Iterable[str]) -> list[str]:
    """Return the same words in lines that a phone has room for: one goes on below its words."""
    wrap = textwrap.TextWrapper(PHONE, subsequent_indent=" " * 10, break_on_hyphens=False).wrap
    # What was seen begins there as well; a list of figures is not broken.
    spaced = (re.sub(r"^ +seen +", "    seen  ", re.sub(r"(?<=\d), ", ",\xa0", line)) for line in lines)
    return [part for line in spaced for part in wrap(line)]


def picture(lines: Sequence[str]) -> str:
    """Return the lines as an SVG that loads nothing, whatever its reader's fonts are."""
    # Here, so that ``shown`` can be tested without it.
    from rich.console import Console  # noqa: PLC0415
    from rich.terminal_theme import MONOKAI  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(record=True, file=io.StringIO(), width=max(map(len, lines)) + 1)
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    drawn = console.export_svg(title=TITLE, theme=MONOKAI, unique_id="demo")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code, monospace", FONTS).replace("arial", "system-ui, sans-serif")
    drawn = drawn.replace("<svg ", '<svg role="img" ', 1).replace(">", f">\n    <title>{TITLE}</title>", 1)
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/demo_picture.py PATH")
    main(Path(sys.argv[1]))
