"""IPython and Jupyter: the diagnosis below a cell's traceback, and ``%gradfix``, which offers the cured cell.

The cells that were run, in the order they were, are the program.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

NAME = "notebook.ipynb"  # what the cells go by in reports: they need not be saved anywhere


class Extension:
    """What one shell's cells came to."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.cured = ""

    def failed(
        self,
        shell: Any,
        kind: type[BaseException],
        value: BaseException,
        tb: TracebackType | None,
        tb_offset: int | None = None,
    ) -> list[str] | None:
        """IPython's own traceback, then the diagnosis."""
        shell.showtraceback((kind, value, tb), tb_offset=tb_offset)
        self.cured = ""
        try:
            self._explain(shell, "".join(traceback.format_exception(kind, value, tb)))
        except Exception as problem:  # the person's own error has been shown; ours must not look like it
            print(f"gradfix: no diagnosis ({type(problem).__name__}: {problem})", file=sys.stderr)
        return None

    def _explain(self, shell: Any, text: str) -> None:
        from gradfix import escaped
        from gradfix.messages import recognise
        from gradfix.report.terminal import Terminal
        from gradfix.source import Source

        finding = recognise(text)
        if finding is None or not finding.autograd:
            return
        cells = [{"cell_type": "code", "source": cell} for cell in shell.history_manager.input_hist_raw]
        cells[0] = {"cell_type": "raw", "source": ""}  # In[1] is the first
        path = Path.cwd() / NAME
        source = Source.decode(path, json.dumps({"cells": cells}).encode())
        result = escaped.shown(finding, text, path, source.text)
        terminal = Terminal()
        escaped.tell(finding, result, terminal)
        cure = next((d.cures[0] for d in result.diagnoses if d.cures), None) if result else None
        if cure is not None:
            self.cured = changed_cells(source.text, cure.after[str(path)])
            terminal.err.print(f"%gradfix puts the cell with {cure.codemod} below: nobody has tried it.")

    def offer(self, line: str = "") -> None:
        """``%gradfix``: the cured cell as the next input."""
        if self.cured:
            self.shell.set_next_input(self.cured)
        else:
            print("gradfix: there is no cure to show", file=sys.stderr)


def changed_cells(old: str, new: str) -> str:
    """The cells that differ between two joined texts, as they are in the new one."""
    import re

    from gradfix.notebook import written

    parts = [re.split(r"^# %% cell \d+\n", text, flags=re.M) for text in (old, new)]
    changed = [b.rstrip("\n") for a, b in zip(*parts, strict=True) if a != b]
    return written("\n\n".join(changed))


def load(shell: Any) -> None:
    """``%load_ext gradfix``."""
    extension = Extension(shell)
    shell.set_custom_exc((Exception,), extension.failed)
    shell.register_magic_function(extension.offer, magic_name="gradfix")


def unload(shell: Any) -> None:
    """``%unload_ext gradfix``."""
    shell.set_custom_exc((), None)
    shell.magics_manager.magics["line"].pop("gradfix", None)
