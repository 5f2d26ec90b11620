"""Time geomstats' Frechet mean on the sphere and on the circle, in an environment of its own.

Usage: python geomstats_frechet.py IN.npz REPEATS OUT.npz

IN holds ``voters`` (n, d) unit rows, ``start`` (d,), ``epsilon``, and ``circle`` (m, 2) unit rows. OUT gets the mean,
and the least wall and processor seconds of each. It knows nothing of gnomon.
"""

import sys
import time

import numpy as np
from geomstats.geometry.hypersphere import Hypersphere
from geomstats.learning.frechet_mean import FrechetMean

with np.load(sys.argv[1]) as given:
    voters, start, epsilon, circle = given["voters"], given["start"], float(given["epsilon"]), given["circle"]
repeats = int(sys.argv[2])


def timed(call):
    best = [float("inf")] * 2
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        found = call()
        best = [min(best[0], time.perf_counter() - wall), min(best[1], time.process_time() - cpu)]
    return np.asarray(found), best


def on_sphere():
    mean = FrechetMean(Hypersphere(dim=voters.shape[1] - 1), method="default")
    mean.set(epsilon=epsilon, max_iter=500, init_point=start)
    return mean.fit(voters).estimate_


def on_circle():
    return FrechetMean(Hypersphere(dim=1)).fit(circle).estimate_


found, sphere_time = timed(on_sphere)
out = {"theta": found, "sphere": sphere_time}
try:
    out["circle_theta"], out["circle"] = timed(on_circle)
except Exception as error:  # another version may want the circle otherwise: the sphere is what counts
    print(f"the circle is left out: {type(error).__name__}: {error}")
np.savez(sys.argv[3], **out)
