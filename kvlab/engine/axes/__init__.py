"""The scheduling axes beside the strategy, each one small class that the configuration names."""

from kvlab.engine.axes.admission import FirstChunk, FullPrompt, PromptPlusOne, ReserveMaxTokens, Watermark
from kvlab.engine.axes.forecast import Limit, Oracle, Pow2, Quantile
from kvlab.engine.axes.future import PastFuture, TruePeak
from kvlab.engine.axes.new_token_ratio import NewTokenRatio
from kvlab.engine.axes.preemption import CostBased, Never, Recompute, Swap
from kvlab.engine.axes.protocols import Admission, Forecast, How, Preemption, Victim
from kvlab.engine.axes.running import Running, unit_bytes
from kvlab.engine.axes.victim import LeastOutput, MostBlocks, Newest, Priority

__all__ = [
    "Admission", "CostBased", "FirstChunk", "Forecast", "FullPrompt", "How", "LeastOutput", "Limit", "MostBlocks",
    "Never", "NewTokenRatio", "Newest", "Oracle", "PastFuture", "Pow2", "Preemption", "Priority", "PromptPlusOne",
    "Quantile", "Recompute", "ReserveMaxTokens", "Running", "Swap", "TruePeak", "Victim", "Watermark", "unit_bytes",
]  # fmt: skip
