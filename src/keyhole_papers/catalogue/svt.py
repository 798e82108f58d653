"""What does the paper on singular vector tracing show? Sparse scores and a traced circuit in GPT-2 small, on IOI."""

from keyhole_papers.catalogue.entry import Published, entry

_IOI = "GPT-2 small, 256 IOI prompts: "


def _figure(number: int, title: str, claim: str) -> Published:
    return entry(f"svt-fig{number}", f"Figure {number}", title, claim, needs="gpt2")


PUBLISHED: tuple[Published, ...] = (
    _figure(
        1,
        "What each orthogonal slice adds to a score of head 8.6",
        "For a negative and a positive score (28.1, weight about .83), a few of 64 slices make up the whole score; "
        "they are not those of the largest singular values.",
    ),
    _figure(
        2,
        "Slices used when heads fire",
        _IOI + "8.6 uses about six slices again and again, 9.9 a larger fixed set, 3.0 a broad one, 4.11 mostly one.",
    ),
    _figure(
        3,
        "Number of slices used when firing",
        "Far fewer than 64, typically 20 or less and often 2 or 3, on IOI and on 256 unrelated texts of 21 tokens.",
    ),
    _figure(
        4,
        "Which heads write to 10.0 and 9.9 at END",
        "With all slices more upstream heads seem to contribute than with S_ij, where 8.6 stands out, and for 9.9 also "
        "7.3 and 7.9.",
    ),
    _figure(
        5,
        "Traced network",
        _IOI
        + "starting at 9.6, 9.9, 10.0, edges seen 65 times or more agree widely with the known IOI circuit and show "
        "a lattice of name movers and S-inhibition heads.",
    ),
    _figure(
        6,
        "Single-edge interventions into 10.0 at END",
        "Removing an edge's signal lowers logit(IO) - logit(S), boosting raises it, heavier edges more; random slices "
        "do little.",
    ),
    _figure(
        7,
        "Removing all edges out of 0.9 and 0.11",
        "Parallel paths add up: mean change of the logit difference -3.74 for both, -1.54 for 0.11, -1.16 for 0.9 "
        "(global); local removal does less (-.49, -.15, -.38).",
    ),
    _figure(
        8,
        "Slices used when heads do not fire",
        _IOI + "3.0, 4.11, 8.6, 9.9 then use a small fixed set too, but other slices than when they fire.",
    ),
    _figure(
        9,
        "Signal of 9.9 in every token",
        "In the 12 slices seen in at least 100 firings, the norm of a token's residual separates names from other "
        "words.",
    ),
    _figure(
        10,
        "Cosine before and after single-edge interventions",
        "Residuals hardly turn: cosines are generally above .999 for local edits.",
    ),
    _figure(
        11,
        "Norm ratio of single-edge interventions",
        "Norms change by less than 1 % as a rule.",
    ),
    _figure(
        12,
        "Cosine before and after multi-edge removals",
        "Sharply peaked at 1, though wider than for single edges.",
    ),
    _figure(13, "Norm ratio of multi-edge removals", "Sharply peaked at 1."),
    _figure(
        14,
        "Top layers of the traced network",
        "Redundant paths: name movers 9.6, 9.9, 10.0 and S-inhibition heads 7.3, 7.9, 8.6 form a lattice.",
    ),
    _figure(
        15,
        "Skeleton of the traced network",
        "Edges seen more than 170 times leave 21 heads, 11 of the 16 known ones: precision .52, recall .69.",
    ),
    _figure(
        16,
        "Skeleton without singular vectors",
        "Tracing with whole residuals misses most known heads and nearly all source-side edges.",
    ),
    _figure(
        17,
        "Global removal of edges into 9.6 at END",
        "Attention scores and the logit difference both fall, more for heavier edges.",
    ),
    _figure(
        18,
        "Local removal of edges into 9.6 at END",
        "Attention scores fall, yet the logit difference rises in proportion: an anomaly of this head.",
    ),
    _figure(
        19,
        "Global removal of edges into 10.0 at IO",
        "Both fall; the logit difference not in proportion to the score.",
    ),
    _figure(20, "Local removal of edges into 10.0 at IO", "Both fall, in proportion to each other."),
    _figure(
        21,
        "Interventions on edges into 9.6 at END",
        "Global removal lowers the logit difference, local removal raises it, local boosting lowers it.",
    ),
    _figure(
        22,
        "Interventions on edges into 9.9",
        "At END and IO, removal lowers and boosting raises the logit difference; random slices do little.",
    ),
    _figure(23, "Interventions on edges into 8.6", "The same at END and S2."),
    _figure(24, "Interventions on edges into 10.0", "The same at END and IO."),
    _figure(25, "Removing parallel sets of edges", "Effects of parallel paths often add up."),
    _figure(26, "Removing serial sets of edges", "Effects along one path overlap instead of adding up."),
    _figure(
        27,
        "Removing all edges into 9.6",
        "Locally the logit difference rises (mean +.49), globally it falls.",
    ),
    _figure(
        28,
        "Removing edges out of 2.8",
        "2.8, which was not in the known circuit, matters for the answer.",
    ),
)
