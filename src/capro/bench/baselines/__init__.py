"""Other ways to learn from web labels, under the same backbone and schedule as step 1.

`vanilla` is step 1 itself, `linear` its classifier alone. `smoothing`, `mixup`, `bootstrap`, `scc` and
`ncr` change the loss (references.py), `smallloss` and `coteaching` choose samples by their loss,
`cleanlab` filters by confident learning before training, `knn` votes. MoPro and VSGraph are settings
of the pipeline, not baselines here: see bench/grids.py.
"""

from __future__ import annotations

from capro.bench.baselines.registry import BASELINES
from capro.bench.baselines.stages import baseline

__all__ = ["BASELINES", "baseline"]
