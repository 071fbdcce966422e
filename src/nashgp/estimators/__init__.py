"""Estimators in the manner of scikit-learn."""

from nashgp.estimators.base import DeepGPEstimator
from nashgp.estimators.classifier import DeepGPClassifier
from nashgp.estimators.files import load
from nashgp.estimators.functions import FunctionSample
from nashgp.estimators.lvm import DeepGPLVM
from nashgp.estimators.regressor import DeepGPRegressor

__all__ = [
    "DeepGPClassifier",
    "DeepGPEstimator",
    "DeepGPLVM",
    "DeepGPRegressor",
    "FunctionSample",
    "load",
]
