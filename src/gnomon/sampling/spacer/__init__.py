"""SpaceR: how often did each item occur in a stream too large to count, from one pass and a table of k entries.

A newcomer replaces the rarest item m of a full table with probability 1/(m + 1) and takes over its count plus one; in
expectation it then starts with exactly the occurrences that were missed. No hash collisions, no second pass and no
learned predictor of the heavy items: on the streams that the literature tests on, this one coin is worth as much as
perfect predictions.

Use it for queries, flows, words or clicks, one by one or in arrays, with integer weights if you like; tables of
partitions merge (:func:`spacer_partitioned`), and travel as bytes without pickle. With ``admission=`` the same table
is Space Saving, Unbiased Space Saving or adaptive sample-and-hold. Deletions need a linear sketch instead.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
