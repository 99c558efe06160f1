"""The door to XGBoost, which is imported as if scikit-learn were not installed: nothing here uses XGBoost's estimators
for it, and importing it, SciPy's statistics included, costs more than a second at every start of the daemon."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

_FOREIGN = "sklearn"

if _FOREIGN in sys.modules:
    import xgboost
else:
    sys.modules[_FOREIGN] = cast(ModuleType, None)  # the documented way to have an import fail
    try:
        import xgboost
    finally:
        del sys.modules[_FOREIGN]

__all__ = ["xgboost"]
