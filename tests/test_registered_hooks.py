"""forward-pre-hook: a hook that writes weights is called before the forward, where it is a hook and nothing else."""

from __future__ import annotations

import pytest
from by_hand import answers, changed, code, stale

from codemods.forward_pre_hook import ForwardPreHook

WRITE = "m.weight.data.clamp_(-1, 1)"


def hooked(text: str) -> list[str]:
    source = code(text)
    case = stale(source, WRITE, kind="silent-overwrite", how="data", leaf=True)
    return [changed(source, new) for _, new in answers(ForwardPreHook, case)]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            f"""
            def clip(m, x, y):
                {WRITE}
            net.register_forward_hook(clip, prepend=True)
            """,
            "def clip(m, x):\nnet.register_forward_pre_hook(clip, prepend=True)",
        ),
        (
            f"""
            def clip(m, x, options, y):
                {WRITE}
            net.register_forward_hook(clip, with_kwargs=True)
            """,
            "def clip(m, x, options):\nnet.register_forward_pre_hook(clip, with_kwargs=True)",
        ),
        (
            f"""
            def clip(limit, m, x, y):
                {WRITE}
            net.register_forward_hook(functools.partial(clip, 1))
            """,
            "def clip(limit, m, x):\nnet.register_forward_pre_hook(functools.partial(clip, 1))",
        ),
        (
            f"""
            def clip(m, *given):
                {WRITE}
            net.register_forward_hook(clip)
            """,
            "net.register_forward_pre_hook(clip)",
        ),
        (
            f"net.register_forward_hook(lambda m, x, y: {WRITE} and None)",
            f"net.register_forward_pre_hook(lambda m, x: {WRITE} and None)",
        ),
        (
            f"""
            class Clip:
                @staticmethod
                def hook(m, x, y):
                    {WRITE}
            register_module_forward_hook(Clip.hook)
            """,
            "def hook(m, x):\nregister_module_forward_pre_hook(Clip.hook)",
        ),
    ],
)
def test_a_hook_is_registered_for_before(text: str, after: str) -> None:
    assert hooked(text) == [after]


REGISTERED = "net.register_forward_hook(clip)"


@pytest.mark.parametrize(
    "text",
    [
        f"def clip(m, x, y):\n    {WRITE}\n    print(y)\n{REGISTERED}\n",
        f"def clip(m, x, y):\n    {WRITE}\n    return y * 2\n{REGISTERED}\n",
        f"def clip(m, x, y):\n    {WRITE}\n{REGISTERED}\nclip(net, None, None)\n",
        f"def clip(m, x, y):\n    {WRITE}\n{REGISTERED}\nhooks = [clip]\n",
        f"def clip(m, x, y):\n    {WRITE}\nnet.register_forward_hook(clip, always_call=True)\n",
        f"def clip(m, *given):\n    {WRITE}\n    return given[1]\n{REGISTERED}\n",
        f"def clip(m, x, y, scale=2):\n    {WRITE}\n{REGISTERED}\n",
        f"def clip(m, x, y):\n    {WRITE}\nnet.register_full_backward_hook(clip)\n",
    ],
)
def test_what_is_more_than_that_stays(text: str) -> None:
    assert hooked(text) == []
