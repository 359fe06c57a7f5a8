"""Which fault a PyTorch error or traceback shows: autograd's messages in the wordings of all releases.

Text only: no torch, and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradfix.wording import shortened


@dataclass(frozen=True, slots=True)
class Message:
    """A wording of PyTorch's. `pattern` may name groups (op, type, shape, version, expected, output), which
    are shown; `kind` is the fault it shows, None where it is autograd's and no fault gradfix looks for;
    `advice` what to do."""

    pattern: re.Pattern[str]
    kind: str | None
    advice: str = ""


def _m(pattern: str, kind: str | None, advice: str = "") -> Message:
    return Message(re.compile(pattern, re.I), kind, advice)


# Newer wordings first; the older ones are those of the releases from 0.1 on.
MESSAGES = (
    _m(
        r"modified by an in-?place operation(?::? \[(?P<type>[\w.]+)(?: \[(?P<shape>[\d, ]*)\])?\](?:, "
        r"which is output "
        r"(?P<output>\d+) of (?P<op>\w+))?,? is at version (?P<version>\d+); expected version "
        r"(?P<expected>\d+))?",
        "stale-saved-tensor",
    ),
    _m(r"saved tensor that has been detached in-place", "stale-saved-tensor"),
    _m(
        r"Trying to (?:backward through|differentiate) (?:the graph|(?P<op>\w+))? ?(?:a )?second time|"
        r"directly access saved (?:variables|tensors) after they have already been freed|"
        r"(?:buffers|saved intermediate results|saved tensors) have already been freed|"
        r"saved tensor after it has been freed",
        "freed-graph",
    ),
    _m(
        r"a view of a leaf Variable that requires grad (?:is being|has been) used in an in-?place",
        "leaf-write",
    ),
    _m(r"a leaf Variable that requires grad (?:is being|has been) used in an in-?place", "leaf-write"),
    _m(
        r"leaf variable (?:has been moved into the graph interior|was used in an inplace operation)",
        "leaf-write",
    ),
    _m(r"in-?place operations? can't be used on (?:a leaf|leaf) variable", "leaf-write"),
    _m(
        r"Output (?P<output>\d+) of (?P<op>\w+) is a view and (?:is being|its base or another view of its base has "
        r"been) modified in-?place",
        "forbidden-view-write",
    ),
    _m(
        r"view was created in (?:no_grad|inference) mode and (?:is being|its base).*modified in-?place",
        "forbidden-view-write",
    ),
    _m(r"view .*was created inside a custom Function", "forbidden-view-write"),
    _m(
        r"more than one element of the written-to tensor refers to a single memory location",
        "forbidden-view-write",
    ),
    _m(r"Can't detach (?:views in-place|an expanded)", "forbidden-view-write"),
    _m(r"element \d+ of (?:tensors|variables)(?: tuple)? (?:does not require grad|is volatile)", "cut-graph"),
    _m(r"there are no graph nodes that require computing gradients", "cut-graph"),
    _m(
        r"differentiated (?:Tensor|Variable)s? (?:at index \d+ )?(?:does not require grad|appears to not "
        r"have been used)",
        "cut-graph",
    ),
    _m(r"loss.*does not have a grad_fn", "cut-graph"),
    _m(r"No inf checks were recorded for this optimizer", "cut-graph"),
    _m(r"\.grad attribute of a Tensor that is not a leaf", "missing-grad"),
    _m(r"can't optimize a non-leaf (?:Tensor|Variable)", "missing-grad"),
    _m(r"volatile was removed|Variable can't be volatile and require_grad|argument 'volatile'", "legacy-api"),
    _m(r"invalid index of a 0-dim tensor", "legacy-api"),
    _m(r"unexpected keyword argument '?retain_variables", "legacy-api"),
    _m(r"Variable data has to be a tensor, but got Variable", "legacy-api"),
    _m(r"Legacy autograd function with non-static forward", "legacy-api"),
    _m(r"Subtraction, the `-` operator, with a bool tensor is not supported", "legacy-api"),
    _m(r"only supports boolean masks|masked_select: expected BoolTensor for mask", "legacy-api"),
    _m(r"'_\w*DataLoaderIter' object has no attribute 'next'", "legacy-api"),
    _m(r"multinomial\(\) missing .*num_samples", "legacy-api"),
    _m(
        r"'?clip_grad_norm'?(?! ?_)\b.*(?:deprecated|no attribute|cannot import)|no attribute "
        r"'clip_grad_norm'",
        "legacy-api",
    ),
    _m(r"not allowed on a Tensor created from \.data or \.detach\(\)", "data-attribute"),
    _m(
        r"grad can be implicitly created only for scalar outputs",
        None,
        "The loss is not one number: reduce it (loss.mean() or loss.sum()) before backward(), or give "
        "backward() a "
        "gradient of the loss's shape.",
    ),
    _m(
        r"Can't call numpy\(\) on (?:Tensor|Variable) that requires grad",
        None,
        "Use x.detach().numpy() where the value is only looked at; a loss that is computed from it trains "
        "nothing "
        "(gradfix explain cut-graph).",
    ),
    _m(
        r"you can only change requires_grad flags of leaf variables",
        None,
        "Use x.detach() for a copy outside the graph, or set the flag where the leaf is made.",
    ),
    _m(
        r"can't retain_grad on Tensor that has requires_grad=False",
        None,
        "Nothing before it requires grad: see gradfix explain cut-graph.",
    ),
    _m(
        r"Only Tensors (?:of floating point|created explicitly by the user)",
        None,
        "Only float leaves can require grad or be deep-copied: detach() first.",
    ),
    _m(
        r"(?:the )?derivative for '?.*'? is not implemented",
        None,
        "This op has no backward, or its target requires grad: detach what is not to be trained.",
    ),
    _m(
        r"differentiate twice a function that was marked with @once_differentiable",
        None,
        "This custom function has no second derivative: drop create_graph=True, or write its backward in "
        "differentiable ops.",
    ),
    _m(
        r"Inference tensors cannot be saved for backward|Inplace update to inference tensor",
        None,
        "Use torch.no_grad() in place of torch.inference_mode(), or clone() the tensor outside of it.",
    ),
    _m(
        r"cudnn RNN backward can only be called in training mode",
        None,
        "cuDNN keeps what an RNN's backward needs in training mode only: call .train() on the model before that "
        "forward pass, and .eval() on its dropout and norm layers alone.",
    ),
    _m(
        r"Function '(?P<op>\w+)' returned nan values",
        None,
        "Anomaly mode found a NaN: look at this op's input (a log or sqrt of 0, a division by 0).",
    ),
    _m(
        r"returned an invalid gradient at index|Mismatch in shape: grad_output|assigned grad has data of a "
        r"different",
        None,
        "A custom backward, or a gradient given to backward(), has the wrong shape.",
    ),
    _m(
        r"Expected to (?:have finished reduction in the prior iteration|mark a variable ready only once)",
        None,
        "This is DistributedDataParallel's: some parameters took no part in the loss, or took part twice. "
        "Run one process without it.",
    ),
    _m(
        r"torch\.utils\.checkpoint: |Checkpointing is not compatible with",
        None,
        "This is torch.utils.checkpoint's: the recomputed forward differs from the first; try "
        "use_reentrant=False.",
    ),
    _m(
        r"\w*(?:backward|grad)\w*\(\): functions with out=\.\.\. arguments don't support "
        r"automatic|functions with out=\.\.\. arguments don't support",
        None,
        "Assign the result instead of writing it to out=.",
    ),
)

# What the node that a message names usually is in the person's own terms; without "Backward" and the number.
OPS = {
    "AsStrided": "a transposed or strided view, most often the weight of an nn.Linear",
    "T": "a transposed matrix, most often the weight of an nn.Linear",
    "Transpose": "a transposed tensor",
    "Relu": "the result of a ReLU",
    "Sigmoid": "the result of a sigmoid",
    "Tanh": "the result of a tanh",
    "Exp": "the result of exp",
    "Sqrt": "the result of sqrt",
    "Softmax": "the result of a softmax",
    "LogSoftmax": "the result of a log_softmax",
    "Hardtanh": "the input of a hardtanh or clamp",
    "NativeBatchNorm": "the result of a BatchNorm",
    "CudnnBatchNorm": "the result of a BatchNorm",
    "Convolution": "the result of a convolution",
    "Addmm": "the result of an nn.Linear",
    "Mul": "a factor of a product",
    "Div": "a result of a division",
    "Pow": "the base of a power",
    "Select": "one row or element of a tensor",
    "Slice": "a slice of a tensor",
    "Unbind": "one of the outputs of unbind or of iterating over a tensor",
    "Split": "one of the outputs of split or chunk",
    "View": "a view of a tensor",
    "Clone": "a clone",
    "CopySlices": "a tensor that was written into by index",
}

CHAINED = re.compile(
    r"^.*(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):[^\S\n]*$",
    re.M,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a traceback: the file as it is named there, the line, and its text where it is given."""

    file: str
    line: int
    code: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an error text shows. `kind` None: it is autograd's, but none of the faults gradfix looks for
    (`autograd`), or not autograd's at all. `facts` are (what, value) read from the message."""

    autograd: bool
    kind: str | None
    error: str
    facts: tuple[tuple[str, str], ...] = ()
    raised: Frame | None = None  # the user's line that raised
    script: str = (
        ""  # the file the outermost of the user's frames is in: what was run, as far as the text goes
    )
    forward: Frame | None = None  # the forward op anomaly mode names
    advice: str = ""


