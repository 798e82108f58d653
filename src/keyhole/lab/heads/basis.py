"""Does a head need fewer channels in the singular basis than in another? Counted by the answer, and not by scores.

The design, written down before any basis was measured (only the size of the gaps was looked at, to choose what is cut):

1. Prompts of the task that the model answers rightly; the answer's logit less that of the wrong name is the metric m.
2. Edges: the 32 token-level edges (writer, reader, token) with the largest |share| among all that end at a query or a
   key (`faithfulness.shares`, baseline: the resting state). Everything else of the model stays as it is, other edges
   into queries and keys too: so every basis ends at the model itself, f = 1 with all channels. The resting state,
   because a mean over prompts of one template leaves attention as it is: there would be no gap to explain.
3. A basis of a head is an invertible G of head space: query coordinates q G, key coordinates k G^-T, the same scores.
       singular     G_d of `qk.omega`: the singular channels of W_Q W_K^T
       refactored   singular channels with both factors scaled by sqrt(sigma), then turned by a random rotation
       raw          the head's coordinates as they are
       rotated      raw, turned by a random rotation
   An edge adds (w - base) W / n to the query or key (n: the scale of the norm, with the edge whole). Keeping some of
   its channels keeps these coordinates of that vector and nothing of the others, in head space before positions are
   turned in, so that all bases are treated alike: no direction needs to be at right angles to another, the norm stays
   the same, and all channels together are the whole edge.
4. Order: each edge's channels by the size of the score they make, not by its sign: the attention-weighted mean over
   scores of |what the channel adds to the score less its attention-weighted mean|. Taken in the model itself.
5. Every edge keeps its first n channels, n = 1 to 16 one by one, then in steps of a quarter octave. Needed is the
   smallest n from which on, up to all, |f(n) - 1| <= 0.1, with f = (m(n) - m(none)) / (m - m(none)). A prompt whose
   gap m - m(none) is below one logit is left out, and reported.
6. Reported: the mean over prompts of n; per prompt the mean over draws of log(n of another basis / n of the singular
   one), averaged over prompts, with a bootstrap interval over prompts.
"""
