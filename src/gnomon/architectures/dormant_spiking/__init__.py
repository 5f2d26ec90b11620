"""Dormant spiking neurons: leaky integrate-and-fire neurons that switch themselves off while deeply inhibited.

In a trained spiking network a large part of the neuron-steps lie far below the firing threshold and will not fire in
the time that is left, yet every input spike is still added to them. A dormant neuron has a second, negative threshold:
below it no input is read at all, and the membrane decays until the neuron wakes (``wake="leak"``), stays asleep to the
end of the sample (``"never"``) or for a fixed time (``"after"``). The gate is read from the previous state, so that it
is known before any input is, and it is trained through with a surrogate gradient.

Use it to train a network that does less work for each input (:class:`DormantLIF`), to gate one that spikingjelly or
snntorch trained (:func:`convert_to_dormant`), to see how much a network wastes (:func:`inhibition_profile`), and to
count the work that is really saved, the gate's own included (:func:`energy_ledger`). A masked dense pass saves no
time; :func:`event_forward` is an event-driven kernel whose time falls with the awake share (on a processor a dense
product of the same layer is still faster).

>>> from gnomon.architectures import DormantLIF
>>> neuron = DormantLIF(tau=2.0, v_dormant=-0.25)
>>> spikes = neuron(currents)  # [T, B, ...]; neuron.reset() before the next sample  # doctest: +SKIP
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
