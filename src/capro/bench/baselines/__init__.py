"""Other ways to learn from web labels, under the same backbone and schedule as step 1.

`vanilla` is step 1 itself, `linear` its classifier alone. `smoothing`, `mixup`, `bootstrap`, `scc` and
`ncr` change the loss (references.py), `smallloss` and `coteaching` choose samples by their loss,
`cleanlab` filters by confident learning before training, `knn` votes. Systems of other papers have a
module each, which says what it follows, what it leaves out and why: `mentornet`, `curriculumnet`,
`cleannet`, `somnet`, `mopro`, `vsgraph`, `sinet`, `mile`, `mcpl`, `multimodal`.
"""

from __future__ import annotations

from capro.bench.baselines.registry import BASELINES
from capro.bench.baselines.stages import baseline

__all__ = ["BASELINES", "baseline"]
