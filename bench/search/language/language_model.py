"""A language model as a graph of layers, whose figures follow from formulas: nothing is captured or measured.

The formulas are those of Korthikanti et al. (2022), with fused attention.
"""

from dataclasses import dataclass
from itertools import pairwise

from graphpipe.graph import Edge, Graph, Op, Origin, Work
from graphpipe.graph.op_shards import Exchanges, OpShards, ShardFigures, SubmoduleShards
from graphpipe.graph.operator import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """Sizes of a language model like GPT-2: an embedding, layers of attention and MLP, and a head of its own."""

    layers: int
    width: int
    heads: int
    tokens: int
    """Of a sample."""
    words: int = 50304
    """Of the vocabulary."""
    precision: Precision = "fp32"
    """Of the computation. Weights are in fp32."""

    def graph(self) -> Graph:
        """Return its graph."""
        names = [f"layers.{at}" for at in range(self.layers)]
        ops = (self._embedding("embedding"), *map(self._layer, names), self._head("head"))
        sent = self._bytes * self.tokens * self.width
        edges = (Edge(source=one.name, target=other.name, bytes_per_sample=sent) for one, other in pairwise(ops))
        origin = Origin(method="declared", precision=self.precision)
        return Graph(name=f"gpt-{self.layers}", ops=ops, edges=tuple(edges), origin=origin)

    @property
    def _bytes(self) -> float:
        """Of a value while computing."""
        return 4.0 if self.precision == "fp32" else 2.0

    def _layer(self, name: str) -> Op:
        size = self._bytes
        # Products: qkv, output, and two of the MLP. Norms, dropouts and residuals are whole on every rank: 10 of the 34
        # bytes per value of two bytes that a layer saves.
        values, parameters = float(self.tokens * self.width), 12.0 * self.width**2
        work = Work(
            flops_per_sample=2 * parameters * self.tokens + 4.0 * self.tokens**2 * self.width,
            traffic_bytes_per_sample=36 * size * values,
            saved_bytes_per_sample=17 * size * values,
            saved_bytes_per_forward=2 * parameters if size == 2 else 0.0,
            kernels=12,
        )
        return Op(
            name=name,
            parameters=(f"{name}.weight",),
            parameter_bytes=4 * parameters,
            output_bytes_per_sample=size * values,
            work=work,
            shards=OpShards(
                most=self.heads,
                submodules=(SubmoduleShards(submodule=name, style="heads"),),
                parameters=((f"{name}.weight", 0),),
                parameter_bytes=4 * parameters,
                figures=ShardFigures(
                    flops_per_sample=work.flops_per_sample,
                    traffic_bytes_per_sample=20 * size * values,
                    saved_bytes_per_sample=12 * size * values,
                    forward=Exchanges(reductions=2, bytes_per_sample=2 * size * values),
                    backward=Exchanges(reductions=2, bytes_per_sample=2 * size * values),
                ),
            ),
        )

    def _embedding(self, name: str) -> Op:
        size = self._bytes
        values, parameters = float(self.tokens * self.width), float(self.words * self.width)
        return Op(
            name=name,
            parameters=(f"{name}.weight",),
            parameter_bytes=4 * parameters,
            output_bytes_per_sample=size * values,
            work=Work(traffic_bytes_per_sample=3 * size * values, saved_bytes_per_sample=8.0 * self.tokens, kernels=2),
            model_inputs=("text",),
            shards=OpShards(
                most=self.heads,
                submodules=(SubmoduleShards(submodule=name, style="vocabulary-rows"),),
                parameters=((f"{name}.weight", 0),),
                parameter_bytes=4 * parameters,
                figures=ShardFigures(
                    flops_per_sample=0.0, forward=Exchanges(reductions=1, bytes_per_sample=size * values)
                ),
            ),
        )

    def _head(self, name: str) -> Op:
        size = self._bytes
        # The logits are gathered, which costs half of a sum. The loss of them is whole on every rank.
        values, parameters, logits = (
            float(self.tokens * self.width),
            float(self.words * self.width),
            float(self.tokens * self.words),
        )
        flops = 2 * parameters * self.tokens
        return Op(
            name=name,
            parameters=(f"{name}.weight",),
            parameter_bytes=4 * parameters,
            output_bytes_per_sample=4 * logits,
            work=Work(
                flops_per_sample=flops,
                traffic_bytes_per_sample=size * (values + logits),
                saved_bytes_per_sample=size * values + 4 * logits,
                saved_bytes_per_forward=2 * parameters if size == 2 else 0.0,
                kernels=4,
            ),
            shards=OpShards(
                most=self.heads,
                submodules=(SubmoduleShards(submodule=name, style="vocabulary-columns"),),
                parameters=((f"{name}.weight", 0),),
                parameter_bytes=4 * parameters,
                figures=ShardFigures(
                    flops_per_sample=flops,
                    traffic_bytes_per_sample=size * logits,
                    forward=Exchanges(reductions=0.5, bytes_per_sample=size / 2 * logits),
                    backward=Exchanges(reductions=1, bytes_per_sample=size * values),
                ),
            ),
        )
