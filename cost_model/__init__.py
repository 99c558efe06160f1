"""The XGBoost cost model: arrays in, log seconds out."""

from cost_model.metrics import rank_correlation, top_k_regret
from cost_model.prior import DamagedPriorError, Hyperparameters, Prior, TrainingSet
from cost_model.session import SessionModel

__all__ = [
    "DamagedPriorError",
    "Hyperparameters",
    "Prior",
    "SessionModel",
    "TrainingSet",
    "rank_correlation",
    "top_k_regret",
]
