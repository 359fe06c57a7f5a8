"""Every kind of conflict on tapes made by hand, and the sound scripts that look like them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from tapes import FILE, Optim, Script, Tensor

from gradfix.detect import KINDS, PATTERNS, Conflict, describe, detect
from gradfix.tape import Mutate, Tape

LEAF = "a leaf Variable that requires grad is being used in an in-place operation."
VIEW = "a view of a leaf Variable that requires grad is being used in an in-place operation."
NO_GRAPH = "element 0 of tensors does not require grad and does not have a grad_fn"
SECOND = "Trying to backward through the graph a second time (or directly access saved tensors ...)"


def only(tape: Tape) -> Conflict:
    """The one conflict above a note."""
    (conflict,) = loud(tape)
    return conflict


def loud(tape: Tape) -> list[Conflict]:
    return [c for c in detect(tape) if c.severity != "note"]


def notes(tape: Tape) -> list[Conflict]:
    return [c for c in detect(tape) if c.severity == "note"]


def lines(conflict: Conflict, role: str) -> list[int]:
    return [x.at.line for x in conflict.labels if x.role == role]


class Gan:
    """Two models with an optimizer each, ready for a training loop."""

    def __init__(self) -> None:
        self.script = s = Script()
        self.g, self.d = s.leaf("G.weight"), s.leaf("D.weight")
        self.opt_g, self.opt_d = s.optimizer("optG", [self.g], 3), s.optimizer("optD", [self.d], 4)

    def fake(self, line: int) -> Tensor:
        return self.script.linear(line, self.g, self.script.data(), "fake")

    def score(self, line: int, x: Tensor) -> Tensor:
        return self.script.linear(line, self.d, x, "score")

    def loss(self, line: int, *scores: Tensor) -> Tensor:
        return self.script.op("mean", line, *scores, name="loss")


def gan(detach: bool = False, retain: bool = False, share: bool = False, last: str = "steps") -> Tape:
    """The usual loop: D's step in lines 11 to 15, G's in 16 to 20."""
    gan = Gan()
    s = gan.script
    for _ in range(3):
        fake = gan.fake(10)
        s.zero(gan.opt_d, 11)
        score = gan.score(12, s.detach(fake, 12) if detach else fake)
        s.backward(gan.loss(13, score), 14, retain=retain)
        s.step(gan.opt_d, 15)
        s.zero(gan.opt_g, 16)
        again = score if share else gan.score(17, fake)
        s.backward(gan.loss(18, again), 19)
        s.step(gan.opt_g, 20)
    return s.end(last)


# -- stale-saved-tensor ----------------------------------------------------------------------------


def test_step_between_forward_and_backward_is_one_conflict() -> None:
    conflict = only(gan(retain=True, share=True))
    assert (conflict.kind, conflict.pattern) == ("stale-saved-tensor", "optimizer-step")
    assert [(x.role, x.at.line) for x in conflict.labels] == [
        ("saved", 12),
        ("overwritten", 15),
        ("needed", 19),
    ]
    assert conflict.at.line == 15
    assert conflict.ref is not None
    assert conflict.ref.name == "D.weight"
    assert (
        conflict.message
        == "`D.weight` is overwritten by `optD.step()` before the backward in line 19 needs it"
    )


def test_many_weights_of_one_step_fold_and_the_last_node_stands_for_them() -> None:
    s = Script()
    weights = [s.leaf(f"net.{i}.weight") for i in range(30)]
    opt = s.optimizer("opt", weights, 2)
    h = s.op("exp", 3, weights[0])
    for i, w in enumerate(weights):
        h = s.linear(10 + i, w, h)
    s.backward(h, 50, retain=True)
    s.step(opt, 51)
    s.backward(s.op("neg", 52, h), 53)
    conflict = only(s.end())
    assert conflict.ref is not None
    assert conflict.ref.name == "net.29.weight"
    assert {c.ref.name for c in conflict.also if c.ref} == {f"net.{i}.weight" for i in range(29)}


def test_two_in_place_statements_are_two_conflicts() -> None:
    s = Script()
    w = s.leaf("w")
    a, b = s.op("exp", 2, w, saves_result=True, name="a"), s.op("exp", 3, w, saves_result=True, name="b")
    s.write(a, 4)
    s.write(b, 5)
    s.backward(s.op("add", 6, a, b), 7)
    assert [(c.pattern, c.at.line) for c in loud(s.end())] == [("write", 5), ("write", 4)]


def test_one_statement_called_twice_is_one_conflict() -> None:
    s = Script()
    h = s.leaf("w")
    for call in (20, 21):
        h = s.op("sigmoid", (call, 4), h, saves_result=True)
        s.write(h, (call, 5))
    s.backward(h, 30)
    conflict = only(s.end())
    assert conflict.at.line == 5
    assert len(conflict.also) == 1


def test_write_before_the_save_is_harmless() -> None:
    s = Script()
    w = s.leaf("w")
    x = s.op("add", 2, w)
    s.write(x, 3)
    s.backward(s.op("exp", 4, x, saves_result=True), 5)
    assert not detect(s.end())


def test_write_after_the_backward_is_harmless() -> None:
    s = Script()
    y = s.op("exp", 2, s.leaf("w"), saves_result=True)
    s.backward(y, 3)
    s.write(y, 4)
    assert not detect(s.end())


@pytest.mark.parametrize(
    ("write", "pattern", "by"),
    [
        ({"op": "aten.embedding_renorm_"}, "renormalised", "the write"),
        (
            {"op": "aten.embedding", "how": "module", "module": "words"},
            "renormalised",
            "the renormalising lookup `words`",
        ),
        (
            {"op": "aten.relu_", "how": "module", "module": "net.2"},
            "module",
            "the in-place module `net.2` (`inplace=True`)",
        ),
        ({"op": "aten.clamp_"}, "write", "the write"),
        ({"op": "aten.copy_", "how": "detach"}, "write", "the write"),
    ],
)
def test_how_a_saved_tensor_was_overwritten(write: dict[str, str], pattern: str, by: str) -> None:
    s = Script()
    y = s.op("sigmoid", 2, s.leaf("w"), saves_result=True, name="y")
    s.write(y, 3, **write)  # type: ignore[arg-type]
    s.backward(y, 4)
    conflict = only(s.end())
    assert conflict.pattern == pattern
    assert f"`y` is overwritten by {by}" in conflict.message


def test_op_that_overwrites_what_it_saved_itself() -> None:
    s = Script()
    x = s.op("add", 2, s.leaf("w"), name="x")
    result = s.op("mul_", 3, x, saves=[x])
    record = s.nodes[result.node or 0]
    s.write(x, 3, "aten.mul_")
    s.events[s.events.index(record)] = s.nodes[record.node] = replace(record, output=s.ref(x))
    s.backward(result, 4)
    assert only(s.end()).pattern == "self-write"


def test_retained_state_of_the_pass_before_says_where_it_is_taken_over() -> None:
    conflict = only(recurrent(retain=True))
    assert (conflict.kind, conflict.pattern) == ("stale-saved-tensor", "optimizer-step")
    assert lines(conflict, "made") == [11]
    assert lines(conflict, "used") == [10]


# -- silent-overwrite ------------------------------------------------------------------------------


def hidden_write(wrong: float, **write: object) -> Tape:
    s = Script()
    y = s.op("sigmoid", 2, s.leaf("w"), saves_result=True, name="y")
    s.write(y, 3, counted=False, **write)  # type: ignore[arg-type]
    s.backward(y, 4, wrong=wrong)
    return s.end()


@pytest.mark.parametrize("how", ["data", "detach", "numpy", "set_data"])
def test_unseen_write_with_a_wrong_gradient(how: str) -> None:
    conflict = only(hidden_write(0.2, how=how))
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("silent-overwrite", how, 3)
    assert "20 % off" in conflict.message


def test_unseen_write_with_the_right_gradient_is_no_fault() -> None:
    assert not loud(hidden_write(0.0, how="data"))


@pytest.mark.parametrize(
    ("shares", "lines"), [((0.2, 0.0), [3]), ((0.0, 0.2), [5]), ((0.1, 0.2), [3, 5]), ((0.0, 0.0), [5])]
)
def test_unseen_writes_are_blamed_for_what_each_of_them_changes(
    shares: tuple[float, float], lines: list[int]
) -> None:
    """Where only both together change anything, the later one is the fault and the other follows from it."""
    s = Script()
    w = s.leaf("w")
    y = s.op("sigmoid", 2, w, saves_result=True, name="y")
    s.write(y, 3, counted=False, how="data")
    z = s.op("tanh", 4, w, saves_result=True, name="z")
    s.write(z, 5, counted=False, how="data")
    blame = tuple(zip([e.time for e in s.events if isinstance(e, Mutate)], shares, strict=True))
    s.backward(s.op("add", 6, y, z), 7, wrong=0.3, blame=blame)
    found = [c for c in detect(s.end()) if c.kind == "silent-overwrite"]
    assert lines == sorted(c.at.line for c in found)
    assert [len(lines) == 1 and not any(shares)] * len(found) == [bool(c.also) for c in found]


def test_running_statistics_are_not_blamed() -> None:
    assert not detect(hidden_write(0.3, op="aten.native_batch_norm"))


def test_fused_step_is_a_silent_overwrite() -> None:
    gan = Gan()
    s = gan.script
    score = gan.score(5, gan.fake(4))
    s.backward(gan.loss(6, score), 7, retain=True)
    s.step(gan.opt_d, 8, counted=False)
    s.backward(gan.loss(9, score), 10, wrong=0.1)
    conflict = only(s.end())
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("silent-overwrite", "fused-step", 8)


# -- freed-graph -----------------------------------------------------------------------------------


def recurrent(retain: bool = False, detach: bool = False) -> Tape:
    """State h carried over passes: used in line 10, made in line 11, differentiated in 14."""
    s = Script()
    w, u = s.leaf("cell.w"), s.leaf("cell.u")
    opt = s.optimizer("opt", [w, u], 3)
    h = s.data()
    for _ in range(3):
        mixed = s.linear(10, u, h)
        h = s.op("tanh", 11, s.op("add", 11, s.linear(11, w, s.data()), mixed), saves_result=True, name="h")
        s.zero(opt, 13)
        s.backward(s.op("mean", 12, h), 14, retain=retain)
        s.step(opt, 15)
        if detach:
            h = s.detach(h, 16)
    return s.end("steps")


def test_carried_state() -> None:
    conflict = only(recurrent())
    assert (conflict.kind, conflict.pattern) == ("freed-graph", "carried")
    assert (lines(conflict, "made"), lines(conflict, "used"), conflict.at.line) == ([11], [10], 14)
    assert conflict.record is not None
    assert conflict.record.op == "aten.tanh"


def test_detached_state_is_sound() -> None:
    assert not detect(recurrent(detach=True))


def test_fake_that_is_not_detached() -> None:
    conflict = only(gan())
    assert (conflict.kind, conflict.pattern) == ("freed-graph", "two-losses")
    assert (lines(conflict, "made"), lines(conflict, "crossing"), lines(conflict, "used")) == (
        [10],
        [12],
        [17],
    )
    assert [conflict.earlier and conflict.earlier.stack[-1].line, conflict.at.line] == [14, 19]


def test_stale_weights_behind_a_freed_graph_fold_into_it() -> None:
    conflict = only(gan(share=True))
    assert conflict.kind == "freed-graph"
    assert [c.kind for c in conflict.also] == ["stale-saved-tensor"]


def test_graph_made_before_the_loop() -> None:
    s = Script()
    e, d = s.leaf("enc.w"), s.leaf("dec.w")
    opt = s.optimizer("opt", [d], 3)
    z = s.op("tanh", 5, s.linear(5, e, s.data()), saves_result=True, name="latent")
    for _ in range(3):
        loss = s.op("mean", 7, s.linear(7, d, z))
        s.zero(opt, 8)
        s.backward(loss, 9)
        s.step(opt, 10)
    conflict = only(s.end("steps"))
    assert (conflict.pattern, lines(conflict, "made"), lines(conflict, "used")) == ("before-loop", [5], [7])


def test_a_term_made_once_and_added_in_every_pass_is_no_running_sum() -> None:
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 2)
    penalty = s.op("mul", 5, s.op("pow", 5, w, saves=[w]), saves_result=True, name="penalty")
    for _ in range(3):
        loss = s.op("add", 7, s.op("mse_loss", 6, s.linear(6, w, s.data()), saves=[w]), penalty)
        s.zero(opt, 8)
        s.backward(loss, 9)
        s.step(opt, 10)
    conflict = only(s.end("steps"))
    assert (conflict.pattern, conflict.at.line) == ("before-loop", 9)
    assert lines(conflict, "made") == [5]


def test_graph_made_before_an_inner_loop_in_every_outer_pass() -> None:
    gan = Gan()
    s = gan.script
    for _ in range(2):
        fake = s.op("tanh", 10, gan.fake(10), saves_result=True, name="fake")
        for _ in range(2):
            s.zero(gan.opt_d, 11)
            s.backward(gan.loss(12, gan.score(12, fake)), 13)
            s.step(gan.opt_d, 14)
        s.zero(gan.opt_g, 15)
        s.backward(gan.loss(16, gan.score(16, fake)), 17)
        s.step(gan.opt_g, 18)
    conflict = only(s.end("steps"))
    assert (conflict.pattern, conflict.at.line) == ("before-loop", 13)
    assert [c.at.line for c in conflict.also] == [17], (
        "the other loss reaches the same freed value: one fault"
    )


@pytest.mark.parametrize("mean", [False, True])
def test_loss_summed_over_passes(mean: bool) -> None:
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 2)
    total: Tensor | None = None
    for _ in range(3):
        loss = s.op("mse_loss", 5, s.linear(4, w, s.data()), saves=[w])
        total = s.op("add", 6, loss) if total is None else s.op("add", 6, total, loss, name="total")
        s.zero(opt, 7)
        s.backward(s.op("div", 8, total) if mean else total, 8)
        s.step(opt, 9)
    conflict = only(s.end("steps"))
    assert (conflict.pattern, conflict.at.line) == ("accumulated", 8)


def test_same_loss_twice() -> None:
    s = Script()
    loss = s.op("pow", 2, s.leaf("w"), saves_result=True, name="loss")
    s.backward(loss, 3)
    s.backward(loss, 4)
    conflict = only(s.end())
    assert (conflict.kind, conflict.pattern, conflict.at.line, lines(conflict, "used")) == (
        "freed-graph",
        "two-losses",
        4,
        [],
    )


def test_shared_nodes_that_save_nothing_are_walked_again_freely() -> None:
    s = Script()
    x = s.op("view", 2, s.leaf("w"))
    s.backward(s.op("sum", 3, x), 4)
    s.backward(s.op("mean", 5, x), 6)
    assert not detect(s.end())


def test_saved_numbers_count_where_pytorch_said_so() -> None:
    s = Script()
    x = s.op("mul", 2, s.leaf("w"))
    s.backward(s.op("sum", 3, x), 4)
    s.backward(s.op("mean", 5, x), 6, refused=SECOND)
    assert only(s.end()).pattern == "two-losses"


def test_retained_graph_of_two_losses_is_sound() -> None:
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 1)
    for _ in range(3):
        h = s.op("tanh", 2, s.linear(2, w, s.data()), saves_result=True)
        s.zero(opt, 3)
        s.backward(s.op("mean", 4, h), 5, retain=True)
        s.backward(s.op("sum", 6, h), 7)
        s.step(opt, 8)
    assert not detect(s.end())


# -- refused on the spot ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kind", "pattern"),
    [
        (LEAF, "leaf-write", "leaf"),
        (VIEW, "leaf-write", "view"),
        (
            "Output 0 of UnbindBackward0 is a view and is being modified inplace. This view is the output "
            "of a function that returns multiple views.",
            "forbidden-view-write",
            "multi-view",
        ),
        (
            "A view was created in no_grad mode and is being modified inplace with grad mode enabled.",
            "forbidden-view-write",
            "no-grad-view",
        ),
        (
            "unsupported operation: more than one element of the written-to tensor refers to a single "
            "memory location.",
            "forbidden-view-write",
            "expanded",
        ),
    ],
)
def test_refused_writes(words: str, kind: str, pattern: str) -> None:
    s = Script()
    w = s.leaf("w")
    for _ in range(2):
        s.write(w, 3, refused=words)
    conflict = only(s.end())
    assert (conflict.kind, conflict.pattern, conflict.at.line) == (kind, pattern, 3)


def test_a_refused_view_is_not_called_by_another_views_name() -> None:
    s = Script()
    first = s.leaf("first")  # (all of them share the storage that has this name)
    s.write(first, 3, refused="Output 1 of SplitBackward0 is a view and is being modified inplace.")
    conflict = only(s.end())
    assert not [said for said in (conflict.message, *(x.text for x in conflict.labels)) if "first" in said]


def test_what_a_refused_write_spoils_is_its_consequence() -> None:
    s = Script()
    w = s.leaf("w")
    y = s.op("mul", 2, w, saves=[w])
    s.write(w, 3, refused=LEAF)
    s.backward(y, 4)
    conflict = only(s.end())
    assert (conflict.kind, [c.kind for c in conflict.also]) == ("leaf-write", ["stale-saved-tensor"])


@pytest.mark.parametrize(
    ("how", "why"), [("tensor", "no graph"), ("discrete", "not of the scores behind it")]
)
def test_loss_without_a_graph(how: str, why: str) -> None:
    s = Script()
    loss = s.op("mean", 3, s.linear(2, s.leaf("w"), s.data()), name="loss")
    s.backward(s.cut(how, loss, 4), 5, refused=NO_GRAPH)
    conflict = only(s.end())
    assert (conflict.kind, conflict.pattern, lines(conflict, "cut")) == ("cut-graph", "no-graph", [4])
    assert why in conflict.message


def test_parameter_read_under_no_grad_before_its_graph_is_not_the_likeliest_cut() -> None:
    s = Script()
    w = s.leaf("w")
    s.cut("no_grad", w, 1)  # as its first values are drawn
    scores = s.linear(2, w, s.data())
    s.backward(s.cut("discrete", scores, 3), 4, refused=NO_GRAPH)
    s.op("mean", 5, s.linear(5, w, s.data()), name="loss")
    assert lines(only(s.end()), "cut") == [3]


def test_number_read_for_a_log_is_not_the_likeliest_cut() -> None:
    s = Script()
    loss = s.op("mean", 3, s.linear(2, s.leaf("w"), s.data()), name="loss")
    cut = s.detach(loss, 4)
    s.cut("item", loss, 5)
    s.backward(cut, 6, refused=NO_GRAPH)
    assert lines(only(s.end()), "cut") == [4]


def test_gradient_of_a_non_leaf_is_read() -> None:
    s = Script()
    y = s.op("exp", 2, s.leaf("w"), saves_result=True, name="y")
    s.backward(y, 3)
    s.grad_read(y, 4)
    conflict = only(s.end())
    assert (conflict.kind, conflict.pattern, lines(conflict, "made"), conflict.at.line) == (
        "missing-grad",
        "read",
        [2],
        4,
    )


def test_optimizer_that_refuses_a_non_leaf() -> None:
    s = Script()
    s.op("to", 2, s.leaf("w"), name="w")
    s.failure("ValueError", "can't optimize a non-leaf Tensor", 3)
    conflict = only(s.end("failed"))
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("missing-grad", "parameter", 2)


def test_detached_copies_that_an_optimizer_takes_are_leaves_in_the_memory_of_an_op() -> None:
    s = Script()
    copy = s.op("clone", 2, s.leaf("net.weight"), name="weights[0]")
    s.optimizer("opt", [copy], 3)  # PyTorch took it, so it is a leaf
    assert not detect(s.end())


def test_parameter_converted_by_accident() -> None:
    s = Script()
    w = s.leaf("net.lin.weight")
    scale = s.op("_to_copy", 3, s.leaf(""), name="net.scale")
    opt = s.optimizer("opt", [w], 4)
    for _ in range(3):
        s.zero(opt, 6)
        s.backward(s.op("mul", 5, s.linear(5, w, s.data()), scale, saves=[scale]), 7)
        s.step(opt, 8)
    conflict = only(s.end())
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("missing-grad", "parameter", 3)


@pytest.mark.parametrize(
    ("type", "message"),
    [
        ("IndexError", "invalid index of a 0-dim tensor. Use `tensor.item()` in Python ..."),
        ("TypeError", "Tensor.backward() got an unexpected keyword argument 'retain_variables'"),
        ("AttributeError", "module 'torch.nn.utils' has no attribute 'clip_grad_norm'"),
    ],
)
def test_api_that_is_gone(type: str, message: str) -> None:
    s = Script()
    s.failure(type, message, 3)
    conflict = only(s.end("failed"))
    assert (conflict.kind, conflict.severity) == ("legacy-api", "error")


@pytest.mark.parametrize("filled", [True, False])
def test_gradient_that_zero_grad_took_away(filled: bool) -> None:
    s = Script()
    used, other = s.leaf("net.used"), s.leaf("net.other")
    opt = s.optimizer("opt", [used, other], 2)
    s.backward(s.linear(3, other if filled else used, s.data()), 4)
    s.step(opt, 5)
    s.zero(opt, 6)
    s.backward(s.linear(7, used, s.data()), 8)
    s.none(other, 9)
    s.failure("AttributeError", "'NoneType' object has no attribute 'data'", 9)
    found = [c for c in detect(s.end("failed")) if c.kind == "legacy-api"]
    assert [(c.pattern, c.severity, [x.at.line for x in c.labels]) for c in found] == (
        [("cleared", "error", [6, 9])] if filled else []
    )


def test_failure_that_is_not_autograds() -> None:
    s = Script()
    s.failure("ValueError", "Target size (torch.Size([5, 1])) must be the same as input size", 3)
    assert not detect(s.end("failed"))


# -- what optimizers show --------------------------------------------------------------------------


def test_generator_that_never_learns() -> None:
    gan = Gan()
    s = gan.script
    for _ in range(3):
        fake = gan.fake(10)
        s.zero(gan.opt_d, 11)
        s.backward(gan.loss(12, gan.score(12, s.detach(fake, 12))), 13)
        s.step(gan.opt_d, 14)
        s.zero(gan.opt_g, 15)
        s.backward(gan.loss(16, gan.score(16, s.detach(fake, 16))), 17)
        s.step(gan.opt_g, 18)
    conflict = only(s.end("steps"))
    assert (conflict.kind, conflict.pattern, conflict.severity) == ("cut-graph", "dead-parameter", "error")
    assert conflict.at.line == 16


def test_frozen_optimizer_is_silent() -> None:
    s = Script()
    w, frozen = s.leaf("w"), s.leaf("frozen")
    opt, other = s.optimizer("opt", [w], 1), s.optimizer("other", [frozen], 2)
    for _ in range(3):
        s.zero(opt, 3)
        s.backward(s.linear(4, w, s.data()), 5)
        s.step(opt, 6)
        s.step(other, 7)
    assert not detect(s.end())


def rewrapped(push_back: bool) -> Tape:
    s = Script()
    enc, dec = s.leaf("enc.w"), s.leaf("dec.w")
    opt = s.optimizer("opt", [enc, dec], 2)
    for _ in range(3):
        out = s.linear(4, enc, s.data(), "out")
        leaf = s.cut("data", out, 5)
        leaf.node = ~leaf.storage
        s.tensors[leaf.storage] = leaf
        s.zero(opt, 6)
        s.backward(s.linear(7, dec, leaf), 8)
        if push_back:
            s.backward(out, 9)
        s.step(opt, 10)
    return s.end()


def test_leaf_made_of_a_cut_value_keeps_the_gradient_to_itself() -> None:
    conflict = only(rewrapped(push_back=False))
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("cut-graph", "rewrapped", 5)


def test_gradient_pushed_back_by_hand_is_sound() -> None:
    assert not loud(rewrapped(push_back=True))


@pytest.mark.parametrize("through_data", [True, False])
def test_inner_update_through_data_loses_the_second_order(through_data: bool) -> None:
    s = Script()
    meta = s.leaf("meta")
    opt = s.optimizer("opt", [meta], 2)
    for _ in range(3):
        fast = s.op("clone", 4, meta, name="fast")
        s.zero(opt, 5)
        s.backward(s.op("mm", 6, fast, saves=[fast]), 6, create=True, inputs=[])
        s.filled.clear()
        if through_data:
            s.write(fast, 7, counted=False, how="data")
        else:
            fast = s.op("sub", 7, fast)
        s.backward(s.op("mm", 8, fast, saves=[fast]), 8)
        s.step(opt, 9)
    found = [(c.kind, c.pattern, c.at.line) for c in loud(s.end())]
    assert found == ([("cut-graph", "second-order", 7)] if through_data else [])


def loop(*statements: str, passes: int = 3) -> Tape:
    """One model and one optimizer, the statements in this order in every pass."""
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 1)
    for _ in range(passes):
        loss = s.linear(2, w, s.data())
        for line, statement in enumerate(statements, 3):
            if statement == "backward":
                s.backward(loss, line)
            else:
                getattr(s, statement)(opt, line)
    return s.end("steps")


def test_no_zero_grad() -> None:
    conflict = only(loop("backward", "step"))
    assert (conflict.kind, conflict.pattern, conflict.severity) == (
        "unreset-grad",
        "never-cleared",
        "warning",
    )
    assert conflict.at.line == 3


def test_zero_grad_between_backward_and_step() -> None:
    conflict = only(loop("backward", "zero", "step"))
    assert (conflict.kind, conflict.pattern, lines(conflict, "zero")) == (
        "unreset-grad",
        "cleared-before-step",
        [4],
    )


def test_step_before_backward() -> None:
    conflict = only(loop("zero", "step", "backward"))
    assert (conflict.kind, conflict.pattern) == ("unreset-grad", "cleared-before-step")


@pytest.mark.parametrize("order", [("zero", "backward", "step"), ("backward", "step", "zero")])
def test_usual_orders_are_sound(order: tuple[str, ...]) -> None:
    assert not detect(loop(*order))


def test_accumulating_over_batches_on_purpose() -> None:
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 1)
    for i in range(8):
        s.backward(s.linear(2, w, s.data()), 3)
        if i % 2:
            s.step(opt, 4)
            s.zero(opt, 5)
    assert not detect(s.end())


def test_clearing_once_an_epoch() -> None:
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 1)
    for _ in range(2):
        s.zero(opt, 2)
        for _ in range(3):
            s.backward(s.linear(3, w, s.data()), 4)
            s.step(opt, 5)
    conflict = only(s.end())
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("unreset-grad", "never-cleared", 4)


def test_a_pass_now_and_then_that_does_not_clear() -> None:
    s = Script()
    w = s.leaf("w")
    opt = s.optimizer("opt", [w], 1)
    for i in range(6):
        if i != 3:
            s.zero(opt, 2)
        s.backward(s.linear(3, w, s.data()), 4)
        s.step(opt, 5)
    assert not detect(s.end())


def test_optimizer_of_a_replaced_layer() -> None:
    s = Script()
    body, old = s.leaf("model.body.weight"), s.leaf("model.fc.weight")
    opt = s.optimizer("opt", [body, old], 3)
    new = s.leaf("model.fc.weight")
    for _ in range(3):
        s.zero(opt, 5)
        s.backward(s.linear(6, new, s.linear(6, body, s.data())), 7)
        s.step(opt, 8)
    conflict = only(s.end())
    assert (conflict.kind, conflict.at.line) == ("stray-optimizer", 3)


def test_layer_that_is_given_its_values_and_read_is_not_replaced() -> None:
    """Another of its name gets gradients: a copy that somebody else trains."""
    s = Script()
    body, mean = s.leaf("net.body"), s.leaf("net.head")
    opt = s.optimizer("opt", [body, mean], 3)
    other = s.leaf("net.head")
    for _ in range(3):
        s.zero(opt, 5)
        s.linear(6, mean, s.data())
        s.backward(s.linear(7, other, s.linear(7, body, s.data())), 8)
        s.step(opt, 9)
        s.write(mean, 10, op="aten.copy_")
    assert not [c for c in detect(s.end()) if c.kind == "stray-optimizer"]


def test_layer_of_nobodys_beside_inputs_whose_gradients_are_looked_at_is_silent() -> None:
    """What the program does with them, nobody can say."""
    s = Script()
    w, unused = s.leaf("net.weight"), s.leaf("probe.weight")
    opt = s.optimizer("opt", [unused], 3)
    for _ in range(3):
        s.zero(opt, 5)
        s.backward(s.linear(6, w, s.data()), 7)
        s.step(opt, 8)
        s.write(w, 9, op="aten.sub_")
    assert not detect(s.end())


def test_unused_head_beside_a_pretrained_critic_is_silent() -> None:
    s = Script()
    w, head, vgg = s.leaf("net.w"), s.leaf("net.head"), s.leaf("vgg.w")
    opt = s.optimizer("opt", [w, head], 3)
    for _ in range(3):
        s.zero(opt, 5)
        s.backward(s.linear(6, vgg, s.linear(6, w, s.data())), 7)
        s.step(opt, 8)
    assert not detect(s.end())


def test_gradient_left_over_for_the_other_step() -> None:
    gan = Gan()
    s = gan.script
    for _ in range(3):
        s.zero(gan.opt_g, 10)
        s.zero(gan.opt_d, 10)
        fake = gan.fake(11)
        s.backward(gan.loss(12, gan.score(12, fake)), 13)
        s.step(gan.opt_g, 14)
        s.backward(gan.loss(15, gan.score(15, s.detach(fake, 15))), 16)
        s.step(gan.opt_d, 17)
    conflict = only(s.end("steps"))
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("mixed-gradient", "left-over", 13)
    assert conflict.backward is not None
    assert conflict.backward.stack[-1].line == 16


def test_loss_that_flows_on_into_the_other_model() -> None:
    gan = Gan()
    s = gan.script
    for _ in range(3):
        fake = gan.fake(10)
        score = gan.score(11, fake)
        s.zero(gan.opt_g, 13)
        s.backward(gan.loss(12, score), 14, retain=True)
        s.zero(gan.opt_d, 15)
        s.backward(s.op("neg", 12, score), 16)
        s.step(gan.opt_g, 17)
        s.step(gan.opt_d, 18)
    conflict = only(s.end("steps"))
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("mixed-gradient", "flows-on", 16)
    assert (lines(conflict, "made"), lines(conflict, "used")) == ([10], [11])


def test_shared_encoder_with_two_heads_and_three_optimizers_is_sound() -> None:
    s = Script()
    e, a, b = s.leaf("enc.w"), s.leaf("a.w"), s.leaf("b.w")
    opts = [s.optimizer(n, [w], 1) for n, w in (("opt_e", e), ("opt_a", a), ("opt_b", b))]
    for _ in range(3):
        for opt in opts:
            s.zero(opt, 3)
        h = s.linear(4, e, s.data())
        s.backward(s.linear(5, a, h), 6, retain=True)
        s.backward(s.linear(7, b, h), 8)
        for opt in opts:
            s.step(opt, 9)
    assert not detect(s.end("steps"))


def test_heads_stepped_in_turn_before_their_encoder_is_sound() -> None:
    s = Script()
    e, a, b = s.leaf("enc.w"), s.leaf("a.w"), s.leaf("b.w")
    opt_e, opt_a, opt_b = (s.optimizer(n, [w], 1) for n, w in (("opt_e", e), ("opt_a", a), ("opt_b", b)))
    for _ in range(3):
        for head, opt, line in ((a, opt_a, 5), (b, opt_b, 10)):
            s.zero(opt, line)
            s.backward(s.linear(line, head, s.linear(line, e, s.data())), line + 1)
            s.step(opt, line + 2)
        s.step(opt_e, 14)
        s.zero(opt_e, 15)
    assert not detect(s.end("steps"))


def test_gan_with_detached_fakes_is_sound() -> None:
    assert not detect(gan(detach=True))


def test_gradient_computed_for_nothing() -> None:
    (note,) = notes(gan(retain=True))
    assert (note.kind, note.pattern, lines(note, "used")) == ("wasted-backward", "discarded", [12])


def test_idle_retain_graph() -> None:
    (note,) = notes(gan(detach=True, retain=True, last="finished"))
    assert (note.kind, note.pattern, note.at.line) == ("wasted-backward", "idle-retain", 14)


def test_retain_graph_of_create_graph_is_not_idle() -> None:
    s = Script()
    x = s.op("pow", 2, s.leaf("x"), saves_result=True)
    s.backward(x, 3, create=True)
    s.backward(s.op("mean", 4, x), 5)
    assert not detect(s.end())


def test_data_attribute_is_one_note_a_place() -> None:
    s = Script()
    w = s.leaf("w")
    for _ in range(3):
        s.cut("data", w, 4)
    s.cut("data", w, 5)
    assert [(c.kind, c.severity, c.at.line) for c in detect(s.end())] == [
        ("data-attribute", "note", 4),
        ("data-attribute", "note", 5),
    ]


# -- attached-target -------------------------------------------------------------------------------


def q_learning(detach: bool = False, other: bool = False, shared: bool = False) -> Tape:
    """``mse(q(s), r + gamma * q(s2).max())``: the target by the same net or an `other`, or of one pass."""
    s = Script()
    w, t = s.leaf("q.weight"), s.leaf("target.weight")
    opt: Optim = s.optimizer("opt", [w], 2)
    for _ in range(3):
        now = s.linear(4, w, s.data())
        nxt = now if shared else s.linear(5, t if other else w, s.data(), "next_q")
        best = s.op("max", 5, nxt)
        if detach:
            best = s.detach(best, 6)
        target = s.op("add", 7, s.op("mul", 7, best)) if best.node is not None else best
        s.zero(opt, 8)
        s.backward(s.op("mse_loss", 9, s.op("gather", 4, now), target, saves=[now]), 10)
        s.step(opt, 11)
    return s.end("steps")


def test_bootstrapped_target_with_its_graph() -> None:
    conflict = only(q_learning())
    assert (conflict.kind, conflict.pattern, conflict.severity) == ("attached-target", "bootstrap", "warning")
    assert conflict.at.line == 5


@pytest.mark.parametrize("sound", [{"detach": True}, {"other": True}, {"shared": True}])
def test_other_targets_are_silent(sound: dict[str, bool]) -> None:
    assert not loud(q_learning(**sound))


def test_siamese_regression_is_silent() -> None:
    s = Script()
    w = s.leaf("net.weight")
    opt = s.optimizer("opt", [w], 2)
    for _ in range(3):
        a, b = s.linear(4, w, s.data()), s.linear(5, w, s.data())
        s.zero(opt, 6)
        s.backward(s.op("mse_loss", 7, a, b, saves=[a, b]), 8)
        s.step(opt, 9)
    assert not detect(s.end("steps"))


@pytest.mark.parametrize("detach", [False, True])
def test_advantage_with_its_graph(detach: bool) -> None:
    s = Script()
    actor, critic = s.leaf("actor.w"), s.leaf("critic.w")
    opts = [s.optimizer("opt_a", [actor], 1), s.optimizer("opt_c", [critic], 2)]
    for _ in range(3):
        logits = s.linear(4, actor, s.data())
        logp = s.op("gather", 5, s.op("sub", 4, logits, s.op("logsumexp", 4, logits)))
        advantage = s.op("rsub", 6, s.linear(6, critic, s.data()), name="advantage")
        policy = s.op(
            "mul", 7, logp, s.detach(advantage, 7) if detach else advantage, saves=[logp, advantage]
        )
        value = s.op("pow", 8, advantage, saves=[advantage])
        for opt in opts:
            s.zero(opt, 9)
        s.backward(s.op("add", 10, s.op("mean", 10, policy), s.op("mean", 10, value)), 10)
        for opt in opts:
            s.step(opt, 11)
    found = [(c.kind, c.pattern, lines(c, "target")) for c in loud(s.end("steps"))]
    assert found == ([] if detach else [("attached-target", "advantage", [6])])


# -- the whole -------------------------------------------------------------------------------------


def test_every_pattern_is_declared() -> None:
    assert set(PATTERNS) == set(KINDS)
    for tape in (gan(), gan(retain=True, share=True), recurrent(), loop("backward", "step"), q_learning()):
        for conflict in detect(tape):
            assert conflict.pattern in PATTERNS[conflict.kind]


def test_sentence_in_the_words_of_the_source() -> None:
    text = "\n" * 13 + "    loss_d.backward()\n" + "\n" * 4 + "    loss_g.backward()\n"
    conflict = only(gan())
    assert describe(conflict, {FILE: text.replace(")", ")" + " " * 8)}).startswith(
        "`loss_g.backward()` needs"
    )
    assert describe(conflict, {}) == conflict.message


def test_long_tapes_are_read_in_seconds() -> None:
    s = Script()
    weights = [s.leaf(f"net.{i}.weight") for i in range(30)]
    opt = s.optimizer("opt", weights, 1)
    for _ in range(700):
        h = s.op("exp", 2, weights[0])
        for i, w in enumerate(weights):
            h = s.op("relu", 4, s.linear(3 + i, w, h), saves_result=True)
        s.zero(opt, 50)
        s.backward(h, 51)
        s.step(opt, 52)
    tape = s.end()
    start = time.process_time()
    assert len(tape.events) > 60_000
    assert not detect(tape)
    assert time.process_time() - start < 10
