"""What does the paper on singular vectors and features show? Toys, theorems, and sparse attention in real models."""

from keyhole_papers.catalogue.entry import Published, entry

_PYTHIA = "EleutherAI/pythia-160m with revisions"

PUBLISHED: tuple[Published, ...] = (
    entry(
        "svf-fig1a",
        "Figure 1a",
        "Feature geometry without a head",
        "Twenty features in ten dimensions settle into ten antipodal pairs, spread evenly over all directions.",
    ),
    entry(
        "svf-fig1b",
        "Figure 1b",
        "Feature geometry with one attended pair",
        "With T01 = 1, the features w0 and w1 become orthogonal to all 18 others.",
    ),
    entry(
        "svf-fig1c",
        "Figure 1c",
        "Feature geometry with twenty attended pairs",
        "Of 100 features in 50 dimensions, the 40 that are attended to become orthogonal to all others.",
    ),
    entry(
        "svf-fig2a",
        "Figure 2a",
        "One pair aligns with the first singular pair",
        "After training, w0 lies along u0 only, w1 along v0 only, and Omega has a single large singular value.",
    ),
    entry(
        "svf-fig2b",
        "Figure 2b",
        "Twenty pairs align, one singular pair each",
        "N = 100, D = H = 50, T = 26 - i for pairs (i, i + 20): all 20 pairs align and the spectrum follows T.",
    ),
    entry(
        "svf-fig3",
        "Figure 3",
        "Alignment while training",
        "Four pairs, 10,000 steps: pairs align one after another, those with the larger target logit first, and "
        "singular vectors move before features do.",
    ),
    entry(
        "svf-fig4",
        "Figure 4",
        "Relative attention when one pair is present",
        "With only pair (0, 4) present, the ten terms of relative attention are spread early in training; late, a "
        "single one is left.",
    ),
    entry(
        "svf-fig5",
        "Figure 5",
        "Terms follow feature strength",
        "For five token pairs, each singular pair's term goes with the product of its features' strengths.",
    ),
    entry(
        "svf-fig6a",
        "Figure 6a",
        "Sparsity S(v) while training, toy",
        "S(v) falls lowest with one pair of interest present, less with two, and stays much higher with none (95 % "
        "intervals; 1/n = .1 is the sparsest possible).",
    ),
    entry(
        "svf-fig6b",
        "Figure 6b",
        "Sparsity S(v) while training, Pythia-160M",
        "Averaged over the 12 heads of Table 2, S(v) falls during training; with rotated singular vectors it does not.",
        needs=_PYTHIA,
    ),
    entry(
        "svf-fig7",
        "Figure 7",
        "Decompositions in four heads of Pythia-160M",
        "Relative attention is spread at the start and sparse at the end of training, often in small singular values, "
        "and rotated singular vectors show no sparsity.",
        needs=_PYTHIA,
    ),
    entry(
        "svf-fig8a",
        "Figure 8a",
        "How many singular vectors rebuild attention, GPT-2",
        "On IOI prompts N_recon is small for most heads and differs with their role.",
        needs="gpt2",
    ),
    entry(
        "svf-fig8b",
        "Figure 8b",
        "How many singular vectors rebuild attention, Pythia-160M",
        "N_recon falls during training and ends at 1 to 4 for the heads of Table 2 (95 % intervals).",
        needs=_PYTHIA,
    ),
    entry(
        "svf-fig9a",
        "Figure 9a",
        "All features against all singular vectors, one pair",
        "Among 20 features only w0 meets u0 and only w1 meets v0; both cosines have the same sign.",
    ),
    entry(
        "svf-fig9b",
        "Figure 9b",
        "All features against all singular vectors, twenty pairs",
        "Among 100 features the 40 attended ones meet their singular vectors, one each, with paired signs.",
    ),
    entry(
        "svf-fig10",
        "Figure 10",
        "Feature probability",
        "Alignment holds from p = 1 down to about .038 and fails at .02, where a pair is in under 1 % of inputs.",
    ),
    entry(
        "svf-fig11",
        "Figure 11",
        "Feature probability while training",
        "The more often features occur, the earlier they align.",
    ),
    entry("svf-fig12", "Figure 12", "Weight of the attention loss", "Alignment holds over two decades of lambda."),
    entry("svf-fig13", "Figure 13", "Number of features", "Alignment holds for N = 10, 15, 20, 25, 30 with D = 10."),
    entry("svf-fig14", "Figure 14", "Head dimension", "Alignment holds for H = 10, 8, 6, 4 with D = 10."),
    entry("svf-fig15", "Figure 15", "Context length", "Alignment holds over a range of m (values not printed)."),
    entry(
        "svf-fig16",
        "Figure 16",
        "Random seeds",
        "Alignment in each of 5 seeds; the talk gives a mean of about .999 with a deviation of about .001.",
    ),
    entry("svf-fig17a", "Figure 17a", "W W^T without a head", "W W^T is a multiple of the identity: isotropy."),
    entry(
        "svf-fig17b",
        "Figure 17b",
        "W W^T with one attended pair",
        "W W^T stays close to isotropic when two features are of interest.",
    ),
    entry(
        "svf-fig18a",
        "Figure 18a",
        "More pairs than the head has dimensions, H = 5",
        "N = 20, D = 10, 5 to 10 pairs: strong pairs keep a singular vector each, all weak ones share the smallest.",
    ),
    entry(
        "svf-fig18b",
        "Figure 18b",
        "More pairs than the head has dimensions, H = 10",
        "N = 40, D = 20, 10 to 20 pairs: the same pattern at twice the size.",
    ),
    entry(
        "svf-fig19",
        "Figure 19",
        "Relative attention when no pair is present",
        "Without features of interest the decomposition is not sparse, early or late in training.",
    ),
    entry(
        "svf-fig20",
        "Figure 20",
        "Decompositions in all studied heads of Pythia-160M",
        "In most of the 12 heads relative attention is sparser at the end of training than at its start.",
        needs=_PYTHIA,
    ),
    entry(
        "svf-table1",
        "Table 1",
        "Default settings of the sweeps",
        "N = 20, D = 10, H = 10, lambda = 4, m = 4, p = .52; four pairs with target logits 24, 21, 18, 15.",
    ),
    entry(
        "svf-table2",
        "Table 2",
        "Heads and token pairs in Pythia-160M",
        "Twelve firings of the IOI circuit: previous token 2.6; induction 4.11, 4.6, 5.0; name movers 10.7, 9.4, 8.2, "
        "8.10; S-inhibition 7.9, 6.6, 7.2; copy suppression 8.9.",
        needs=_PYTHIA,
    ),
    entry(
        "svf-thm1",
        "Theorem 1",
        "The minimiser has rank one",
        "With fixed features and one attended pair, the loss has one minimiser, alpha (Sx^-1 x1)(Sy^-1 y1)^T.",
    ),
    entry("svf-thm2", "Theorem 2", "Exact alignment", "If features are isotropic, u1 lies along x1 and v1 along y1."),
    entry(
        "svf-thm3",
        "Theorem 3",
        "Approximate alignment",
        "Near isotropy sin(u1, x1) and sin(v1, y1) stay below tau / (1 - tau), tau = 4 ex ey + 2 ex + 2 ey < 1.",
    ),
    entry(
        "svf-thm4",
        "Theorem 4",
        "Orthogonal features",
        "With a penalty on interference, a second pair becomes orthogonal to an aligned first one; the bound falls "
        "with lambda.",
    ),
    entry(
        "svf-lemma3",
        "Lemma 3",
        "Covariances of tokens",
        "Key differences have covariance 2 (m - 1) p (1 - p) Sy; queries p (1 - p) Sx + p^2 m m^T.",
    ),
)
