"""What does the talk show? Its pictures in the order of their first appearance; repeated slides count once."""

from keyhole_papers.catalogue.entry import Published, entry, schematic

_PYTHIA = "EleutherAI/pythia-160m with revisions"
_THREE = "gpt2, EleutherAI/pythia-160m and google/gemma-2-2b"

PUBLISHED: tuple[Published, ...] = (
    schematic("talk-1", "Picture 1", "Recap of attention", "How queries, keys and values make attention."),
    schematic("talk-2", "Picture 2", "The toy model", "A sum of features, an autoencoder, and an attention head."),
    entry(
        "talk-3",
        "Picture 3",
        "Without attention features spread evenly",
        "N = 20, D = 10: antipodal pairs, no preferred direction.",
        same_as="svf-fig1a",
    ),
    entry(
        "talk-4",
        "Picture 4",
        "With attention singular vectors align",
        "w0 along u0, w1 along v0, one dominant singular value.",
        same_as="svf-fig2a",
    ),
    schematic("talk-5", "Picture 5", "Why alignment happens", "The attention loss pulls Omega w1 towards w0."),
    entry(
        "talk-6",
        "Picture 6",
        "Other features become orthogonal",
        "Attended features have a plane of their own; the others live in its complement.",
        same_as="svf-fig1b",
    ),
    entry(
        "talk-7",
        "Picture 7",
        "One pair after another",
        "Pairs align in the order of their target logits, singular vectors first, each with a drop of the attention "
        "loss.",
        same_as="svf-fig3",
    ),
    schematic("talk-8", "Picture 8", "Signals", "What a component writes into the u_k or v_k of a head downstream."),
    schematic("talk-9", "Picture 9", "The search", "Remove candidate signals until attention falls below tau."),
    entry(
        "talk-10",
        "Picture 10",
        "Signals have rank one",
        "The median number of singular vectors of a signal is 1 in every model and task.",
        needs=_THREE,
    ),
    entry(
        "talk-11",
        "Picture 11",
        "Removing signals changes attention and answers",
        "Attention and the answer change a lot, the residual hardly at all; random signals do nothing.",
        needs=_THREE,
    ),
    entry(
        "talk-12",
        "Picture 12",
        "A circuit of one prompt",
        "The search, applied recursively in one forward pass, ends at embeddings or at components with no attention "
        "upstream; every edge carries its signal.",
        needs="gpt2",
    ),
    entry(
        "talk-13",
        "Picture 13",
        "Why per prompt",
        "Averages mix different mechanisms into one dense graph.",
        needs="gpt2",
    ),
    entry(
        "talk-14",
        "Picture 14",
        "Prompts fall into families of circuits",
        "3,000 IOI prompts (15 templates, two orders, 100 each): average linkage on edges with their singular vectors "
        "splits GPT-2's circuits by the order of names, ABBA against BABA.",
        needs=_THREE,
    ),
    entry(
        "talk-15",
        "Picture 15",
        "Families in Pythia-160M",
        "There the split follows surface wording.",
        needs="EleutherAI/pythia-160m",
    ),
    entry(
        "talk-16",
        "Picture 16",
        "The representative of a family",
        "The circuit with the least mean Jaccard distance to the others of its family.",
        needs=_THREE,
    ),
    entry(
        "talk-17",
        "Picture 17",
        "Same heads, same signals",
        "Heads 2.8, 5.9 and 7.0 of GPT-2 have cosines near 1 between the ABBA and BABA representatives.",
        needs="gpt2",
    ),
    entry(
        "talk-18",
        "Picture 18",
        "Same heads, other signals",
        "The name mover 9.9 has a negative cosine between the two representatives.",
        needs="gpt2",
    ),
    entry(
        "talk-19",
        "Picture 19",
        "Signals that can be named",
        "Significant at a false discovery rate of 5 %: GPT-2 63 % (62-64), Pythia-160M 50 % (49-51), Gemma-2-2B 31 % "
        "(30-32).",
        needs=_THREE,
    ),
    entry(
        "talk-20",
        "Picture 20",
        "How BABA prompts are solved",
        "Several heads mark IO as the second of a pair, S-inhibition heads suppress S, name movers copy IO.",
        needs="gpt2",
    ),
    entry(
        "talk-21",
        "Picture 21",
        "How ABBA prompts are solved",
        "IO is found by structure and position instead.",
        needs="gpt2",
    ),
    entry(
        "talk-22",
        "Picture 22",
        "Robustness of alignment",
        "Five settings varied; over 5 seeds a mean of about .999 with a deviation of about .001.",
        same_as="svf-fig16",
    ),
    entry(
        "talk-23",
        "Picture 23",
        "Alignment of twenty pairs",
        "N = 100, D = H = 50, T = 26 - i: all pairs align, other features become orthogonal.",
        same_as="svf-fig2b",
    ),
    entry(
        "talk-24",
        "Picture 24",
        "Sparse attention in Pythia-160M",
        "Spread at the start of training, a few singular vectors at its end, spread again after rotation.",
        needs=_PYTHIA,
        same_as="svf-fig7",
    ),
    entry(
        "talk-25",
        "Picture 25",
        "Attention sinks share control signals",
        "In GPT-2 small many heads across layers have nearly the same destination and source signal when they attend "
        "to the first token.",
        needs="gpt2",
    ),
    entry(
        "talk-26",
        "Picture 26",
        "Representatives act on their own family",
        "Removing edges that only the ABBA representative has hurts ABBA prompts more than BABA ones, and the other "
        "way.",
        needs="gpt2",
    ),
)
