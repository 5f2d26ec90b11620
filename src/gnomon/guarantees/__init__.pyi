from .z_boosting import AmplifiedClassifier as AmplifiedClassifier
from .z_boosting import ZBoostClassifier as ZBoostClassifier
from .z_boosting import ZSet as ZSet
from .z_boosting import amplify as amplify
from .z_boosting import boostable as boostable
from .z_boosting import centerpoint as centerpoint
