"""What must come out: the sheet's claims, with its prototype's figures beside them."""

from __future__ import annotations

from typing import Any

from gnomon.decisions.disca.study.experiments import INFORMATIVE
from gnomon.study import always, at_least, at_most, better, estimate, worse

SHEET = "Sheet's prototype, 30 repeats: "
PANELS: dict[str, Any] = {"table": "Panels"}


def _within(rows: Any) -> Any:
    """How far D lies below the .682 standard deviations that it can reach at the defaults."""
    return 0.6825 - rows["largest"]


CLAIMS = [
    # 1: gains, harm, and consensus steering
    at_most("relative", "disca", 0.0, **PANELS, on={"regime": INFORMATIVE}, each="regime", id="gain",
            text="DISCA lowers misalignment in each regime where personas know something",
            paper="10 to 24 % on backbones of 3.8B and more; " + SHEET + "-16.4, -6.0, -6.4, -30.8 %"),
    at_most("relative", "disca", 0.05, **PANELS, on={"regime": "noise"}, id="harm",
            text="and harms by less than 5 % where they are noise", paper=SHEET + "+1.5 %"),
    worse("mis", "panel mean", "base", **PANELS, on={"regime": ["shared bias", "agreeing biased", "amplified"]}, each="regime",
          id="consensus-harms", text="The panel's mean is worse than the base wherever personas share a bias or exaggerate",
          paper="Disagreement, not consensus; " + SHEET + "1.218 against .585"),
    better("mis", "panel mean", "disca", **PANELS, on={"regime": "unbiased"}, id="consensus-helps",
           text="and better than DISCA where they do not", paper=SHEET + ".278 against .511"),
    better("mis", "disca", ["panel majority", "temperature 2", "margin 1", "self-consistency"], **PANELS,
           on={"regime": INFORMATIVE}, each="regime", report=True, id="other-rules",
           text="DISCA against the majority, a temperature of 2, a margin of 1 and self-consistency"),
    # 2: reliability and bound
    better("reliability", {"contender": "disca", "regime": "unbiased"}, {"contender": "disca", "regime": "noise"}, **PANELS,
           id="reliability-unbiased", text="Reliability is lower under noise than with unbiased personas", paper=SHEET + ".45 against .69"),
    better("reliability", {"contender": "disca", "regime": "agreeing biased"}, {"contender": "disca", "regime": "noise"}, **PANELS,
           id="reliability-agreeing", text="and than with agreeing ones", paper=SHEET + ".45 against .81"),
    better("mis", "disca", "no shrinkage", **PANELS, on={"regime": "noise"}, id="shrinkage-insures",
           text="Without shrinkage misalignment is higher under noise", paper=SHEET + ".623 against .619"),
    better("mis", "no shrinkage", "disca", **PANELS, on={"regime": ["unbiased", "amplified"]}, each="regime", id="shrinkage-costs",
           text="and lower where personas inform: an insurance, not a gain", paper=SHEET + ".492 against .511, .395 against .426"),
    always(_within, **PANELS, on={"contender": ["disca", "no shrinkage"]}, id="largest-shift",
           text="At the defaults no shift exceeds .682 standard deviations, before any bound", paper=".682 s"),
    always(lambda rows: rows["active"] <= 0, **PANELS, on={"contender": "disca"}, id="bound-idle",
           text="At the defaults the bound of one standard deviation is never at work", paper="0 of 27,000 corrections"),
    at_least("active", "risk-neutral, no base", 0.0, **PANELS, each="regime", report=True, id="bound-at-work",
             text="Share of corrections that the bound cuts without loss aversion and without the base's own weight"),
    # 3: loss aversion
    better("mis", "disca", "kappa 1", **PANELS, on={"regime": "noise"}, id="aversion-noise",
           text="Loss aversion lowers misalignment under noise", paper=SHEET + ".619 against .622"),
    better("worst", "disca", "kappa 1", **PANELS, on={"regime": "noise"}, id="aversion-worst",
           text="and what the worst-off persona loses", paper=SHEET + "+.031 against +.040"),
    better("mis", "kappa 1", "disca", **PANELS, on={"regime": ["unbiased", "amplified"]}, each="regime", id="aversion-informed",
           text="Where personas inform, kappa = 1 is the better one", paper=SHEET + ".482 against .511, .377 against .426"),
    better("worst", "kappa 1", "disca", **PANELS, on={"regime": ["unbiased", "amplified"]}, each="regime", report=True,
           id="aversion-informed-worst", text="for the worst-off persona too"),
    # 5: placebo
    better("mis", "disca", "wrong country", **PANELS, on={"regime": INFORMATIVE}, each="regime", id="placebo",
           text="Personas of a wrong country help less than the right ones", paper=SHEET + ".518 / .511, .554 / .550, .560 / .557, .440 / .426"),
    better("mis", "disca", "mixed countries", **PANELS, on={"regime": INFORMATIVE}, each="regime", report=True, id="placebo-mixed",
           text="and personas each of another country"),
    *(
        estimate("specific", at_least=0.0, table="Specific", on={"regime": regime}, unit="repeat", report=True,
                 id=f"specific-{regime.replace(' ', '-')}", paper=SHEET + "7 to 12 %",
                 text=f"Share of the gain that wrong countries do not give: {regime}")
        for regime in INFORMATIVE
    ),
    # 6: spread predicts error
    at_least("spread_error", "disca", 0.0, **PANELS, on={"regime": INFORMATIVE}, each="regime", id="spread-predicts",
             text="The personas' spread rises with the base's error (Spearman over scenarios)"),
    # ablations of size
    better("mis", "8 personas", ["disca", "2 personas"], **PANELS, on={"regime": INFORMATIVE}, each="regime", report=True, id="panel-size",
           text="Eight personas against four and two"),
    better("mis", "fixed step", "disca", **PANELS, each="regime", report=True, id="fixed-step",
           text="A fixed step of one nat in place of the spread"),
    # 4: a language model
    *(
        at_least("mis", name, 0.0, table="Model", report=True, id=f"model-{name.replace(' ', '-')}",
                 text=f"Misalignment of the model over countries: {name}",
                 paper="Far below the paper's smallest backbone: nothing is promised")
        for name in ("base", "disca", "panel mean", "country prompt", "average citizen", "wrong country")
    ),
    better("mis", "disca", "base", table="Model", report=True, id="model-gain", text="The model with DISCA against without",
           paper="-10 to -24 % at 3.8B and more"),
    at_least("order_bias", "disca", 0.0, table="Model", report=True, id="model-order-bias",
             text="The model's order bias, half the difference between both orders in nats"),
    at_least("below_bias", "disca", 0.0, table="Model", report=True, id="model-below-bias",
             text="Share of scenarios whose base gap is below the order bias"),
    at_least("refused", "disca", 0.0, table="Model", report=True, id="model-refused",
             text="Share of scenarios with less than 5 % on both letters"),
    better("mis", "disca", "wrong country", table="Model", report=True, id="model-placebo",
           text="The model's own personas against those of a wrong country"),
    better("open_mis", "disca", "base", table="OpenEnded", report=True, id="open-ended", text="In open answers",
           paper="2 to 7 %"),
    better("white_mis", "disca", ["steering", "fine-tuned"], table="WhiteBox", report=True, id="white-box",
           text="Against activation steering and fine-tuning on the country's own answers"),
]  # fmt: skip
