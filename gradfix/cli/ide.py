"""``gradfix ide``: files that make an editor run gradfix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import NOTHING, fail

IDE = (
    "[bold]Examples[/bold]\n\n"
    "  gradfix ide vscode --diff    show what would be written\n\n"
    "  gradfix ide vscode           write it, unless there is something already"
)


def ide(
    editor: Annotated[
        Literal["pycharm", "vscode", "neovim", "vim"],
        Argument(metavar="EDITOR", help="For which editor."),
    ],
    folder: Annotated[
        Path,
        Argument(metavar="FOLDER", help="The project [dim](default: .)[/dim].", show_default=False),
    ] = Path(),
    diff: Annotated[
        bool, Option("--diff", metavar="", help="Show what would be written, and write nothing.")
    ] = False,
    force: Annotated[
        bool, Option("--force", metavar="", help="Replace files that are there already.")
    ] = False,
) -> int:
    """Write a project's files for an editor: pycharm, vscode, neovim or vim."""
    from gradfix.ide import planned, then, write

    try:
        files = planned(editor, folder)
        if diff:
            for file in files:
                sys.stdout.writelines(f"{line}\n" for line in file.diff())
            return NOTHING
        outside = [f.path for f in files if not f.path.resolve().is_relative_to(folder.resolve())]
        if outside:
            fail(f"{outside[0]}: a symbolic link leads out of the project, so nothing was written")
        lost = [file.path for file in files if file.in_the_way]
        if lost and not force:
            names = " and ".join(map(str, lost))
            fail(
                f"{names}: there is another file already, so nothing was written; --force replaces it, --diff shows it"
            )
        write(files)
    except OSError as problem:
        fail(f"{problem.filename}: {(problem.strerror or str(problem)).lower()}")
    for file in files:
        print(f"wrote {file.path}")
    print(then(editor, folder))
    return NOTHING
