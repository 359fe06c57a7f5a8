"""Pages that tell the truth, and PyTorch's messages recognised in every wording."""

import re
import time
import warnings

import pytest
import torch

from gradfix.detect import KINDS
from gradfix.explain import PAGES, page
from gradfix.messages import Frame, recognise
from gradfix.suppress import REPORTED
from gradfix.wording import nearest

RAISES = ["stale-saved-tensor", "freed-graph", "leaf-write", "forbidden-view-write", "cut-graph"]


def examples(kind: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / f"{kind}.md").read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("kind", REPORTED)
def test_examples_do_what_their_page_says(kind):
    broken, cured = examples(kind)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in RAISES:
            with pytest.raises(RuntimeError) as caught:
                exec(broken, {})
            assert recognise(f"RuntimeError: {caught.value}").kind == kind
        else:
            exec(broken, {})
        exec(cured, {})


def test_an_image_in_a_log_takes_no_time():
    before = time.process_time()
    found = recognise("x" * 1_000_000 + "\nRuntimeError: Trying to backward through the graph a second time")
    assert (found.kind, time.process_time() - before < 5) == ("freed-graph", True)


OLD = "one of the variables needed for gradient computation has been modified by an inplace operation"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("stale-saved-tensor", f"RuntimeError: {OLD}"),
        (
            "stale-saved-tensor",
            f"RuntimeError: {OLD}: [torch.cuda.FloatTensor [64, 3, 7]], which is output 0 of TBackward, is "
            f"at version 2; "
            "expected version 1 instead. Hint: enable anomaly detection to find the operation that failed "
            "to compute "
            "its gradient, with torch.autograd.set_detect_anomaly(True).",
        ),
        (
            "freed-graph",
            "RuntimeError: Trying to backward through the graph a second time, but the buffers have "
            "already been freed. Specify retain_graph=True when calling backward the first time.",
        ),
        (
            "freed-graph",
            "RuntimeError: Trying to backward through the graph second time, but the buffers have already "
            "been freed. Please specify retain_variables=True when calling backward for the first time.",
        ),
        (
            "freed-graph",
            "RuntimeError: Trying to backward through the graph a second time, but the saved intermediate "
            "results have already been freed.",
        ),
        (
            "freed-graph",
            "RuntimeError: Trying to backward through the graph a second time (or directly access saved "
            "variables after they have already been freed).",
        ),
        (
            "freed-graph",
            "RuntimeError: Trying to backward through ScaleBackward a second time, but the saved "
            "intermediate results have already been freed.",
        ),
        (
            "leaf-write",
            "RuntimeError: a leaf Variable that requires grad has been used in an in-place operation.",
        ),
        ("leaf-write", "RuntimeError: leaf variable has been moved into the graph interior"),
        (
            "leaf-write",
            "RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place "
            "operation.",
        ),
        (
            "forbidden-view-write",
            "RuntimeError: Output 0 of SplitBackward is a view and is being modified inplace. This view is "
            "the output of a function that returns multiple views.",
        ),
        (
            "forbidden-view-write",
            "RuntimeError: Output 0 of Unbind is a view and its base or another view of its base has been modified "
            "inplace. This view is the output of a function that returns multiple views.",
        ),
        (
            "forbidden-view-write",
            "RuntimeError: A view was created in no_grad mode and is being modified inplace with grad mode "
            "enabled.",
        ),
        (
            "forbidden-view-write",
            "RuntimeError: unsupported operation: more than one element of the written-to tensor refers to "
            "a single memory location. Please clone() the tensor before performing the operation.",
        ),
        (
            "cut-graph",
            "RuntimeError: element 0 of variables does not require grad and does not have a grad_fn",
        ),
        ("cut-graph", "RuntimeError: element 0 of variables tuple is volatile"),
        ("cut-graph", "RuntimeError: there are no graph nodes that require computing gradients"),
        (
            "cut-graph",
            "RuntimeError: One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior.",
        ),
        ("missing-grad", "ValueError: can't optimize a non-leaf Tensor"),
        (
            "missing-grad",
            "a.py:4: UserWarning: The .grad attribute of a Tensor that is not a leaf Tensor is being "
            "accessed.",
        ),
        (
            "legacy-api",
            "IndexError: invalid index of a 0-dim tensor. Use `tensor.item()` in Python or "
            "`tensor.item<T>()` in C++ to convert a 0-dim tensor to a number",
        ),
        ("legacy-api", "TypeError: Tensor.backward() got an unexpected keyword argument 'retain_variables'"),
        ("legacy-api", "TypeError: backward() got an unexpected keyword argument 'retain_variables'"),
        (
            "legacy-api",
            "a.py:3: UserWarning: volatile was removed and now has no effect. Use `with torch.no_grad():` "
            "instead.",
        ),
        ("legacy-api", "AttributeError: module 'torch.nn.utils' has no attribute 'clip_grad_norm'"),
        (
            "legacy-api",
            "RuntimeError: Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead.",
        ),
        ("legacy-api", "RuntimeError: masked_select: expected BoolTensor for mask"),
        ("legacy-api", "AttributeError: '_MultiProcessingDataLoaderIter' object has no attribute 'next'"),
        ("legacy-api", 'TypeError: multinomial() missing 1 required positional arguments: "num_samples"'),
        (
            "legacy-api",
            "RuntimeError: masked_fill_ only supports boolean masks, but got mask with dtype unsigned char",
        ),
        (None, "RuntimeError: grad can be implicitly created only for scalar outputs"),
        (
            None,
            "RuntimeError: Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
            "instead.",
        ),
        (None, "RuntimeError: cudnn RNN backward can only be called in training mode"),
        (None, "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output."),
    ],
)
def test_wordings_of_all_releases(kind, message):
    finding = recognise(message)
    assert finding.autograd
    assert finding.kind == kind
    assert kind or finding.advice


