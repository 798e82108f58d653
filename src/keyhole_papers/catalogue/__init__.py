"""What has been published, and what does each item need? Every figure and table of three papers and a talk."""

from keyhole_papers.catalogue import cc, svf, svt, talk
from keyhole_papers.catalogue.entry import Paper, Published

__all__ = ["CATALOGUE", "PAPERS", "Paper", "Published"]

PAPERS: dict[Paper, str] = {
    "svf": "Singular Vectors of Attention Heads Align with Features",
    "svt": "Sparse Attention Decomposition Applied to Circuit Tracing",
    "cc": "Decomposing Query-Key Feature Interactions Using Contrastive Covariances",
    "talk": "Understanding Attention from First Principles (talk)",
}
CATALOGUE: dict[str, Published] = {
    one.id: one for one in (*svf.PUBLISHED, *svt.PUBLISHED, *cc.PUBLISHED, *talk.PUBLISHED)
}
