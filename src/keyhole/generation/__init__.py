"""What would the model say? Its own answer, written token by token, and each token of it asked for its reasons.

generate(model, prompt)   an answer: a `Generated`, with the run of prompt and answer
writing.py                transformers' own `generate`, watched: what is shown meanwhile, and what ends it
beside(model, prompt, edits)   what it would have said with edits, side by side; sweep: at several strengths
generated.py              the answer as a record: trace, explain or tell the story of any of its tokens
"""

from keyhole.generation.comparing import Beside, Strength, beside, sweep
from keyhole.generation.generated import Generated, GeneratedToken
from keyhole.generation.writing import Piece, generate
from keyhole.settings.generation import GenerateSettings

__all__ = [
    "Beside",
    "GenerateSettings",
    "Generated",
    "GeneratedToken",
    "Piece",
    "Strength",
    "beside",
    "generate",
    "sweep",
]
