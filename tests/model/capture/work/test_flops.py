"""Formulas of floating-point operations, against torch's own and against counts by hand."""

import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import graphpipe as gp
from graphpipe.model.capture.work.flops import has_formula

_PRODUCT = re.compile(
    r"mm(?!a)|mv(?!l)|matmul|conv(?!ert)|(?<!_)dot|linear(?!1d)|rnn|lstm|gru|attention|(?<!_)dist|einsum|kron|linalg|solve|"
    r"(?<![sg])qr|svd|eig|chol|inverse|_fft|lu_|matrix|tensordot|inner|orgqr|ormqr|encoder|det$"
)
"""Names of operators that multiply, transform or decompose matrices, and of a few that do not."""
_OTHER = re.compile(r"backward|_$|helper$|relu|upsample|_pack|to_int4pack|_dummy|cumm|hamm|norm_inter|_jvp|freq")
"""Names of backwards, of writes in place, and of what only looks like a product."""
_WITHOUT = {
    "kernels that `convolution` calls once it is counted": (
        "_conv_depthwise2d conv_depthwise3d _nnpack_spatial_convolution mkldnn_convolution slow_conv_transpose2d "
        "slow_conv_transpose3d slow_conv_dilated2d slow_conv_dilated3d slow_conv3d_forward cudnn_convolution_relu "
        "cudnn_convolution_add_relu cudnn_convolution_transpose miopen_convolution miopen_convolution_relu "
        "miopen_convolution_add_relu miopen_convolution_transpose miopen_depthwise_convolution _mps_convolution "
        "_mps_convolution_transpose"
    ),
    "kernels of recurrent layers, which are counted as a whole": (
        "_cudnn_rnn miopen_rnn mkldnn_rnn_layer _lstm_mps _thnn_fused_lstm_cell _thnn_fused_gru_cell"
    ),
    "weights that are quantised or sparse, and so are not trained": (
        "quantized_lstm quantized_gru _sparse_semi_structured_addmm _sparse_semi_structured_mm "
        "_sparse_semi_structured_linear _cslt_sparse_mm _cslt_sparse_mm_search _sparse_mm_reduce_impl _sparse_addmm "
        "_sparse_sparse_matmul sparse_sampled_addmm hspmm _spsolve"
    ),
    "only in evaluation without gradients, or only called by name": (
        "_transformer_encoder_layer_fwd _native_multi_head_attention _triton_multi_head_attention "
        "_triton_scaled_dot_attention _flash_attention_forward_no_dropout_inplace "
        "_scaled_dot_product_attention_math_for_mps"
    ),
    "called only by functions whose parts are counted": "linalg_pinv _compute_linear_combination",
    "elements one by one, an order, or checks": (
        "mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight _cudnn_rnn_flatten_weight slice_inverse lu_unpack "
        "linalg__powsum linalg_vector_norm linalg_cross _linalg_check_errors dist"
    ),
}


def _decomposes(name: str) -> bool | None:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    except RuntimeError:
        return None  # an operator of TorchScript alone


def test_every_operator_with_a_product_has_a_formula():
    # An LSTM counted 0 FLOPs on a CPU, because torch's one operator for it had no formula.
    explained = {name for names in _WITHOUT.values() for name in names.split()}
    missing: set[str] = set()
    seen: set[str] = set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        if name == schema.name or not _PRODUCT.search(name) or _OTHER.search(name):
            continue
        if schema.overload_name.endswith("out") or _decomposes(full) in (True, None):
            continue
        seen.add(name)
        overload = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
        if not has_formula(overload) and name not in explained:
            missing.add(name)
    assert len(seen) > 100
    assert not missing


class _One(nn.Module):
    # One call of a function, with a weight if it takes one.
    def __init__(self, call, *weight):
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.randn(*weight)) if weight else None

    def forward(self, x):
        return self.call(x) if self.weight is None else self.call(x, self.weight)


def _counted(module, sample):
    module = nn.Sequential(nn.Identity(), module)
    work = [op.work.flops_per_sample for op in gp.capture(module, {"input": torch.randn(4, *sample)}).ops]
    return sum(work)


@pytest.mark.parametrize(
    ("module", "sample"),
    [
        (nn.Linear(6, 5), (6,)),
        (nn.Conv2d(3, 4, 3, groups=1, padding=1), (3, 8, 8)),
        (nn.ConvTranspose2d(3, 4, 2, stride=2), (3, 4, 4)),
        (nn.Conv1d(4, 4, 3, groups=4), (4, 9)),
        (nn.MultiheadAttention(8, 2, batch_first=True), (6, 8)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), (6, 8)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_modules_count_what_torch_counts(module, sample):
    call = _One(lambda x: module(x, x, x)[0]) if isinstance(module, nn.MultiheadAttention) else module
    if call is not module:
        call.inside = module
    x = torch.randn(4, *sample)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        call(x)
    assert _counted(call, sample) == pytest.approx(counter.get_total_flops() / 4)


@pytest.mark.parametrize(
    ("call", "sample", "weight", "flops"),
    [
        (lambda x, w: torch.nn.functional.bilinear(x[:, 0], x[:, 1], w), (2, 5), (3, 5, 5), 2 * 3 * 5 * 5),
        (lambda x, w: x @ w, (4, 6), (6,), 2 * 4 * 6),
        (lambda x: torch.cdist(x, x), (7, 5), (), 3 * 7 * 7 * 5),
        (lambda x: torch.fft.fft(x).real, (8,), (), 5 * 8 * 3 / 2),
        (lambda x: torch.fft.rfft2(x).abs(), (4, 4), (), 5 * 16 * 4 / 2),
        (lambda x: torch.linalg.inv(x), (6, 6), (), 2 * 6**3),
        (lambda x: torch.linalg.cholesky(x), (6, 6), (), 6**3 / 3),
        (lambda x: torch.linalg.solve(x[:, :, :4], x[:, :, 4:]), (4, 6), (), 2 / 3 * 4**3 + 2 * 2 * 4**2),
        (lambda x: torch.linalg.qr(x)[1], (6, 4), (), (4 * 6 - 4 / 3 * 4) * 16),
        (lambda x: torch.linalg.matrix_exp(x), (4, 4), (), 16 * 4**3),
    ],
)
def test_operators_that_torch_does_not_count(call, sample, weight, flops):
    assert _counted(_One(call, *weight), sample) == pytest.approx(flops)


@torch.library.custom_op("graphpipe_test::doubled", mutates_args=())
def _doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


_doubled.register_fake(torch.empty_like)
_doubled.register_autograd(lambda context, gradient: 2 * gradient)


def test_an_operator_of_another_library_moves_bytes_and_is_named(tmp_path):
    # Such an operator counted neither FLOPs nor bytes nor a kernel, as if it took no time.
    graph = gp.capture(nn.Sequential(nn.Linear(4, 4), _One(lambda x: _doubled(x))), {"input": torch.randn(4, 4)})
    (op,) = [op for op in graph.ops if op.work.without_formula]
    assert op.work.without_formula == ("graphpipe_test::doubled",)
    assert op.work.traffic_bytes_per_sample >= 2 * 4 * 4
    graph.save(tmp_path / "graph.json")
    assert gp.Graph.load(tmp_path / "graph.json") == graph
