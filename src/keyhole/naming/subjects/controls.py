"""What would be named if there were nothing to name? Random directions, of the heads and sides of real ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from keyhole.circuits.writer import SideName
from keyhole.models.heads import head_name
from keyhole.naming.gathering.draws import salt
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.pairs import basis_of, paired
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.models.model import Model


def random_subjects(model: "Model", like: Sequence[Subject], seed: int = 0) -> list[Subject]:
    """For each of these a random direction in the same head, on the same side, paired by Omega as a signal is.

    Its coordinates in u_k (dest) or v_k (src) are those of a uniformly random unit vector of all that the head reads.
    So are those of a random vector in a random subspace, whatever its rank: a control of a signal of any rank.
    """
    found = []
    for number, one in enumerate(like):
        basis = basis_of(one.about)
        om = omega(model, one.head[0], basis)
        sigma, rank = om.sigma[one.head[1]], int(om.rank[one.head[1]])
        rng = np.random.default_rng(int(salt(seed, one.id, "random")))
        drawn = torch.from_numpy(rng.standard_normal(rank)).to(sigma.device)
        side: SideName = "src" if one.about.get("side") == "src" else "dest"
        coordinates = drawn * sigma[:rank].double() if side == "dest" else drawn  # a_k / sigma_k is what u_k has
        directions = paired(model, one.head, side, range(rank), coordinates=coordinates, basis=basis)
        about = {"side": side, "like": one.id}
        name = f"{head_name(one.head)} random {number}"
        found.append(Subject(name, "random", one.head, *directions, about=about))
    return found
