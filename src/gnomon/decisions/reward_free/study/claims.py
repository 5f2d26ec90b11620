"""What must come out: the sheet's claims, with its prototype's figures beside them."""

from __future__ import annotations

from typing import Any

from gnomon.decisions.reward_free.study.contenders import ONE_BY_ONE, PAPER, PHASED
from gnomon.decisions.reward_free.study.material import EASY, HARD
from gnomon.study import always, at_most, better, estimate, rate, slope
from gnomon.study.claims import between

BOTH = {"reuse": PHASED, "own-data": PAPER}
OVER_WORLDS = ("Rates", "Budgets", "Sequential", "Certificates", "Large")
SHEET = "Sheet's prototype: "
SAID = {"reuse": "all data used", "own-data": "each step's own data"}


def _near(rows: Any) -> Any:
    """How far within three standard errors of the closed form."""
    return 3 - rows["z"].abs()


CLAIMS = [
    # 1: H phases suffice
    *(
        slope("worst", contender, along="agents", between=(-1.1, -0.4), table="Rates", each=["world"], id=f"rate-{key}",
              text=f"With as many phases as steps ({SAID[key]}) the worst gap of the whole family of rewards falls with the agents "
              "a phase with an exponent between -1.1 and -0.4",
              paper="Theorem: H phases suffice, agents ~ 1/eps^2. " + SHEET + ".493 / .060 / .011 at 100 / 1,000 / 10,000 (own data)")
        for key, contender in BOTH.items()
    ),
    *(
        slope("worst", contender, along="agents", at_most=-0.5, table="Rates", each=["world"], id=f"rate-{key}-half",
              text=f"The same ({SAID[key]}): at least as fast as the theorem's -1/2", paper="Theorem: agents ~ 1/eps^2")
        for key, contender in BOTH.items()
    ),
    *(
        slope("gap", contender, along="agents", between=(-1.1, -0.4), table="Rates", each=["world"], report=True,
              id=f"rate-{key}-drawn", text=f"The same exponent ({SAID[key]}) over random and indicator rewards, without the adversary")
        for key, contender in BOTH.items()
    ),
    # 2: the threshold
    always(_near, table="Success", on={"contender": PAPER}, id="locks-closed-form",
           text="Locks of 12 steps, 2 or 3 actions, 2, 3, 4 or 6 phases: the share opened is within 3 standard errors of the closed "
           "form at half, once and twice its root", paper=SHEET + "H = 12, A = 2, rho = 3, m = 16: .12 against .105; m = 32: .35 / .36"),
    always(_near, table="Success", on={"contender": PHASED}, report=True, id="locks-closed-form-reuse",
           text="The same where all data are used, of which the closed form does not speak: earlier agents open later blocks by luck"),
    *(
        estimate("ratio", PAPER, between=(0.8, 1.2), table="Locks", on={"what": "root", "A": A}, each=["rho"], id=f"locks-root-{A}",
                 text=f"{A} actions: the agents that open every second lock are within 20 % of the closed form's root",
                 paper="Roots at rho = 2 / 3 / 4 / 6: " + said)
        for A, said in ((2, "115.4 / 41.0 / 24.4 / 14.4"), (3, "1324 / 213 / 86.4 / 35.1"))
    ),
    estimate("exponent", between=(0.65, 1.05), table="Exponents", each=["A"], id="locks-exponent",
             text="The logarithm of the agents for success 1/2 grows with H / rho with a slope between 0.65 and 1.05 ln A",
             paper="Lower bound A^(H / rho); of the closed form .751 ln 2 and .826 ln 3"),
    # 3: polynomial with H phases
    *(
        slope("agents", PAPER, along=column, at_most=1.2, table="Layers", on={"along": axis}, id=f"layers-{axis.lower()}",
              text=f"With as many phases as steps the fewest agents for success 1/2 grow with {name} with an exponent of at most 1.2",
              paper="Polynomial agents with H phases")
        for axis, column, name in (("H", "steps", "the number of steps"), ("A", "actions", "the number of actions"))
    ),
    *(
        slope("agents", "phased, drawn actions", along=column, at_most=1.2, table="Layers", on={"along": axis}, report=True,
              id=f"layers-{axis.lower()}-drawn", text=f"The same exponent along {column} where actions are drawn, not shared out")
        for axis, column in (("H", "steps"), ("A", "actions"))
    ),
    *(
        slope("interpolated", PAPER, along=column, at_most=1.2, table="Layers", on={"along": axis}, report=True,
              id=f"layers-{axis.lower()}-interpolated", text=f"The same exponent along {column} of agents interpolated between whole numbers")
        for axis, column in (("H", "steps"), ("A", "actions"))
    ),
    # 4: when phases matter
    *(
        better("gap", contender, "uniform", table="Budgets", on={"world": list(HARD)}, each=["world", "agents"], id=f"hard-{key}",
               text=f"Lock, corridor and RiverSwim against a strong current, equal totals: as many phases as steps ({SAID[key]}) beat one",
               paper="Theta(H) phases are needed on hard MDPs")
        for key, contender in BOTH.items()
    ),
    better("gap", "uniform", PAPER, table="Budgets", on={"world": list(EASY)}, each=["world", "agents"], id="easy-uniform-wins",
           text="Fast-mixing worlds (slippery FrozenLake 4x4, random MDPs), equal totals: one phase beats as many as steps where each "
           "step is estimated from its own data", paper=SHEET + "FrozenLake, rho = 1 / 12: .0021 / .0110 at 120,000, .075 / .493 at 1,200"),
    better("gap", PHASED, "uniform", factor=1 / 1.1, table="Budgets", on={"world": list(EASY)}, each=["world", "agents"],
           id="easy-reuse-ties", text="There one phase ties with or loses to as many as steps where all data are used (gap at most 10 % larger)",
           paper=SHEET + "rho = 12 with reuse .076 / .0082 / .0015, rho = 1 .084 / .0093 / .0020"),
    better("gap", PHASED, PAPER, factor=2, table="Budgets", on={"world": "frozenlake 4x4"}, each=["agents"], id="reuse-halves",
           text="FrozenLake 4x4: using all data divides the gap by at least 2", paper=SHEET + ".076 / .0082 / .0015 against .753 / .071 / .0125"),
    *(
        better("gap", PHASED, other, table="Budgets", on={"world": world}, each=["agents"], report=True,
               id=f"{world.replace(' ', '-')}-against-{other.split()[0].rstrip(',')}", text=f"{world}: phased against {other}, equal totals")
        for world in ("riverswim", "frozenlake 8x8", "cliffwalking")
        for other in ("uniform", "generator")
    ),
    *(
        better("gap", PHASED, "true reach", table="Budgets", on={"world": world, "agents": [100, 1000]}, report=True, each=["agents"],
               id=f"{world.replace(' ', '-')}-against-true-reach", text=f"{world}: what policies planned in the true model would save")
        for world in ("frozenlake 4x4", "riverswim hard")
    ),
    # 5: sequential learners
    better("gap", PHASED, list(ONE_BY_ONE), factor=1 / 3, table="Sequential", each=["world", "agents"], id="sequential",
           text="Equal totals: the gap is at most 3 times that of learners that plan anew after every episode (RF-UCRL, RF-Express, "
           "UCBVI-Zero, each with the best scale of its bonus)", paper="H phases in place of one an episode"),
    better("gap", PAPER, list(ONE_BY_ONE), factor=1 / 3, table="Sequential", each=["world", "agents"], report=True,
           id="sequential-own-data", text="The same where each step is estimated from its own phase's data"),
    # 6: the certificate
    *(
        always(lambda rows: rows["covered"], table=table, id=f"certificate-{table.lower()}",
               text=f"{table}: twice the certificate covers the worst gap in every run", paper="Valid with probability 1 - delta")
        for table in OVER_WORLDS
    ),
    *(
        always(lambda rows: rows["bound_slack"], table=table, id=f"bound-{table.lower()}",
               text=f"{table}: the bound over all rewards by dynamic programming in the true model is at least the worst gap")
        for table in OVER_WORLDS
    ),
    rate("below_trivial", PHASED, table="Budgets", at_least=0.5, report=True, each=["agents"], id="certificate-informative",
         text="How often the certificate is below the trivial value"),
    at_most("certificate_ratio", PHASED, 100, table="Budgets", on={"world": ["frozenlake 4x4", "riverswim", "random"]},
            each=["world", "agents"], report=True, id="certificate-ratio", text="What the certificate guarantees, over the worst gap found"),
    between("certificate", "generator", 0, 3, table="Certificates", each=["visits"], report=True, id="certificate-small",
            text="4 states, 2 actions, 4 steps, trivial 3: the certificate at so many visits a pair",
            paper=SHEET + "2.7 / 1.2 at 100 / 3,000 visits a pair"),
]  # fmt: skip
