"""All that a strategy claims, each tried out now and then in a life, and once at its end."""

from __future__ import annotations

from collections.abc import Callable

from kvlab.testing import honesty, loops, refusals, scenes
from kvlab.testing.trial import Trial

CLAIMS: tuple[Callable[[Trial], None], ...] = (
    honesty.largest_is_exact,
    loops.extend_all_is_the_loop,
    loops.admit_all_is_the_loop,
    loops.release_all_is_the_loop,
    loops.wrote_all_is_the_loop,
    honesty.returns_is_exact,
    honesty.slots_agree,
    honesty.cache_is_true,
    honesty.nobody_waits_for_ever,
    honesty.last_one_reaches_longest,
    honesty.fork_needs_no_more,
    refusals.unknown_ids_are_errors,
    refusals.room_is_a_promise,
    refusals.nobody_outgrows_max_len,
    refusals.tight_pools_refuse_cleanly,
    refusals.a_full_host_refuses_cleanly,
    scenes.seats_run_out,
    scenes.somebody_leaps,
    scenes.child_outlives_its_parent,
    scenes.swapped_ones_come_back,
    scenes.a_family_is_swapped,
)
