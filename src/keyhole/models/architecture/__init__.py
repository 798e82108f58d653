"""What is a model made of? Where each architecture keeps its weights, and what they read and write once folded.

families.py    one row of facts per architecture
mlp_facts.py   one row of facts per architecture's MLP
weights.py     attention: norms, gains and biases folded into reading and writing weights
mlps.py        MLPs: their folded weights
norms.py       a norm with a frozen scale, as a linear map
rotary.py      RoPE, as a linear map per position
"""
