"""The soak test: capro attacked by a program, for hours, repeatably (docs/reliability.md).

    python -m soak --minutes 170 --seed 1
    python -m soak --only kills --minutes 5
    python -m soak --only tables --seed 1 --at 1234     one case again

An attack is a file of this package with an ``ATTACK``; ``ATTACKS`` lists them. A case is known by the attack, the
seed and a number, and every random choice follows from these.
"""
