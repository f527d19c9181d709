"""Muon against the singular value decomposition, a hand-written step, and broken versions of itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gptbook import muon
from gptbook.muon import Muon, Together, orthogonalised


def matrix(m, n, seed=0, *batch):
    return torch.randn(*batch, m, n, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([1e-6, 1.0, 1e6]))
def test_singular_values_come_near_one_and_singular_vectors_stay(m, n, seed, size):
    """A failure would mean that a step is large in some directions and next to nothing in others, as without Muon."""
    U, S, Vh = torch.linalg.svd(matrix(m, n, seed), full_matrices=False)
    S = torch.linspace(1.0, 0.1, len(S))  # none so small that five rounds cannot lift it
    found = orthogonalised(size * (U * S) @ Vh)
    values = U.mT @ found @ Vh.mT  # diagonal, if the vectors are the same
    assert torch.allclose(values, torch.diag(values.diagonal()), atol=2e-3)
    assert values.diagonal().min() > 0.6
    assert values.diagonal().max() < 1.3


def test_the_polynomial_is_followed_to_the_digit():
    """Each singular value goes its own way, through the polynomial five times."""
    U, _, Vh = torch.linalg.svd(matrix(6, 9).double(), full_matrices=False)
    S = torch.tensor([3.0, 1.0, 0.5, 0.2, 0.1, 0.01], dtype=torch.float64)
    found = orthogonalised((U * S) @ Vh, torch.float64)
    expected = S / S.norm()
    for _ in range(muon.STEPS):
        expected = muon.A * expected + muon.B * expected**3 + muon.C * expected**5
    assert torch.allclose(torch.linalg.svdvals(found).sort().values, expected.abs().sort().values, atol=1e-5)


def test_a_stack_of_matrices_is_each_by_itself():
    stack = matrix(5, 7, 1, 3)
    for whole, alone in zip(orthogonalised(stack), stack, strict=True):
        assert torch.allclose(whole, orthogonalised(alone), atol=1e-5)


def test_nothing_comes_of_nothing():
    """A matrix without a gradient, of a layer that is never used, must not become NaN."""
    assert torch.equal(orthogonalised(torch.zeros(3, 4)), torch.zeros(3, 4))


@pytest.mark.parametrize("G", [torch.ones(3), torch.tensor(1.0), torch.eye(2, dtype=torch.int64)])
def test_what_is_no_matrix_of_real_numbers_is_refused(G):
    with pytest.raises(ValueError, match=r"orthogonalised needs \(..., m, n\) real numbers, got torch"):
        orthogonalised(G)


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 1), (0, 3, 5), (3, 0), (0, 0)])
def test_matrices_come_in_any_number(shape):
    G = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalised(G)
    assert found.shape == G.shape
    assert torch.isfinite(found).all()


def stepped(weight, gradients, lr=0.1, momentum=0.9, weight_decay=0.0, rows=None):
    """The weight after one step of Muon for each of the gradients."""
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = Muon([{"params": [parameter], "rows": rows}], lr=lr, momentum=momentum, weight_decay=weight_decay)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)], ids=str)
def test_two_steps_by_hand(shape):
    """Momentum that looks ahead, decay that does not depend on the gradient, a larger rate for tall matrices."""
    weight, first, second = (matrix(*shape, seed) for seed in range(3))
    lr, beta, decay = 0.1, 0.9, 0.2
    expected, average = weight.clone(), torch.zeros(shape)
    for gradient in (first, second):
        average = beta * average + (1 - beta) * gradient
        ahead = beta * average + (1 - beta) * gradient
        expected = expected * (1 - lr * decay)
        expected = expected - lr * max(1, shape[0] / shape[1]) ** 0.5 * orthogonalised(ahead)
    found = stepped(weight, (first, second), lr, beta, decay)
    assert torch.allclose(found, expected, atol=1e-5)


def test_packed_matrices_are_turned_one_by_one():
    """Queries, keys and values lie in one parameter, and each is a matrix of its own."""
    weight, gradient = matrix(12, 4), matrix(12, 4, 1) * torch.tensor([1.0, 10.0, 100.0]).repeat_interleave(4)[:, None]
    packed = stepped(weight, [gradient], rows=[4, 4, 4])
    alone = [stepped(w, [g]) for w, g in zip(weight.split(4), gradient.split(4), strict=True)]
    assert torch.allclose(packed, torch.cat(alone), atol=1e-5)
    assert not torch.allclose(packed, stepped(weight, [gradient]), atol=1e-2)  # the negative control


def test_what_has_no_gradient_stays():
    parameter = torch.nn.Parameter(matrix(3, 3))
    before = parameter.detach().clone()
    Muon([parameter], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(parameter, before)


def test_two_optimizers_share_their_memory_and_keep_their_parameters():
    """A failure would mean that a run kept on disk forgets the moments of one of the two."""
    a, b = torch.nn.Parameter(matrix(3, 3)), torch.nn.Parameter(matrix(1, 3)[0])
    both = Together(torch.optim.AdamW([b], lr=0.1), Muon([a], lr=0.1))
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    both.step()
    assert set(both.state) == {a, b}
    assert set(both.state[a]) == {"momentum"}
    assert "exp_avg" in both.state[b]
    assert [group["params"] for group in both.param_groups] == [[b], [a]]
    both.zero_grad()
    assert a.grad is None
    assert b.grad is None
