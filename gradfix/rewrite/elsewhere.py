"""What files of the project that did not run may count on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from gradfix.edit import Project

MANY = 5000  # folders and files looked through; behind that, a name counts as used
SUFFIXES = (".py", ".pyi", ".ipynb")
INSTALLED = {"site-packages", "node_modules", "__pycache__", "venv", "env"}


def mentioned(project: Project, *names: str) -> bool:
    """Whether a file of the project that the run did not come to has each of `names` as a word: what it means by
    them is not looked into. True, too, where there is too much to tell (a script in a home folder)."""
    words = [re.compile(rf"\b{re.escape(name)}\b".encode()) for name in names]
    for count, path in enumerate(_others(project)):
        if count >= MANY:
            return True
        if not path:
            continue
        try:
            with open(path, "rb") as opened:
                text = opened.read()
                if all(word.search(text) for word in words):
                    return True
        except OSError:
            continue
    return False


def _others(project: Project) -> Iterator[str]:
    """The files; "" for each folder on the way."""
    folders = {os.path.dirname(path) for path in project.files}
    if not folders:
        return
    top = os.path.commonpath(folders)
    while os.path.exists(os.path.join(top, "__init__.py")):
        top = os.path.dirname(top)
    for here, inside, names in os.walk(top):
        yield ""
        inside[:] = [x for x in inside if x[0] != "." and x not in INSTALLED]
        for name in names:
            path = os.path.join(here, name)
            if name.endswith(SUFFIXES) and path not in project.files and os.path.isfile(path):
                yield path