def recognise(text: str) -> Finding | None:
    """What the error message or traceback `text` is about; None where there is no error in it. Of errors that were
    raised one out of the other, autograd's counts, and of several of those the first."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(
        r"(\S{500})\S+", r"\1", text
    )  # an image in a log: the patterns would begin at each of its letters
    last = None
    for part in CHAINED.split(text):
        last = _recognised(part)
        if last is not None and last.autograd:
            return last
    return last


def _recognised(text: str) -> Finding | None:
    flat = " ".join(text.split())
    frames = list(_frames(text))
    mine = [f for f in frames if not _foreign(f.file)]
    anomaly = re.search(r"Traceback of forward call that (?:caused|induced)", text)
    forward = None
    if anomaly is not None:
        count = len(list(_frames(text[: anomaly.start()])))
        rest = list(_frames(text[anomaly.start() :].split("Traceback (most recent call last)")[0]))
        forward = next((f for f in reversed(rest) if not _foreign(f.file)), None)
        mine = [f for f in [*frames[:count], *frames[count + len(rest) :]] if not _foreign(f.file)]
    raised = mine[-1] if mine else None
    script = next((f.file for f in mine if f.file.endswith(".py")), "")
    error = _error(text)
    for message in MESSAGES:
        # the last error is what counts; a warning on the way to it (anomaly mode's) must not win
        found = message.pattern.search(error) or message.pattern.search(flat)
        if found:
            facts = tuple(_facts(found))
            return Finding(
                True,
                message.kind,
                error or shortened(flat, 200),
                facts,
                raised,
                script,
                forward,
                message.advice,
            )
    if raised and "NoneType" in error and ".grad" in raised.code:
        advice = ".grad is None here: its tensor is no leaf, or no backward has reached it."
        return Finding(True, "missing-grad", error, (), raised, script, forward, advice)
    if not error:
        return None
    return Finding(False, None, error, (), raised, script, forward, _foreign_advice(error))


def _error(text: str) -> str:
    """The last error of a traceback (its message may go over several lines), or of a bare message."""
    found = list(
        re.finditer(
            r"^(?:[\w.]*\.)?\w*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)\b(?:: .*)?", text, re.M
        )
    )
    if not found:
        bare = " ".join(text.split())
        return bare if len(bare) < 1000 and any(m.pattern.search(bare) for m in MESSAGES) else ""
    tail = text[found[-1].start() :]
    return " ".join(re.split(r"\n\s*\n|\n(?=\S+:\d+|Traceback)", tail)[0].split())


def _frames(text: str) -> Iterator[Frame]:
    """Frames of plain and of IPython tracebacks, in order."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        plain = re.match(r'\s*(?:\[rank\d+\]:\s*)?File "(.+?)", line (\d+)', line)
        if plain:
            code = lines[i + 1].strip() if i + 1 < len(lines) else ""
            yield Frame(plain[1], int(plain[2]), "" if code.startswith("File ") else code)
            continue
        cell = re.match(
            r"\s*(?:File )?(Cell In ?\[\d+\]|In \[\d+\]|<ipython-input-[^>]+>|[\w./~-]+\.py)(?:[:,(]| in )",
            line,
        )
        if cell:
            for later in lines[i : i + 12]:
                arrow = re.match(r"-+> ?(\d+) ?(.*)", later)
                if arrow:
                    yield Frame(cell[1], int(arrow[1]), arrow[2].strip())
                    break


