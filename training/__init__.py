"""What happens between two exchanges: model, data, inner loop, outer step, checkpoints, the trainer process.

Knows nothing of peers: a round's outcome comes through the `Reducer` of `training.reducer`. Importing this package
loads nothing.
"""
