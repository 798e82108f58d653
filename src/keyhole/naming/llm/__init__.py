"""What does a language model call a signal, and does it find a name right? Over any OpenAI-compatible endpoint."""

from keyhole.naming.llm.asking import Cost as Cost
from keyhole.naming.llm.asking import Price as Price
from keyhole.naming.llm.asking import estimate as estimate
from keyhole.naming.llm.asking import llm_explainer as llm_explainer
from keyhole.naming.llm.asking import llm_judges as llm_judges
from keyhole.naming.llm.asking import with_model as with_model
from keyhole.naming.llm.endpoint import Endpoint as Endpoint
from keyhole.naming.llm.endpoint import Patience as Patience
from keyhole.naming.llm.transcript import Prompting as Prompting
from keyhole.naming.llm.transcript import Talk as Talk
from keyhole.naming.llm.transcript import Transcript as Transcript
from keyhole.naming.llm.transcript import open_transcript as open_transcript

__all__ = [
    "Cost",
    "Endpoint",
    "Patience",
    "Price",
    "Prompting",
    "Talk",
    "Transcript",
    "estimate",
    "llm_explainer",
    "llm_judges",
    "open_transcript",
    "with_model",
]