def _foreign(file: str) -> bool:
    parts = file.replace("\\", "/")
    return (
        "site-packages/" in parts
        or "dist-packages/" in parts
        or re.search(
            r"/lib/python[\d.]+/|^<(?!ipython)|/torch/(?:autograd|nn|optim|_tensor|utils|_dynamo)", parts
        )
        is not None
    )


def _facts(found: re.Match[str]) -> Iterator[tuple[str, str]]:
    groups = {k: v for k, v in found.groupdict().items() if v is not None}
    if "type" in groups:
        shape = f" of shape ({groups['shape']})" if groups.get("shape") else ""
        yield "tensor", groups["type"] + shape
    if "op" in groups:
        meaning = OPS.get(re.sub(r"(Backward)?\d*$", "", groups["op"]), "")
        what = f"output {groups['output']} of {groups['op']}" if "output" in groups else groups["op"]
        yield "made by", what + (f" ({meaning})" if meaning else "")
    if "version" in groups and "expected" in groups:
        times = int(groups["version"]) - int(groups["expected"])
        often = "once" if times == 1 else f"{times} times"
        yield (
            "version",
            f"{groups['version']}, and backward needs {groups['expected']}: written {often} since it was "
            f"saved",
        )


def _foreign_advice(error: str) -> str:
    if "out of memory" in error.lower():
        return (
            "If memory grows from one iteration to the next, a graph is being kept: a summed loss without "
            ".item(), "
            "losses in a list, retain_graph=True. `gradfix run --notes SCRIPT` shows it."
        )
    return ""
