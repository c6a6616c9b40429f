"""kvlab's own engine, `paged` with blocks of 16 in bfloat16: one pool and one warm model for all that is asked."""

from __future__ import annotations

import logging

import numpy as np
from side import serve

BLOCK = 16


class Refuse(logging.Handler):
    """What kvlab warns of makes it slower than it is: that would be measured in its place."""

    def emit(self, record):
        raise SystemExit(record.getMessage())


class Server:
    """Everything stays open for as long as the process lives."""

    def __init__(self, settings):
        from kvlab.harness.compose import Composer
        from kvlab.run import plan
        from kvlab.start import load_library, opened_engine

        load_library()
        logging.getLogger("kvlab").addHandler(Refuse(logging.WARNING))
        with Composer() as composer:
            config = composer.compose(overrides(settings)).config
        self.strategy = plan(config).strategy
        self.opened = opened_engine(config, self.strategy, [])
        self.warm = self.opened.__enter__()

    def generate(self, prompts, outputs):
        from kvlab.engine.clock import WallClock
        from kvlab.engine.engine import Engine
        from kvlab.record.recorder import Recorder
        from kvlab.request import Request

        requests = [
            Request(id, len(ids), count, len(ids) + count, prompt=np.array(ids, np.int32))
            for id, (ids, count) in enumerate(zip(prompts, outputs, strict=True))
        ]
        scheduler, ended = self.warm.scheduler, self.warm.scheduler.tally.ended
        ended.clear()
        recorder = Recorder(self.strategy, self.warm.recorder.committed)
        Engine(requests, scheduler, self.warm.executor, WallClock(), recorder).run()
        assert all(sequence.outcome == "finished" for sequence in ended)
        return sum(len(sequence.output) for sequence in ended)


def start(settings):
    from kvlab.harness import provenance

    server = Server(settings)
    version = f"kvlab {provenance.versions()['kvlab']}"
    return {"version": version, "pool_bytes": server.warm.recorder.committed()}, server.generate


def overrides(settings):
    """What a run would be given on the command line."""
    return [
        "strategy=paged", f"block_size={BLOCK}", "dtype=bfloat16", "workload=uniform",
        *(f"engine.{name}={settings[name]}" for name in ("threads", "max_seqs")),
        *(f"{name}={settings[name]}" for name in ("max_len", "pool_bytes")),
    ]  # fmt: skip


if __name__ == "__main__":
    serve(start)
