"""Candidate texts that could not be written into the scratch view, served to imports instead."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import linecache
import os
import sys
import types
from typing import Any


def compile_script(script: str, files: dict[str, str]) -> types.CodeType:
    """The script's code, of its candidate text where there is one. Raises what compile() and open() raise."""
    if script in files:
        return compile(files[script], script, "exec", dont_inherit=True)
    with open(script, "rb") as stream:
        return compile(stream.read(), script, "exec", dont_inherit=True)


def serve(files: dict[str, str]) -> None:
    """Serve `files` to imports, inspect and tracebacks under their real names."""
    if not files:
        return
    for path, text in files.items():
        linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    sys.meta_path.insert(0, _Candidates(files))


class _Candidates(importlib.abc.MetaPathFinder):
    """Finds modules as usual; those whose file has a candidate text get that text."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return None
        origin = os.path.abspath(spec.origin)
        if origin not in self.files:
            return None
        spec.loader = _CandidateLoader(name, origin, self.files[origin])
        return spec


class _CandidateLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        return self.text
