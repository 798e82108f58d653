"""Which words do options take? The library's own choices, spelled again where help can read them without torch."""

from typing import Literal

Dtype = Literal["float32", "float64", "bfloat16", "float16", "auto"]
Basis = Literal["linear", "homogeneous"]
Keys = Literal["all", "source"]
Sinks = Literal["keep", "mark", "collapse"]
Method = Literal["accpp", "svt"]
ThroughWhat = Literal["heads", "mlps"]
SeedRule = Literal["prob", "linear"]
Mode = Literal["exact", "local", "chain", "global"]
BoxFeature = Literal["order", "lexical", "reflexive", "both"]
Wording = Literal["plain", "instruct"]
Frame = Literal["post_rope", "pre_rope", "relative"]
Centre = Literal["none", "each", "pooled"]
Balance = Literal["pairs", "prompts"]
Nonlinearity = Literal["cube", "tanh"]
Preset = Literal["fast", "paper"]
Latents = Literal["discrete", "gaussian", "sphere"]
Reduction = Literal["sum", "mean"]
QueryMode = Literal["last", "indep"]
Paper = Literal["svf", "svt", "cc", "talk"]
CacheAction = Literal["clear"]
