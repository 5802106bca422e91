"""The inside of producers: batches, senders, results."""
