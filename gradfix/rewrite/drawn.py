"""Whether running a statement once more draws random numbers, as far as the text and the tape show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.boundary import functions
from gradfix.rewrite.statements import dotted, renamed
from gradfix.tape import Site

DRAWS = re.compile(
    r"(rand[\w.]*|normal_?|uniform_?|bernoulli_?|multinomial|[dD]ropout\w*|sample|exponential_?)\s*\("
)
DRAWN = re.compile(r"dropout|bernoulli|rrelu_with_noise", re.IGNORECASE)
WHOLE: Mapping[cst.CSTNode, str] = MappingProxyType({})


def draws(project: Project, view: View, node: cst.CSTNode, but: Mapping[cst.CSTNode, str] = WHOLE) -> bool:
    """Whether running `node` draws random numbers; the expressions `but` in it are names by then."""
    bare, span = renamed(node, but), view.span(node)
    if DRAWS.search(view.code(bare)):
        return True
    for record in project.graph.records.values():
        for site in record.stack if DRAWN.search(record.op) else ():
            here = site.file == view.path and span.start.line <= site.line <= span.end.line
            if here and not any(holds(view, x, site) for x in but):
                return True
    for called in called_names(bare):
        for function in (f for v in views(project) for f in functions(v, called)):
            if DRAWS.search(cst.Module([]).code_for_node(function.body)):
                return True
    return False


def holds(view: View, node: cst.CSTNode, site: Site) -> bool:
    """Whether `site` stands in `node`."""
    start, end = view.span(node).start, view.span(node).end
    return (
        site.file == view.path
        and (start.line, start.column) <= (site.line, site.column)
        and (site.end_line, site.end_column) <= (end.line, end.column)
    )


def called_names(node: cst.CSTNode) -> set[str]:
    """The last names of what is called below `node`."""
    found = {(dotted(node.func) or "").rpartition(".")[2]} if isinstance(node, cst.Call) else set()
    return found.union(*(called_names(c) for c in node.children)) - {""}


def constructs(project: Project, node: cst.CSTNode) -> bool:
    """Whether a statement makes an object of one of the project's classes: made anew it would forget its
    training."""
    called = called_names(node)
    return any(
        isinstance(n, cst.ClassDef) and n.name.value in called for v in views(project) for n in v.parents
    )


def views(project: Project) -> Iterator[View]:
    """Every file of the project."""
    for path in project.files:
        view = project.view(path)
        if view is not None:
            yield view
