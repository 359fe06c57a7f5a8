"""Files that make an editor run gradfix on a project.

They lie beside this file, one folder an editor, each file where it goes in the project.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TEMPLATES = Path(__file__).parent
NEXT = {
    "pycharm": "The watcher needs PyCharm's plugin File Watchers. For Tools > External Tools, copy {tools} into the "
    "folder `tools` of PyCharm's configuration.",
    "vscode": "Run it with Terminal > Run Task > gradfix; what it finds is under Problems.",
    "neovim": "Neovim 0.9 reads it with `:set exrc`, once you trust it; older ones with `:luafile {nvim}`.",
    "vim": "In Vim: `:set runtimepath+={vim}`, then `:compiler gradfix` and `:make`.",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A file to write: where, what is there now (None: nothing), and what is to be there."""

    path: Path
    old: str | None
    new: str

    @property
    def in_the_way(self) -> bool:
        """Whether somebody's file would be lost."""
        return self.old is not None and self.old != self.new

    def diff(self) -> Iterator[str]:
        """A unified diff, line by line."""
        name = self.path.as_posix().lstrip("/")
        old = "/dev/null" if self.old is None else f"a/{name}"
        before = (self.old or "").splitlines()
        yield from difflib.unified_diff(before, self.new.splitlines(), old, f"b/{name}", lineterm="")


def planned(editor: str, folder: Path) -> list[Planned]:
    """The files of `editor` for the project in `folder`. Raises OSError where one that is there can't be read."""
    root = TEMPLATES / editor
    out = []
    for template in sorted(root.rglob("*.*")):
        if template.is_file() and template.suffix != ".pyc":
            # a folder whose name begins with a dot is left out by some packagers
            path = folder / Path(str(template.relative_to(root)).replace("dot_", "."))
            old = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else None
            out.append(Planned(path, old, template.read_text(encoding="utf-8")))
    return out


def write(files: list[Planned]) -> None:
    """Write them. Raises OSError."""
    for file in files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.new, encoding="utf-8")


def then(editor: str, folder: Path) -> str:
    """What the person does next."""
    return NEXT[editor].format(
        tools=folder / ".idea/gradfix/External Tools.xml", nvim=folder / ".nvim.lua", vim=folder / ".vim"
    )
