"""What a broken rule is reported as."""

from __future__ import annotations


class RuleError(AssertionError):
    """A rule of the contract that a strategy broke.

    `assertion`: an expression over `strategy`, `shadow` and `memory` that is false at that moment.
    """

    def __init__(self, rule: str, text: str, assertion: str = "False") -> None:
        super().__init__(f"{rule}: {text}")
        self.rule, self.text, self.assertion = rule, text, assertion
