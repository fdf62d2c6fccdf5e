"""Other ways to learn from web labels, under the same backbone and schedule as step 1, by kind.

`losses` change the loss (`vanilla` is step 1 itself, `linear` its classifier alone), `selection` chooses samples,
`weighting` weighs them, `mentors` let a small network judge them, `graphs` join pictures and texts, `multi_label`
look for missing labels, `multimodal` infers texts from pictures. The docstring of a system says what it follows, what
it leaves out and why. `registry` names them all.
"""
