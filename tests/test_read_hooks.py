"""What forward hooks and forward pre-hooks of modules are given and give back, read as it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_read_torch import found

from gradfix.run.zygote import Zygote

NET = """\
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
    def forward(self, x, scale=None):
        return self.inner(x) * scale
net, last = Scaled(), nn.Linear(3, 1)
for p in last.parameters():
    p.requires_grad_(False)
def hook({arguments}):
    {body}
handle = net.register_{kind}(hook{options})
{after}
w = torch.ones(3, requires_grad=True)
y = w.exp()
last(net(y, scale=torch.ones(3))).sum().backward()
"""
PRE, NAMED_PRE = "module, args", "module, args, kwargs"
POST, NAMED_POST = "module, args, output", "module, args, kwargs, output"
NAMED = ", with_kwargs=True"
STALE, CUT = ["stale-saved-tensor"], ["cut-graph"]


def text(kind: str, arguments: str, body: str, options: str = "", after: str = "") -> str:
    return NET.format(kind=kind, arguments=arguments, body=body, options=options, after=after)


@pytest.mark.parametrize(
    ("arguments", "body", "options", "after", "kinds"),
    [
        (PRE, "args[0].add_(1)", "", "", STALE),
        (PRE, "args[0].add_(1)", "", "handle.remove()", []),
        (PRE, "return args[0] + 1", "", "", []),
        (PRE, "return (args[0] + 1,)", "", "", []),
        (PRE, "pass", "", "", []),
        (NAMED_PRE, "args[0].add_(1)", NAMED, "", STALE),
        (NAMED_PRE, "kwargs['scale'].add_(1); args[0].add_(1)", NAMED, "", STALE),
        (NAMED_PRE, "return (args[0] + 1,), {'scale': args[0]}", NAMED, "", []),
        (NAMED_PRE, "kwargs['scale'] = 1", NAMED, "", []),
        (PRE, "return args[0].detach()", "", "net.requires_grad_(False)", CUT),
        (NAMED_PRE, "return (args[0].detach(),), kwargs", NAMED, "net.requires_grad_(False)", CUT),
        (PRE, "return args[0].detach()", "", "net.register_forward_pre_hook(lambda m, a: a[0].exp_())", []),
        (
            PRE,
            "return args[0].clone()",
            "",
            "net.register_forward_pre_hook(lambda m, a: a[0].mul_(2), prepend=True)",
            STALE,
        ),
    ],
)
def test_a_forward_pre_hook_is_called_with_what_the_module_is_given(
    tmp_path: Path, zygote: Zygote, arguments: str, body: str, options: str, after: str, kinds: list[str]
) -> None:
    program = text("forward_pre_hook", arguments, body, options, after)
    assert [kind for kind, *_ in found(tmp_path, program, zygote)] == kinds


@pytest.mark.parametrize(
    ("arguments", "body", "options", "kinds"),
    [
        (NAMED_POST, "args[0].add_(1)", NAMED, STALE),
        (NAMED_POST, "return output + kwargs['scale']", NAMED, []),
        (NAMED_POST, "args[0].add_(1)", ", with_kwargs=bool(input)", []),  # which arguments is not known
        (POST, "args[0].add_(1)", ", with_kwargs=False", STALE),
        (NAMED_POST, "args[0].add_(1)", ", with_kwargs=True, prepend=True", STALE),
    ],
)
def test_a_forward_hook_is_given_keyword_arguments_where_it_asks_for_them(
    tmp_path: Path, arguments: str, body: str, options: str, kinds: list[str]
) -> None:
    program = text("forward_hook", arguments, body, options)
    assert [kind for kind, *_ in found(tmp_path, program)] == kinds


BOTH = """\
net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
net[1].register_full_backward_hook(lambda *args: None)
{hook}
net(torch.randn(2, 3)).sum().backward()
"""


@pytest.mark.parametrize(
    ("hook", "kinds"),
    [
        ("", ["forbidden-view-write"]),
        ("net[1].register_forward_pre_hook(lambda module, args: args[0].clone())", ["forbidden-view-write"]),
        (
            "net[2].register_forward_pre_hook(lambda module, args: args[0].add_(1))",
            ["forbidden-view-write"] * 2,
        ),
    ],
)
def test_a_pre_hook_comes_before_what_a_full_backward_hook_wraps(
    tmp_path: Path, hook: str, kinds: list[str]
) -> None:
    assert [kind for kind, *_ in found(tmp_path, BOTH.format(hook=hook))] == kinds
