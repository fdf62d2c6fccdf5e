"""The method `plus`: which label is true, given the web label, the texts and the picture? Pure.

The true class z of a sample is unknown: one of C classes, or none of these (state C). There are two
views of it. The words: web label and text fields, which depend on each other (a query word stands in
the text as well), so one model reads them together. The picture, which is nearly independent of the
words once z is known. Each view has a classifier, and the posterior joins them:

    q(z) ~ P(z | words) P(z | picture) / pi(z)

EM: q from both; then both classifiers are fitted to q. What is maximised is the agreement of the views,
sum_i log sum_z P(z | words_i) P(z | picture_i) / pi(z), the likelihood of seeing these words with this
picture. A classifier that has seen a label confirms it, so both are always judged out of fold, and the
sharpness of the picture's is the one under which held-out pictures agree best with their words.

    P(z | words) = softmax(w log P(y | z) + sum_f (a_f cos(t_f, class text z) + b_fz) + t V_z + b_z)

w, a_f, b: fitted weights, so a field that adds nothing to the label gets none. P(y | z) is counted from q.
V is a ridge-bound correction on the text vectors. None of these starts from texts that are far from every
class, or nearer to another sense of the query word than to any class.

Where there is an image-text model (CLIP, SigLIP) it brings evidence of its own: the likeness of picture and class
prompt is an offset of the picture's classifier, and a text that does not fit its picture counts less in the
sum over f. The scales of both are fitted (`joint`).

How far the views depend on each other beyond z cannot be seen without truth: EM explains all agreement by z.
The posterior that is reported is therefore `cautious_pool`, which counts what both may share once.

Several labels: the same with one hidden bit per (sample, class); a tag's reliability is how often it is
given where the thing is shown (hit rate) and where it is not (false rate), per class.

Cost: rounds x folds linear classifiers on n features, O(n d C) per optimiser step; beyond the inputs
O(n C) memory. Where that does not fit, the fit is to a random part of the samples, and the others are judged
block by block with what was fitted (`Posterior.of`). Where a part has few samples of a class, all classes share
their weights (`many_classes`).
"""

from capro.core.plus.calibration import NO_CALIBRATION, Calibration, calibrate
from capro.core.plus.decisions import ClassFinding, Decided, decide, decide_pairs, diagnose
from capro.core.plus.evidence import (
    Beliefs,
    LabelTable,
    Posterior,
    Temperature,
    agreement,
    cautious_pool,
    label_given_truth,
    log_odds,
    pool,
    settled,
    state_prior,
    tag_evidence,
    tag_rates,
    temperature,
)
from capro.core.plus.fitting import (
    Centring,
    FoldScores,
    Linear,
    assign_folds,
    centred,
    centring,
    cross_entropy,
    judge_folds,
    linear,
    minimise,
    numbers_of_fit,
)
from capro.core.plus.joint import Joint, Towers, counted, joint_evidence
from capro.core.plus.label_free import picture_to_text, text_guess
from capro.core.plus.many_classes import Centres, many_classes
from capro.core.plus.one_label import first_none, single_label
from capro.core.plus.several import several_labels

__all__ = [
    "NO_CALIBRATION",
    "Beliefs",
    "Calibration",
    "Centres",
    "Centring",
    "ClassFinding",
    "Decided",
    "FoldScores",
    "Joint",
    "LabelTable",
    "Linear",
    "Posterior",
    "Temperature",
    "Towers",
    "agreement",
    "assign_folds",
    "calibrate",
    "cautious_pool",
    "centred",
    "centring",
    "counted",
    "cross_entropy",
    "decide",
    "decide_pairs",
    "diagnose",
    "first_none",
    "joint_evidence",
    "judge_folds",
    "label_given_truth",
    "linear",
    "log_odds",
    "many_classes",
    "minimise",
    "numbers_of_fit",
    "picture_to_text",
    "pool",
    "settled",
    "several_labels",
    "single_label",
    "state_prior",
    "tag_evidence",
    "tag_rates",
    "temperature",
    "text_guess",
]
