"""What do larger models, longer prompts and more circuits need? Counted on paper, for sizes that were not measured.

    python benchmarks/scale.py

First the count against what was measured on one H200 (benchmarks/accelerator.py), then what it says of other sizes.
docs/scale.md shows both tables as they are printed here. `keyhole bulk --estimate` counts nothing: it measures.

Operations are multiplications. With T tokens, firings of heads and explained MLPs ("places"), in a model with L layers
of H heads (width r) and MLPs, all in d dimensions, and V tokens:

    forward    T (weights of all layers + d V) + 2 L H r T^2
    moving     v W_O of every head and source: L H T r d, once for all firings
    reading    for every head that fires, all that is written below it, onto what it reads (both sides): on average
               half of the writers lie below, (L H + 2 L) / 2 T rows, each 2 r d; or, where prompts are long, by W_O W_Q
               of each pair of heads, r x r (the tracer takes the cheaper way, too)
    searching  for every firing, both sides: (writer, channel) pairs, (L H + 2 L) / 2 T r each, gone through a few times
    places     for every explained MLP: its neurons, forth, back, and without its causes, 3 MLPs; and what every head
               below moves along its direction, (L H + 2 L) / 2 (r d + T r)

Seconds are operations at the speed of the forward pass, and a fixed time for every firing and place: launching kernels
and building records, which is all there is for small models.
"""

import math
from dataclasses import dataclass

from keyhole.tracing.why import ON_ACCELERATORS, PROJECTED_FLOATS

_SEARCHES = 8  # how often a firing's pairs are gone through: attributions, sorting, the rows of the search
_FOLDED = 4  # bytes: folded weights and records of tracing are float32 or better
_PROCESS = 550_000_000  # bytes of Python, torch and transformers themselves
_COPIES = 3  # of them: what was read, in channels, and as candidates in order
_BUSIEST = 0.25  # share of a circuit's firings that are in its busiest layer


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that costs depend on."""

    layers: int
    heads: int
    kv_heads: int
    d_head: int
    d_model: int
    d_mlp: int
    vocab: int
    matrices: int = 3  # of an MLP: 3 with a gate, 2 without

    @property
    def attention(self) -> int:
        """Weights of one layer's attention."""
        return 2 * self.d_model * self.d_head * (self.heads + self.kv_heads)

    @property
    def mlp(self) -> int:
        """Weights of one layer's MLP."""
        return self.matrices * self.d_model * self.d_mlp

    @property
    def weights(self) -> int:
        """All weights, with one matrix for tokens (an untied model has two)."""
        return self.layers * (self.attention + self.mlp) + self.vocab * self.d_model

    @property
    def below(self) -> float:
        """Writers below a firing, for every token, on average over layers: half of all heads and local writers."""
        return self.layers * (self.heads + 2) / 2


@dataclass(frozen=True)
class Load:
    """One circuit: how long its prompt is, and how much there is to explain."""

    tokens: float
    firings: float
    places: float = 0.0  # MLPs that are explained


@dataclass(frozen=True)
class Speed:
    """How fast a machine is with one model."""

    operations: float  # a second
    step: float  # seconds for every firing and place, beside its operations


@dataclass(frozen=True)
class Held:
    """Bytes that tracing needs."""

    fixed: int  # the process, weights and their folded copies
    prompt: int  # kept for every prompt of a batch
    working: int  # for every prompt of a batch, while its busiest layer is explained ...
    most: int  # ... and never more than this for all: the tracer then takes heads one after another

    def at(self, batch: int) -> int:
        """Of one worker, with so many prompts traced together."""
        return self.fixed + batch * self.prompt + min(batch * self.working, self.most)


def forward_operations(shape: Shape, tokens: float) -> float:
    """Multiplications of one forward pass."""
    attention = 2 * shape.layers * shape.heads * shape.d_head * tokens**2
    return tokens * shape.weights + attention


def trace_operations(shape: Shape, load: Load) -> float:
    """Multiplications of one trace, beside the forward pass."""
    T, r, d = load.tokens, shape.d_head, shape.d_model
    moving = shape.layers * shape.heads * T * r * d
    every = shape.layers * shape.heads
    heads = every * -math.expm1(-load.firings / every)  # how many different ones fire, if they fire at random
    each_row, each_pair = T * 2 * r * d, 2 * r * r * d + T * 2 * r * r
    reading = heads * shape.below * min(each_row, each_pair)
    searching = load.firings * 2 * shape.below * T * r * _SEARCHES
    places = load.places * (3 * shape.mlp + shape.below * (r * d + T * r))
    return moving + reading + searching + places