LIVE = {
    "stale": (
        "stale-saved-tensor",
        "x = torch.ones(2, requires_grad=True); y = x.exp(); y.mul_(2); y.sum().backward()",
    ),
    "leaf": ("leaf-write", "x = torch.ones(2, requires_grad=True); x += 1"),
    "leaf_view": ("leaf-write", "x = torch.ones(2, requires_grad=True); x[0] = 1"),
    "unbind": ("forbidden-view-write", "x = torch.ones(2, 2, requires_grad=True) * 1; x.unbind()[0].mul_(2)"),
    "expanded": ("forbidden-view-write", "x = torch.ones(1).expand(3); x += 1"),
    "no_grad_view": (
        "forbidden-view-write",
        "x = torch.ones(2, requires_grad=True) * 1\nwith torch.no_grad(): v = x.view(2)\nv += x",
    ),
    "no_graph": ("cut-graph", "torch.ones(1).backward()"),
    "unused": (
        "cut-graph",
        "x = torch.ones(1, requires_grad=True); torch.autograd.grad((x * 2).sum(), [torch.ones(1, "
        "requires_grad=True)])",
    ),
    "not_required": (
        "cut-graph",
        "x = torch.ones(1, requires_grad=True); torch.autograd.grad((x * 2).sum(), [torch.ones(1)])",
    ),
    "non_leaf": ("missing-grad", "torch.optim.SGD([torch.ones(1, requires_grad=True) * 2], lr=1)"),
    "not_scalar": (None, "torch.ones(2, requires_grad=True).mul(2).backward()"),
    "numpy": (None, "torch.ones(2, requires_grad=True).numpy()"),
    "flag": (None, "x = torch.ones(2, requires_grad=True) * 1; x.requires_grad = False"),
    "integers": (None, "torch.ones(2, dtype=torch.long).requires_grad_()"),
    "inference": (
        None,
        "with torch.inference_mode(): x = torch.ones(2)\ny = torch.ones(2, requires_grad=True); (x * y)",
    ),
    "own_function_twice": (
        "freed-graph",
        "class F(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): ctx.save_for_backward(x); return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g): ctx.saved_tensors; return g\n"
        "y = F.apply(torch.ones(1, requires_grad=True)); y.backward(); y.backward()",
    ),
}


@pytest.mark.parametrize("case", LIVE)
def test_what_this_torch_says(case):
    kind, code = LIVE[case]
    with pytest.raises((RuntimeError, ValueError)) as caught:
        exec(code, {"torch": torch})
    finding = recognise(f"{type(caught.value).__name__}: {caught.value}")
    assert (finding.autograd, finding.kind) == (True, kind)


TRACEBACK = """\
/home/me/env/lib/python3.10/site-packages/torch/autograd/__init__.py:200: UserWarning: Error detected in \
MmBackward0. Traceback of forward call that caused the error:
  File "/home/me/train.py", line 30, in <module>
    main()
  File "/home/me/train.py", line 12, in main
    d = D(g)
  File "/home/me/env/lib/python3.10/site-packages/torch/nn/modules/linear.py", line 114, in forward
    return F.linear(input, self.weight, self.bias)
 (Triggered internally at ../torch/csrc/autograd/python_anomaly_mode.cpp:114.)
  Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
Traceback (most recent call last):
  File "/home/me/train.py", line 30, in <module>
    main()
  File "/home/me/train.py", line 17, in main
    lossG.backward()
  File "/home/me/env/lib/python3.10/site-packages/torch/_tensor.py", line 487, in backward
    torch.autograd.backward(
  File "/home/me/env/lib/python3.10/site-packages/torch/autograd/__init__.py", line 200, in backward
    Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
RuntimeError: one of the variables needed for gradient computation has been modified by an inplace \
operation: [torch.FloatTensor [8, 1]], which is output 0 of AsStridedBackward0, is at version 3; \
expected version 1 instead. \
Hint: the backtrace further above shows the operation that failed to compute its gradient.
"""


