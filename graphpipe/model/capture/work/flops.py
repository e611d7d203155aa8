"""How many floating-point operations the operators of torch compute.

Products of matrices, convolutions, distances, transforms and decompositions have a formula: torch's own where
`torch.utils.flop_counter` has one, and one of this file otherwise. A multiplication and an addition are two operations.
Every other operator moves bytes: it does a few operations for each element that it reads, and its time is that of its
traffic.

References:
    Golub, Van Loan: Matrix Computations, 4th edition (2013), for decompositions.
    Cooley, Tukey: An algorithm for the machine calculation of complex Fourier series (1965): 5 n log2 n operations.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

Formula = Callable[[Sequence[Any], Any], float]
"""The operations of a call, from its arguments and its result."""


def has_formula(func: Any) -> bool:
    """Return whether an operator's floating-point operations are computed by a formula."""
    return func.overloadpacket in FORMULAS or func.overloadpacket in flop_registry


def flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Return the floating-point operations of a call of an operator; 0 if it only moves bytes.

    A number of rows that depends on values makes the result symbolic.
    """
    if formula := FORMULAS.get(func.overloadpacket):
        return formula(_positional(func, args, kwargs), result)
    formula = flop_registry.get(func.overloadpacket)
    return formula(*args, **kwargs, out_val=result) if formula else 0.0


def _positional(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    # The arguments in the order of the schema, with its defaults.
    rest = func._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(argument.name, argument.default_value) for argument in rest)]


def _attention(args: Sequence[Any], result: Any) -> float:
    # Queries x keys, then weights x values.
    (batch, heads, queries, width), keys, out = args[0].shape, args[1].shape[2], args[2].shape[3]
    return 2 * batch * heads * queries * keys * (width + out)


def _grouped(args: Sequence[Any], result: Any) -> float:
    return 2 * args[0].numel() * result.shape[-1]


def _by_vector(matrix: int) -> Formula:
    # A matrix times a vector: each element of the matrix is multiplied and added once.
    return lambda args, result: 2 * args[matrix].numel()


def _product(left: int) -> Formula:
    # Each element of the result is a product of a row of the left matrix.
    return lambda args, result: 2 * result.numel() * args[left].shape[-1]


def _batched_sum(args: Sequence[Any], result: Any) -> float:
    return 2 * args[1].numel() * args[2].shape[-1]


def _foreach(args: Sequence[Any], result: Any) -> float:
    return sum(2 * one.numel() * other.shape[-1] for one, other in zip(args[0], args[1], strict=True))


def _trilinear(args: Sequence[Any], result: Any) -> float:
    # Every combination of the elements of three tensors is multiplied, then added over some dimensions.
    sizes: dict[int, int] = {}
    for tensor, expanded in zip(args[:3], args[3:6], strict=True):
        places = [at for at in range(tensor.dim() + len(expanded)) if at not in expanded]
        for at, size in zip(places, tensor.shape, strict=True):
            sizes[at] = max(sizes.get(at, 1), size)
    return 2 * math.prod(sizes.values())


def _temporal_convolution(args: Sequence[Any], result: Any) -> float:
    # conv_tbc: an input of (time, batch, channels), and a weight of (kernel, channels, outputs).
    kernel, channels, _ = args[1].shape
    return 2 * result.numel() * kernel * channels


def _distances(args: Sequence[Any], result: Any) -> float:
    # A difference, a power and an addition for each element of each pair of rows.
    return 3 * result.numel() * args[0].shape[-1]


def _transform(args: Sequence[Any], result: Any) -> float:
    # Cooley and Tukey (1965); with real numbers on one side it is half of it.
    longest = args[0] if args[0].numel() >= result.numel() else result
    length = math.prod(longest.shape[at] for at in args[1])
    real = not (args[0].is_complex() and result.is_complex())
    return 5 * longest.numel() * math.log2(max(length, 2)) / (2 if real else 1)


def _batches(matrix: Tensor) -> tuple[int, int, int]:
    # The number of matrices, and their longer and shorter side.
    rows, columns = matrix.shape[-2:]
    return math.prod(matrix.shape[:-2]), max(rows, columns), min(rows, columns)


def _cubic(factor: float) -> Formula:
    # A decomposition of a square matrix of n rows: factor x n^3.
    def operations(args: Sequence[Any], result: Any) -> float:
        count, rows, _ = _batches(args[0])
        return factor * count * rows**3

    return operations


def _rectangular(long: float, short: float) -> Formula:
    # A decomposition of m x n: (long x m - short x n) x n^2.
    def operations(args: Sequence[Any], result: Any) -> float:
        count, rows, columns = _batches(args[0])
        return count * (long * rows - short * columns) * columns**2

    return operations


def _solve(triangles: int, *, decomposes: bool = False, matrix: int = 0, sides: int = 1) -> Formula:
    # Each triangle of n rows takes n^2 operations for each right-hand side; the decomposition is that of LU.
    def operations(args: Sequence[Any], result: Any) -> float:
        count, rows, _ = _batches(args[matrix])
        right = args[sides].numel() / max(1, count * rows)
        return count * (triangles * right * rows**2 + (2 / 3 * rows**3 if decomposes else 0))

    return operations


def _multiply_by_reflections(args: Sequence[Any], result: Any) -> float:
    return 4 * args[2].numel() * args[1].shape[-1]


_BY_NAME: dict[str, Formula] = {
    # Attention and products for which torch lacks a formula.
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_cudnn_attention_forward": _attention,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "_scaled_grouped_mm_v2": _grouped,
    "_scaled_mm_v2": _product(0),
    "_foreach_mm": _foreach,
    "mv": _by_vector(0),
    "addmv": _by_vector(1),
    "dot": _by_vector(0),
    "vdot": _by_vector(0),
    "addbmm": _batched_sum,
    "_addmm_activation": lambda args, result: 2 * result.numel() * args[1].shape[-1],
    "_int_mm": _product(0),
    "_weight_int8pack_mm": _product(0),
    "_weight_int4pack_mm": _product(0),
    "_weight_int4pack_mm_for_cpu": _product(0),
    "_weight_int4pack_mm_with_scales_and_zeros": _product(0),
    "_dyn_quant_matmul_4bit": _product(0),
    "_mixed_dtypes_linear": _product(0),
    "mkldnn_linear": _product(0),
    "_trilinear": _trilinear,
    "conv_tbc": _temporal_convolution,
    # Distances and transforms.
    "_cdist_forward": _distances,
    "_euclidean_dist": _distances,
    "_pdist_forward": _distances,
    "_fft_c2c": _transform,
    "_fft_r2c": _transform,
    "_fft_c2r": _transform,
    # Decompositions, of Golub and Van Loan: algorithms 4.2.1, 3.4.1, 5.2.1, 8.3.3, 8.6.2, 7.5.2.
    "linalg_cholesky_ex": _cubic(1 / 3),
    "cholesky": _cubic(1 / 3),
    "cholesky_inverse": _cubic(2 / 3),
    "linalg_lu_factor_ex": _cubic(2 / 3),
    "linalg_lu": _cubic(2 / 3),
    "_lu_with_info": _cubic(2 / 3),
    "linalg_ldl_factor_ex": _cubic(1 / 3),
    "_linalg_det": _cubic(2 / 3),
    "_linalg_slogdet": _cubic(2 / 3),
    "linalg_inv_ex": _cubic(2),
    "linalg_eig": _cubic(25),
    "_linalg_eigvals": _cubic(10),
    "_linalg_eigh": _cubic(9),
    "linalg_matrix_exp": _cubic(16),  # a polynomial of degree 18 and its squares: eight products
    "linalg_qr": _rectangular(4, 4 / 3),
    "geqrf": _rectangular(2, 2 / 3),
    "linalg_householder_product": _rectangular(2, 2 / 3),
    "_linalg_svd": _rectangular(14, -8),
    "linalg_lstsq": _rectangular(2, 2 / 3),
    "ormqr": _multiply_by_reflections,
    # Systems of equations.
    "_linalg_solve_ex": _solve(2, decomposes=True),
    "linalg_lu_solve": _solve(2, sides=2),
    "lu_solve": _solve(2, matrix=1, sides=0),
    "linalg_ldl_solve": _solve(2, sides=2),
    "cholesky_solve": _solve(2, matrix=1, sides=0),
    "_cholesky_solve_helper": _solve(2, matrix=1, sides=0),
    "linalg_solve_triangular": _solve(1),
    "triangular_solve": _solve(1, matrix=1, sides=0),
}
FORMULAS: dict[Any, Formula] = {
    getattr(torch.ops.aten, name): formula for name, formula in _BY_NAME.items() if hasattr(torch.ops.aten, name)
}
"""The formulas that torch lacks, of those operators that this version of torch has."""
