"""What does the paper on contrastive covariances show? A toy with known latents; binding and lists in chat models."""

from keyhole_papers.catalogue.entry import Published, entry, schematic

_LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
_QWEN = "Qwen/Qwen3-4B-Instruct-2507"

PUBLISHED: tuple[Published, ...] = (
    schematic("cc-fig1", "Figure 1", "Drawing of the method", "Positive minus negative query-key covariance."),
    entry(
        "cc-fig2",
        "Figure 2",
        "Ranks of both latents, one head size",
        "Recovered ranks equal the true ones whenever r1 + r2 < d_head. Heads reach 99 % accuracy, about 85 % with "
        "continuous latents and d_head = 8.",
    ),
    entry(
        "cc-fig3",
        "Figure 3",
        "Discrete latent in its subspace",
        "d_head = 16, r1 = 3, r2 = 5: queries and keys, projected, fall onto the same eight corners of a cube.",
    ),
    entry(
        "cc-fig4",
        "Figure 4",
        "Swapping latents between two keys",
        "51,200 samples: swapping both subspaces moves all attention to the target; random ones of equal rank far "
        "less.",
    ),
    entry(
        "cc-fig5",
        "Figure 5",
        "Interaction matrix, continuous latents",
        "G is diagonal where r1 + r2 <= d_head (features split) and has entries off it beyond (superposition).",
    ),
    entry(
        "cc-fig6a",
        "Figure 6a",
        "Categories in the subspace of filter heads",
        "Five categories, each contrast of rank 1, five dimensions together: clusters by category, queries and keys of "
        "one category aligned; PC 1 tells queries from keys.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig6b",
        "Figure 6b",
        "Thirteen categories, keys only",
        "Keys cluster by category, related categories side by side.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig7",
        "Figure 7",
        "Swapping categories in filter heads",
        "1,000 lists: the five-dimensional swap moves attention to the other category's item, though not all of it, "
        "and far more than a random one.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig8",
        "Figure 8",
        "Order and lexical subspaces",
        "Clusters by order and by thing, queries and keys aligned; the order contrast usually has rank 2 or 3, the "
        "lexical 9 or 10.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig9",
        "Figure 9",
        "Swapping binding features",
        "1,000 prompts with nine boxes: order or lexical alone move some attention, both together most of it, random "
        "subspaces next to nothing.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig10",
        "Figure 10",
        "Attention logits by feature",
        "Each token's logit splits into order, lexical and a rest; the lexical part is larger in head 16.1, and wrong "
        "boxes get some of it.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig11",
        "Figure 11",
        "Ranks of both latents, other heads",
        "d_head 8 and 16, discrete and continuous: ranks are recovered wherever r1 + r2 <= d_head.",
    ),
    entry(
        "cc-fig12",
        "Figure 12",
        "Continuous latent in its subspace",
        "Projected queries and keys show the Gaussian ball that the latent was drawn from.",
    ),
    entry(
        "cc-fig13",
        "Figure 13",
        "Interaction matrix, discrete latents",
        "Unlike with continuous latents, G is not symmetric.",
    ),
    entry(
        "cc-fig14",
        "Figure 14",
        "Swaps in more heads, d_head = 16",
        "Both latents together move all attention; the random control grows as r1 + r2 nears d_head.",
    ),
    entry("cc-fig15", "Figure 15", "Swaps in more heads, d_head = 8", "The same with eight dimensions."),
    entry(
        "cc-fig16",
        "Figure 16",
        "Rank against the number of entities",
        "Heads differ in rank, but the ranks of the order and the lexical contrast stop growing after enough entities.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig17",
        "Figure 17",
        "Queries and keys without projection",
        "Plain PCA shows the order in its first components, as its rank is at most 3, but not where lexical features "
        "are.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig18",
        "Figure 18",
        "Swapping binding features, other heads",
        "The heads with at least 30 % accuracy (nine in all) behave like those of Figure 9.",
        needs=_LLAMA,
    ),
    entry(
        "cc-fig19",
        "Figure 19",
        "Filter heads of Qwen3-4B",
        "Swapping categories in another model. The text gives no result; what Figure 7 shows is asked of it.",
        needs=_QWEN,
    ),
    entry(
        "cc-fig20",
        "Figure 20",
        "Binding heads of Qwen3-4B",
        "Swapping binding features in another model. The text gives no result; what Figure 9 shows is asked of it.",
        needs=_QWEN,
    ),
    entry(
        "cc-table1",
        "Table 1",
        "Training settings of the toy",
        "d = 32, d_head = 8 or 16, batch 256, lr 1e-4, weight decay .01; validation on 20 x 512 samples every 200 "
        "batches, patience 5.",
    ),
    entry(
        "cc-phase",
        "Beyond the paper",
        "What happens past capacity",
        "The paper shows superposition (r1 + r2 > d_head) for single heads; here whole grids of ranks, accuracy, "
        "overlap and off-diagonal share of G.",
        beyond=True,
    ),
)
