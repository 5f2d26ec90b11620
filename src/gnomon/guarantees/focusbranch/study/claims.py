"""What must come out: the sheet's claims, with its prototype's figures beside them."""

from __future__ import annotations

from typing import Any

from gnomon.guarantees.focusbranch.study.tables import ratio_to, ratio_to_best_fixed
from gnomon.study import always, at_least, at_most, better, correlates, estimate, rate

SHEET = "Sheet's prototype: "


def _in_time(tables: dict[str, Any]) -> tuple[bool, str]:
    late = int(tables["Calls"]["late"].sum())
    return late == 0, f"auto timed out on {late} instances: its calls there are not the whole"


def _calzone(rows: Any) -> float:
    return ratio_to(rows, "calzone")


def _coverd(rows: Any) -> float:
    return ratio_to(rows, "coverd")


def _top(rows: Any) -> float:
    return ratio_to(rows, "top-t coverd")


def _rounds(rows: Any) -> float:
    return ratio_to(rows, "calzone in rounds")


def _alone(rows: Any) -> float:
    return ratio_to(rows, "l = t")


CELLS = [("mlp", 1), ("mlp", 2), ("mlp", 3), ("cnn", 1), ("cnn", 2), ("cnn", 3)]

CLAIMS = [
    # 1: all agree
    always("agrees", table="Agreement", on={"judged": 1}, id="agreement",
           text="Where brute force over all sets of t pixels (t <= 2) decides, every decided verdict is the same",
           paper=SHEET + "as many open leaf pairs from level 1 as by Calzone on all ten digits"),
    always("agrees", table="Agreement", on={"judged": 0}, id="agreement-among-verifiers",
           text="Where it was not run, all verifiers that decide say the same"),
    always("confirmed", table="Agreement", id="adversarial-images",
           text="Every adversarial image differs in at most t pixels, lies in [0, 1] and is misclassified by the model"),
    # 2: the choice of strategy
    estimate(ratio_to_best_fixed, at_most=1.25, table="Calls", when=_in_time, unit="image", id="auto-against-fixed",
             text="Bound calls on the digits, sampling included: auto needs at most 1.25 times those of the best fixed start",
             paper=SHEET + "neither level 1 nor l = t is always better"),
    estimate(_calzone, at_most=1.0, table="Calls", when=_in_time, unit="image", id="auto-below-calzone",
             text="Bound calls on the digits, both samplings included: auto needs fewer than Calzone"),
    estimate(_coverd, at_most=1.0, table="Calls", when=_in_time, unit="image", id="auto-below-coverd",
             text="Bound calls on the digits, both samplings included: auto needs fewer than CoVerD"),
    *(estimate(test, at_most=1.0, table="Calls", unit="image", report=True, id=f"auto-{name}",
               text=f"Bound calls on the digits: auto's over those of {what}")
      for name, test, what in (("top-t-coverd", _top, "CoVerD with the node's own bound"),
                               ("calzone-in-rounds", _rounds, "Calzone with sampling in rounds"),
                               ("without-levels", _alone, "its own search with l = t alone"))),
    *(estimate(test, at_most=bound, table="Calls", on={"net": net, "t": t}, unit="image", report=True, id=f"{name}-{net}-{t}",
               text=f"Bound calls of auto over those of {what}: {net}, t = {t}")
      for net, t in CELLS
      for name, test, bound, what in (("fixed", ratio_to_best_fixed, 1.25, "the best fixed start"), ("calzone", _calzone, 1.0, "Calzone"))),
    *(estimate(test, at_most=1.0, table="Seconds", unit="image", report=True, id=f"seconds-{name}",
               text=f"Processor seconds on the digits, time-outs at the limit: auto's over {what}")
      for name, test, what in (("calzone", _calzone, "Calzone's"), ("fixed", ratio_to_best_fixed, "the best fixed start's"))),
    # 3: the published nets
    *(better("calls", "auto", "calzone", factor=2, table="Pairs", unit="image", on={"net": net, "t": t}, id=f"published-{net}-{t}",
             text=f"{net}, t = {t}: at most half of Calzone's bound calls (geometric mean over images that both decide)",
             paper="Outperforms state-of-the-art verifiers")
      for net, t in (("ConvSmall", 1), ("ConvSmall", 2), ("6x200", 1), ("6x200", 2))),
    *(better("seconds", "auto", "calzone", table="Pairs", unit="image", on={"net": net, "t": t}, report=True, id=f"published-seconds-{net}-{t}",
             text=f"{net}, t = {t}: ratio of seconds, over images that both decide")
      for net, t in (("ConvSmall", 1), ("ConvSmall", 2), ("6x200", 1), ("6x200", 2))),
    *(at_most("timed_out", name, 1.0, table="Published", on={"net": net, "t": t}, report=True, id=f"time-outs-{slug}-{net}-{t}",
              text=f"Share of time-outs of {name}: {net}, t = {t}")
      for net in ("ConvSmall", "6x200") for t in (1, 2) for name, slug in (("auto", "auto"), ("calzone", "calzone"), ("level 1", "level"))),
    # 4: the bound
    rate("tighter", at_least=0.99, table="Tighter", each="net", id="node-bound-tighter",
         text="At t = 3 the bound of the ball is above that of the box of all pixels on at least 99 % of images",
         paper=SHEET + "-13.6, -12.5, -3.7 against -87.5, -113, -133"),
    always(lambda rows: rows["slack"], table="Bounds", on={"contender": "paths"}, id="monotone-paths",
           text="With the parent's bounds no margin falls along a path from root to leaf"),
    # 5: the prediction
    correlates("predicted", "seconds", at_least=0.7, over="instance", table="Prediction", id="prediction",
               text="Predicted and true seconds of planned instances correlate by rank, at least 0.7"),
    at_most("share", None, 0.25, table="Prediction", on={"hard": 1}, unit="instance", id="sampling-share",
            text="On hard instances (1,000 bound calls or more) sampling takes at most a quarter of the time, on average"),
    # 6: pruning
    always("same", table="Saving", id="pruning-changes-nothing", text="Pruning by subsets changes no verdict"),
    at_least("saving", None, 10.0, table="Saving", on=lambda rows: (rows["searched"] == 1) & (rows["verified"] == 1) & (rows["open_share"] <= 0.3),
             unit=("t", "image"), id="pruning-saves",
             text="Where at most 0.3 of single pixels are open, pruning visits a tenth of the concrete nodes, on average"),
    *(at_least("saving", None, 1.0, table="Saving", on={"t": t, "searched": 1, "verified": 1}, report=True, unit="image", id=f"saving-{t}",
               text=f"Concrete nodes visited without pruning over those with it, t = {t}") for t in (2, 3)),
]  # fmt: skip
