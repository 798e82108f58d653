"""What does a result look like on paper? One function per figure: plain tensors in, a matplotlib Figure out."""

from keyhole.figures.attention import attention_figure, head_figure
from keyhole.figures.attribution import attribution_figure
from keyhole.figures.embedding import JointPCA, joint_pca, pca_figure, umap_figure
from keyhole.figures.interaction import interaction_figure
from keyhole.figures.interventions import intervention_figure
from keyhole.figures.ranks import RankCurve, rank_figure, rank_grid_figure, spectrum_figure
from keyhole.figures.style import save

__all__ = [
    "JointPCA",
    "RankCurve",
    "attention_figure",
    "attribution_figure",
    "head_figure",
    "interaction_figure",
    "intervention_figure",
    "joint_pca",
    "pca_figure",
    "rank_figure",
    "rank_grid_figure",
    "save",
    "spectrum_figure",
    "umap_figure",
]
