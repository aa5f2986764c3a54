"""A loader and its workers, simulated in one process: they are asked in turn, as torch's loader asks them."""

from itertools import islice


def chunks(values, size):
    values = iter(values)
    while chunk := list(islice(values, size)):
        yield chunk


def in_turn(streams, batch):
    """(worker, its next batch) as a loader yields them; a worker that has no more is left out from then on."""
    active = [(worker, chunks(stream, batch)) for worker, stream in enumerate(streams)]
    while active:
        for worker, batches in list(active):
            found = next(batches, None)
            if found is None:
                active = [one for one in active if one[0] != worker]
            else:
                yield worker, found
