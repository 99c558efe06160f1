"""The same work as a family's, by torch: which call of the library it is that a winner is compared with.

Arguments are named and laid out as in the family's kernel.toml. Nothing here is timed; ``torch`` is passed in, so that
what needs none can do without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Problem = Mapping[str, Any]
Tensors = Mapping[str, Any]
Work = Callable[[], Any]


def library_call(torch: Any, family: str, problem: Problem, given: Tensors) -> Work | None:
    """What computes the family's output from its inputs ``given``; None for a family that torch has no call for."""
    make = _CALLS.get(family)
    return None if make is None else make(torch, problem, given)


def library_name(family: str) -> str:
    return _NAMES.get(family, "")


def use_plain_float32(torch: Any) -> None:
    """No TF32: float32 means float32. cuDNN may try what is fastest."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def _matmul(torch: Any, problem: Problem, given: Tensors) -> Work:
    m, n, k = (int(problem[name]) for name in "mnk")
    a = given["A"].view(m, k) if problem.get("a_layout", "row") == "row" else given["A"].view(k, m).t()
    b = given["B"].view(k, n) if problem.get("b_layout", "row") == "row" else given["B"].view(n, k).t()
    return lambda: torch.matmul(a, b)


def _softmax(torch: Any, problem: Problem, given: Tensors) -> Work:
    x = given["x"]
    return lambda: torch.softmax(x, -1)


def _layernorm(torch: Any, problem: Problem, given: Tensors) -> Work:
    x, gamma, beta, eps = given["x"], given["gamma"], given["beta"], float(problem["eps"])
    return lambda: torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps)


def _rmsnorm(torch: Any, problem: Problem, given: Tensors) -> Work:
    x, gamma, eps = given["x"], given["gamma"], float(problem["eps"])
    return lambda: torch.nn.functional.rms_norm(x, gamma.shape, gamma, eps)


def _attention(torch: Any, problem: Problem, given: Tensors) -> Work:
    q, k, v = (given[name] for name in "QKV")
    causal = problem["causal"] == "yes"
    if causal and problem["q_len"] != problem["kv_len"]:
        raise ValueError("torch's causal mask begins at the first key, the family's ends at the last one")
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _reduction(torch: Any, problem: Problem, given: Tensors) -> Work:
    x = given["x"]
    return (lambda: torch.sum(x, -1)) if problem["operation"] == "sum" else (lambda: torch.amax(x, -1))


def _scan(torch: Any, problem: Problem, given: Tensors) -> Work:
    x = given["x"]
    return lambda: torch.cumsum(x, -1)


def _transpose(torch: Any, problem: Problem, given: Tensors) -> Work:
    x = given["x"]
    return lambda: x.t().contiguous()


def _elementwise(torch: Any, problem: Problem, given: Tensors) -> Work:
    x, y, alpha = given["x"], given["y"], float(problem["alpha"])
    return lambda: torch.add(y, x, alpha=alpha)


def _conv2d(torch: Any, problem: Problem, given: Tensors) -> Work:
    x, weights, stride, pad = given["x"], given["weights"], int(problem["stride"]), int(problem["pad"])
    return lambda: torch.nn.functional.conv2d(x, weights, stride=stride, padding=pad)


def _histogram(torch: Any, problem: Problem, given: Tensors) -> Work:
    keys, bins = given["keys"], int(problem["bins"])
    return lambda: torch.bincount(keys, minlength=bins)


def _spmv(torch: Any, problem: Problem, given: Tensors) -> Work:
    size = int(problem["rows"]), int(problem["cols"])
    matrix = torch.sparse_csr_tensor(given["offsets"], given["columns"], given["values"], size, check_invariants=False)
    x = given["x"]
    return lambda: torch.mv(matrix, x)


def _stencil(dimensions: int) -> Callable[[Any, Problem, Tensors], Work]:
    def make(torch: Any, problem: Problem, given: Tensors) -> Work:
        taps = torch.zeros((3,) * dimensions, dtype=torch.float32, device=given["x"].device)
        taps[(1,) * dimensions] = float(problem["centre"])
        for axis in range(dimensions):
            for side in (0, 2):
                taps[tuple(side if a == axis else 1 for a in range(dimensions))] = float(problem["side"])
        x, weights = given["x"][None, None], taps[None, None]
        convolve = torch.nn.functional.conv2d if dimensions == 2 else torch.nn.functional.conv3d
        return lambda: convolve(x, weights, padding=1)[0, 0]

    return make


_CALLS: Mapping[str, Callable[[Any, Problem, Tensors], Work]] = {
    "matmul": _matmul,
    "matmul_half": _matmul,
    "conv2d": _conv2d,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
    "attention": _attention,
    "reduction": _reduction,
    "scan": _scan,
    "transpose": _transpose,
    "elementwise": _elementwise,
    "histogram": _histogram,
    "spmv": _spmv,
    "stencil2d": _stencil(2),
    "stencil3d": _stencil(3),
}
_NAMES = {
    "matmul": "torch.matmul (cuBLAS)",
    "matmul_half": "torch.matmul (cuBLAS)",
    "conv2d": "conv2d (cuDNN)",
    "softmax": "torch.softmax",
    "layernorm": "layer_norm",
    "rmsnorm": "rms_norm",
    "attention": "scaled_dot_product_attention",
    "reduction": "torch.sum, torch.amax",
    "scan": "torch.cumsum",
    "transpose": "x.t().contiguous()",
    "elementwise": "torch.add",
    "histogram": "torch.bincount",
    "spmv": "torch.mv (cuSPARSE)",
    "stencil2d": "conv2d (cuDNN)",
    "stencil3d": "conv3d (cuDNN)",
}
