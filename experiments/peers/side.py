"""What every peer's process does: it answers JSON lines. Imported inside the peers' environments, without kvlab.

The first line is the settings: {"model", "threads", "max_seqs", "max_len", "pool_bytes"}; answered, once the peer can
serve, by {"version", "pool_bytes"}, what its pool really takes. Then {"prompts": [[token id, ...], ...], "outputs":
[tokens, ...]} a line, all there at once, answered by {"wall_s"} and the number of tokens it generated.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter


def serve(start) -> None:
    """start(settings): (facts, generate); generate(prompts, outputs) returns the number of tokens generated."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a peer prints is not an answer
    facts, generate = start(json.loads(sys.stdin.readline()))
    print(json.dumps(facts), file=out)
    for line in sys.stdin:
        work = json.loads(line)
        begin = perf_counter()
        tokens = generate(work["prompts"], work["outputs"])
        print(json.dumps({"wall_s": perf_counter() - begin, "output_tokens": tokens}), file=out)