def seconds(shape: Shape, load: Load, speed: Speed) -> float:
    """How long one circuit takes, its forward pass included."""
    operations = forward_operations(shape, load.tokens) + trace_operations(shape, load)
    return operations / speed.operations + (load.firings + load.places) * speed.step


def memory(shape: Shape, load: Load, bytes_per_weight: int = 4, *, accelerator: bool = False) -> Held:
    """What does tracing hold? Runs twice, each alone and side by side, and what every writer wrote at every token.

    And for every firing of the layer at hand, all that was written below, onto what its head reads: with the copies
    that a search works on, three times that.
    """
    folded = shape.layers * shape.attention + shape.d_model * shape.vocab
    fixed = _PROCESS + shape.weights * bytes_per_weight + folded * _FOLDED
    beside = (run_floats(shape) - shape.vocab) * bytes_per_weight + writer_floats(shape) * _FOLDED  # no logits
    alone = run_floats(shape) * bytes_per_weight
    read = 2 * shape.below * load.tokens * 2 * shape.d_head  # in the last layer everything lies below
    return Held(
        fixed=fixed,
        prompt=round(load.tokens * (alone + beside)),
        working=round(_BUSIEST * load.firings * read * _COPIES * _FOLDED),
        most=PROJECTED_FLOATS * (ON_ACCELERATORS if accelerator else 1) * _COPIES * _FOLDED,
    )


def run_floats(shape: Shape) -> int:
    """Numbers that a run keeps for every token: residual streams, what MLPs wrote, queries, keys, values, logits."""
    heads = (shape.heads + 2 * shape.kv_heads) * shape.d_head
    return shape.layers * (2 * shape.d_model + heads) + shape.d_model + shape.vocab


def writer_floats(shape: Shape) -> int:
    """Numbers that its writers are: values, what heads move, what they add up to, and local writers (two a layer)."""
    heads = shape.heads * (shape.d_head + shape.d_model)
    return shape.layers * (heads + 3 * shape.d_model) + shape.d_model


GPT2 = Shape(12, 12, 12, 64, 768, 3072, 50257, matrices=2)
LLAMA_8B = Shape(32, 32, 8, 128, 4096, 14336, 128256)
LLAMA_70B = Shape(80, 64, 8, 128, 8192, 28672, 128256)
H200 = Speed(operations=2.5e13, step=4e-4)  # fitted to the three measurements below, one prompt at a time
MEASURED = (  # tokens, firings, seconds of the trace and its forward pass, GB
    (17, 7081, 3.58 + 0.06, 31.8),
    (128, 11579, 6.62 + 0.08, 38.6),
    (1000, 232, 1.15 + 0.27, 64.7),
)
LOADS = {  # firings and explained MLPs of a circuit: assumed, from SmolLM2's 15 and 35 (30 layers, 9 heads)
    "8B": (LLAMA_8B, 60, 150),
    "70B": (LLAMA_70B, 150, 400),
}
BYTES_PER_EDGE, EDGES_PER_STEP = 66, 11  # of SmolLM2's stores


def gigabytes(needed: Held, batch: int) -> float:
    return needed.at(batch) / 1e9


def confirm() -> None:
    print("| tokens | firings | seconds | by the model | GB | by the model |")
    print("|---|---|---|---|---|---|")
    for tokens, firings, took, held in MEASURED:
        load = Load(tokens, firings)
        said, needed = seconds(LLAMA_8B, load, H200), memory(LLAMA_8B, load, bytes_per_weight=2, accelerator=True)
        print(f"| {tokens:,} | {firings:,} | {took:.1f} | {said:.1f} | {held:.0f} | {gigabytes(needed, 1):.0f} |")


def foresee() -> None:
    print("| model | tokens | GB | GB more per prompt | seconds a circuit | GPU hours for a million | TB on disk |")
    print("|---|---|---|---|---|---|---|")
    for name, (shape, firings, mlps) in LOADS.items():
        for tokens in (17, 128, 1000):
            load = Load(tokens, firings, mlps)
            each, needed = seconds(shape, load, H200), memory(shape, load, bytes_per_weight=2, accelerator=True)
            disk = (firings + mlps) * EDGES_PER_STEP * BYTES_PER_EDGE * 1e6 / 1e12
            more = (needed.at(2) - needed.at(1)) / 1e9
            hours = each * 1e6 / 3600
            print(
                f"| {name} | {tokens:,} | {gigabytes(needed, 1):.0f} | {more:.2f} | {each:.2f} | {hours:,.0f} "
                f"| {disk:.2f} |"
            )


if __name__ == "__main__":
    confirm()
    print()
    foresee()