def test_a_traceback_with_anomaly_mode():
    finding = recognise("epoch 1\n" + TRACEBACK)
    assert finding.kind == "stale-saved-tensor"
    facts = dict(finding.facts)
    assert facts["tensor"] == "torch.FloatTensor of shape (8, 1)"
    assert facts["made by"].startswith("output 0 of AsStridedBackward0 (a transposed")
    assert facts["version"] == "3, and backward needs 1: written 2 times since it was saved"
    assert finding.raised == Frame("/home/me/train.py", 17, "lossG.backward()")
    assert (finding.forward.line, finding.forward.code) == (12, "d = D(g)")


@pytest.mark.parametrize("node", ["AsStrided", "AsStridedBackward0", "AsStridedBackward", "TBackward"])
def test_a_node_is_put_in_the_persons_terms(node):
    text = f"RuntimeError: {OLD}: [torch.FloatTensor [4, 1]], which is output 0 of {node}, is at version 2; "
    facts = dict(recognise(text + "expected version 1 instead.").facts)
    assert "the weight of an nn.Linear" in facts["made by"]


def test_codemod_pages_have_their_sections():
    from gradfix.codemod import codemods

    for mod in codemods():
        text = page(mod.name())
        assert text.startswith(f"# {mod.name()}\n")
        assert "**Why:**" in text
        assert "**When not:**" in text


def test_a_notebook_traceback():
    text = (
        "---------------------------------------------------------------------------\n"
        "RuntimeError                              Traceback (most recent call last)\n"
        "Cell In[7], line 3\n      1 for x in batches:\n      2     loss = model(x)\n----> 3     "
        "loss.backward()\n\n"
        "File ~/env/lib/python3.11/site-packages/torch/_tensor.py:521, in Tensor.backward(self)\n"
        "    511 if has_torch_function_unary(self):\n--> 521 torch.autograd.backward(\n\n"
        "RuntimeError: Trying to backward through the graph a second time (or directly access saved "
        "tensors after they "
        "have already been freed).\n"
    )
    finding = recognise(text)
    assert finding.kind == "freed-graph"
    assert finding.raised == Frame("Cell In[7]", 3, "loss.backward()")


def test_none_times_a_number_is_a_missing_grad_only_where_grad_is_read():
    frame = 'Traceback (most recent call last):\n  File "a.py", line 4, in <module>\n    {}\n'
    error = "TypeError: unsupported operand type(s) for *: 'float' and 'NoneType'\n"
    assert recognise(frame.format("w = w - 0.1 * w.grad") + error).kind == "missing-grad"
    assert recognise(frame.format("x = 2.0 * scale") + error).autograd is False


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: Target size (torch.Size([5, 1])) must be the same as input size (torch.Size([5]))",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 2x1)",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ModuleNotFoundError: No module named 'apex'",
    ],
)
def test_other_errors_are_not_autograds(text):
    finding = recognise(
        f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n{text}\n'
    )
    assert finding.autograd is False
    assert finding.kind is None
    assert finding.raised.line == 1


def test_a_warning_on_the_way_does_not_win_over_the_error():
    text = TRACEBACK.replace(
        "UserWarning: Error", "UserWarning: The .grad attribute of a Tensor that is not a leaf. Error"
    )
    assert recognise(text).kind == "stale-saved-tensor"


@pytest.mark.parametrize("text", ["", "epoch 1: 0.34\nepoch 2: 0.33\n"])
def test_no_error_is_none(text):
    assert recognise(text) is None


def test_nearest():
    assert nearest("freed_grph", list(KINDS)) == "; did you mean freed-graph?"
    assert nearest("zzzz", list(KINDS)) == ""
    assert page("zzzz") is None


def test_the_script_to_run_is_the_outermost_of_the_persons_files():
    text = (
        "Traceback (most recent call last):\n"
        '  File "main.py", line 9, in <module>\n    fit()\n'
        '  File "lib/loop.py", line 4, in fit\n    loss.backward()\n'
        '  File "/usr/lib/python3.11/site-packages/torch/_tensor.py", line 5, in backward\n    x\n'
        "RuntimeError: Trying to backward through the graph a second time"
    )
    finding = recognise(text)
    assert finding is not None
    assert (finding.script, finding.raised) == ("main.py", Frame("lib/loop.py", 4, "loss.backward()"))
