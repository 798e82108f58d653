"""What does a result look like on paper? One function per figure: plain tensors in, a matplotlib Figure out."""

from keyhole.figures.attention import attention_figure, head_figure
from keyhole.figures.contrast.attribution import attribution_figure
from keyhole.figures.contrast.embedding import JointPCA, joint_pca, pca_figure, umap_figure
from keyhole.figures.contrast.interaction import interaction_figure
from keyhole.figures.contrast.interventions import intervention_figure
from keyhole.figures.contrast.ranks import RankCurve, rank_figure, rank_grid_figure, spectrum_figure
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
