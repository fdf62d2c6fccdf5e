"""A person in the loop: `capro review` shows doubtful samples, and everything learns from the answers."""
