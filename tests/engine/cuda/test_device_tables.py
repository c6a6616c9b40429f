"""The device's copy of a table holds what the host's does wherever a launch looks, and little is sent for it."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.engine.cuda.tables import DeviceTables
from kvlab.tables import Tables

ROWS, WIDTH = 5, 12


class Life:
    """Random sequences over one table: what a strategy may do between launches, and launches over what is there."""

    def __init__(self, seed, platform):
        self.rng = np.random.default_rng(seed)
        self.host = Tables(ROWS, WIDTH)
        self.device = DeviceTables(self.host, platform)
        self.next, self.read = 0, 0

    def entries(self, count):
        return self.rng.integers(0, 10**6, count).tolist()

    def change(self):
        rng, host = self.rng, self.host
        kind = rng.integers(6)
        if not len(host) or (kind == 0 and len(host) < ROWS):
            host.open(self.next, self.entries(rng.integers(1, WIDTH)))
            self.next += 1
            return
        seq = int(rng.choice(list(host.row)))
        count = host.count[seq]
        match kind:
            case 1:
                host.close(seq)
            case 2:
                host.put(seq, int(rng.integers(count)), self.entries(1)[0])
            case 3:
                host.cut(seq, int(rng.integers(1, count + 1)))
            case 4:
                host.append(seq, self.entries(rng.integers(0, WIDTH - count + 1)))
            case _:
                grows = [seq for seq in host.row if host.count[seq] < WIDTH]
                host.append_each(host.rows(grows), self.entries(len(grows)))

    def launch(self):
        """Of some sequences, over some of their entries."""
        chosen = [seq for seq in self.host.row if self.rng.random() < 0.7]
        if not chosen:
            return
        row_B = np.array([self.host.row[seq] for seq in chosen])
        used_B = np.array([self.rng.integers(1, self.host.count[seq] + 1) for seq in chosen])
        self.device.update(row_B, used_B)
        there_RP = self.device.table_RP.cpu().numpy()
        for seq, row, used in zip(chosen, row_B, used_B, strict=True):
            assert there_RP[row, :used].tolist() == self.host[seq][:used].tolist(), (seq, used)
        self.read += int(used_B.sum())

    def live(self, steps):
        for _ in range(steps):
            for _ in range(int(self.rng.integers(1, 4))):
                self.change()
            self.launch()


@pytest.mark.parametrize("seed", range(6))
def test_random_lives(seed, new_platform):
    life = Life(seed, new_platform())
    life.live(150)
    assert life.next > 10
    assert 0 < life.device.sent < life.read / 2, "what is there already is not sent again"


@pytest.mark.parametrize("hidden", ["open", "put", "cut"])
def test_a_change_that_is_not_noted_is_seen(hidden, new_platform, monkeypatch):
    """Planted: these tests can fail."""
    plain = getattr(Tables, hidden)

    def quietly(tables, *arguments):
        changed, tables.changed = tables.changed, None
        try:
            return plain(tables, *arguments)
        finally:
            tables.changed = changed

    monkeypatch.setattr(Tables, hidden, quietly)
    with pytest.raises(AssertionError):
        Life(0, new_platform()).live(150)


def test_a_decode_step_sends_one_entry_a_new_block(new_platform):
    host = Tables(ROWS, WIDTH)
    device = DeviceTables(host, new_platform())
    host.open(7, [3, 4])
    row_B = np.array([host.row[7]])
    device.update(row_B, np.array([2]))
    device.update(row_B, np.array([2]))
    assert device.sent == 2
    host.append(7, [5])
    device.update(row_B, np.array([3]))
    assert device.sent == 3
