"""Everything this package raises on purpose.

Compiled code cannot raise; it returns NaN, and the Python code between two compiled
calls turns that into one of these.
"""


class NashGPError(Exception):
    """Base class: catch this to catch everything the package raises itself."""


class InputError(NashGPError, ValueError):
    """An argument cannot be used; the message names it and says what to do."""


class NumericalError(NashGPError, ArithmeticError):
    """A computation left the finite numbers and no remedy inside it helped."""


class NotPositiveDefiniteError(NumericalError):
    """A covariance matrix could not be factorised, even with the largest jitter."""


class UnsettledChainsWarning(UserWarning):
    """Chains of a sampler, or their halves, disagree: they have not seen the whole posterior."""


class UntrustedRatioWarning(UserWarning):
    """A discriminator tells posterior from prior so well that its log ratio is no KL."""
